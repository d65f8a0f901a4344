"""YOLO annotations: a text file per image with lines ``class x y width height`` or ``class x1 y1 x2 y2 …``.

Coordinates are fractions of the image. The splits and class names are in ``data.yaml``, or the folders are
``images`` and ``labels``.
"""

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from inline.datasets.custom.annotated import AnnotatedImage, Box, image_sizes, polygon_box
from inline.datasets.custom.layouts import find_images, find_named, read_lines, split_folders
from inline.datasets.validation.coco import polygon_area
from inline.utils.arguments import format_value
from inline.utils.errors import UserError

_NAME_FILES = ('classes.txt', 'obj.names', '_darknet.labels', 'names.txt', 'classes.names')
# Rounding may exceed the border of the image slightly.
_TOLERANCE = 1e-3


@dataclass(frozen=True)
class YoloData:
    """Images by split, the class names in label order, and the folder that file names are relative to."""

    splits: dict[str, list[AnnotatedImage]]
    classes: tuple[str, ...]
    base: Path


def read_yolo(root: Path, notes: list[str]) -> YoloData | None:
    """Read ``data.yaml`` (`root` itself or in it), or pairs of images and text files; None without either."""
    description = _find_description(root)
    if description is not None:
        paths, names = _read_description(description, notes)
    elif root.is_dir():
        paths, names = _find_pairs(root), _read_names(root)
    else:
        return None
    if not any(map(len, paths.values())):
        return None
    labels = {split: [label_path(path) for path in images] for split, images in paths.items()}
    if description is None and not any(path.is_file() for files in labels.values() for path in files):
        return None
    everything = [path for images in paths.values() for path in images]
    base = Path(os.path.commonpath([str(path.parent) for path in everything]))
    splits: dict[str, list[AnnotatedImage]] = {}
    highest = -1
    for split, images in paths.items():
        sizes = image_sizes(images)
        splits[split] = []
        for path, label, size in zip(images, labels[split], sizes, strict=True):
            boxes = read_labels(label, size, len(names) if names else None)
            highest = max([highest, *(int(box.label) for box in boxes)])
            splits[split].append(AnnotatedImage(path.relative_to(base).as_posix(), *size, boxes))
    classes = names or tuple(f'class {i}' for i in range(highest + 1))
    return YoloData({split: _name(images, classes) for split, images in splits.items()}, classes, base)


def label_path(image: Path) -> Path:
    """Return the text file of an image: in ``labels`` instead of the last ``images``, or next to it."""
    parts = list(image.parts)
    for i in range(len(parts) - 2, -1, -1):
        if parts[i].lower() == 'images':
            for name in ('labels', 'Labels'):
                if Path(*parts[:i], name).is_dir():
                    parts[i] = name
            break
    return Path(*parts).with_suffix('.txt')


def read_labels(path: Path, size: tuple[int, int], num_classes: int | None) -> list[Box]:
    """Read the objects of an image; labels are class indices as text. Without a file there are none."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f'{str(path)!r} cannot be read: {error}') from error
    boxes = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                boxes.append(_read_line(line.split(), size, num_classes))
            except ValueError as error:
                raise UserError(f'{str(path)!r}, line {number}: {error}') from None
    return boxes


def _read_line(words: Sequence[str], size: tuple[int, int], num_classes: int | None) -> Box:
    if len(words) != 5 and (len(words) < 7 or len(words) % 2 == 0):
        raise ValueError(
            f'has {len(words)} fields: must be a class and 4 numbers (x y width height), '
            'or a class and at least 3 points'
        )
    try:
        label, numbers = float(words[0]), [float(word) for word in words[1:]]
    except ValueError:
        raise ValueError(f'{format_value(" ".join(words))} must be numbers') from None
    if label != int(label) or label < 0 or (num_classes is not None and label >= num_classes):
        allowed = f'0 to {num_classes - 1}' if num_classes is not None else 'an integer from 0'
        raise ValueError(f'class {words[0]} must be {allowed}')
    if not all(math.isfinite(x) and -_TOLERANCE <= x <= 1 + _TOLERANCE for x in numbers):
        outside = next(x for x in numbers if not (math.isfinite(x) and -_TOLERANCE <= x <= 1 + _TOLERANCE))
        raise ValueError(f'coordinate {outside:g} must be from 0 to 1: a fraction of the image')
    width, height = size
    if len(numbers) == 4:
        x, y, w, h = numbers
        return Box(str(int(label)), [(x - w / 2) * width, (y - h / 2) * height, w * width, h * height])
    points = [x * (height if i % 2 else width) for i, x in enumerate(numbers)]
    return Box(str(int(label)), polygon_box(points), [points], polygon_area(points))


def _name(images: Iterable[AnnotatedImage], classes: Sequence[str]) -> list[AnnotatedImage]:
    """Replace class indices by names."""
    return [
        AnnotatedImage(
            image.file_name,
            image.width,
            image.height,
            [Box(classes[int(box.label)], box.xywh, box.segmentation, box.area) for box in image.boxes],
        )
        for image in images
    ]


def _find_description(root: Path) -> Path | None:
    if root.is_file():
        return root if root.suffix.lower() in ('.yaml', '.yml') else None
    named = find_named(root, ('data.yaml', 'data.yml', 'dataset.yaml', 'dataset.yml'))
    if named is not None:
        return named
    others = sorted([*root.glob('*.yaml'), *root.glob('*.yml')]) if root.is_dir() else []
    return others[0] if len(others) == 1 and 'names' in _load_yaml(others[0]) else None


def _load_yaml(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, OSError, UnicodeDecodeError) as error:
        first = ' '.join(str(error).split())
        raise UserError(f'{str(path)!r} is not valid YAML: {first}') from error
    return content if isinstance(content, dict) else {}


def _read_description(path: Path, notes: list[str]) -> tuple[dict[str, list[Path]], tuple[str, ...]]:
    """Return the images by split and the class names of a ``data.yaml``."""
    content = _load_yaml(path)
    names = _class_names(content, path)
    base = path.parent / str(content.get('path') or '')
    # The path is often one on the author's machine.
    base = base if base.is_dir() else path.parent
    found: dict[str, list[Path]] = {}
    for split, keys in (('train', ('train',)), ('val', ('val', 'valid', 'validation')), ('test', ('test',))):
        entry = next((content[key] for key in keys if content.get(key)), None)
        if entry is None:
            continue
        entries = entry if isinstance(entry, list) else [entry]
        folders = [_resolve(str(one), base, path.parent) for one in entries]
        absent = [str(one) for one, folder in zip(entries, folders, strict=True) if folder is None]
        if absent and split == 'test':
            notes.append(f'custom data: test {absent[0]!r} of {str(path)!r} does not exist and is not used')
            continue
        if absent:
            raise UserError(
                f'{split} {absent[0]!r} of {str(path)!r} does not exist: searched in {str(base)!r}'
            )
        found[split] = [
            image for folder in folders if folder is not None for image in _images_of(folder, base)
        ]
        if not found[split]:
            raise UserError(f'{split} {str(entries[0])!r} of {str(path)!r} has no images')
    if not found:
        raise UserError(f'{str(path)!r} has neither train nor val: they must be folders of images')
    if found.get('train') == found.get('val'):
        notes.append(f'custom data: train and val of {str(path)!r} are the same images')
    return found, names


def _class_names(content: dict[str, Any], path: Path) -> tuple[str, ...]:
    names = content.get('names')
    if isinstance(names, dict):
        if sorted(names) != list(range(len(names))):
            raise UserError(
                f'{str(path)!r} has names for {format_value(sorted(names, key=str))}: must be 0, 1, 2, …'
            )
        names = [names[i] for i in range(len(names))]
    if not isinstance(names, list) or not names:
        raise UserError(f'{str(path)!r} has no names: must be the list of class names')
    if 'nc' in content and content['nc'] != len(names):
        raise UserError(f'{str(path)!r} has nc {content["nc"]}, but {len(names)} names')
    return tuple(str(name) for name in names)


def _resolve(entry: str, *bases: Path) -> Path | None:
    """Return the file or folder of an entry. Some exports write ``../train/images`` for ``train/images``."""
    names = [entry, entry.removeprefix('../'), entry.removeprefix('./')]
    found = (base / name for name in names for base in bases if (base / name).exists())
    return next((Path(os.path.abspath(path)) for path in found), None)


def _images_of(path: Path, base: Path) -> list[Path]:
    if path.is_dir():
        inner = find_named(path, ('images',))
        # A split folder with images/ and labels/ in it.
        folder = inner if inner is not None and inner.is_dir() and find_named(path, ('labels',)) else path
        return [folder / name for name in find_images(folder)]
    lines = [line.strip() for line in read_lines(path)]
    found = []
    for line in lines:
        candidates = [parent / line for parent in (path.parent, base)]
        existing = next((one for one in candidates if one.is_file()), candidates[0])
        found.append(Path(os.path.abspath(existing)))
    if lines and not any(one.is_file() for one in found):
        raise UserError(f'none of the images in {str(path)!r} exists: the first is {str(found[0])!r}')
    return found


def _find_pairs(root: Path) -> dict[str, list[Path]]:
    """Return images that have text files: images/SPLIT, SPLIT/images, SPLIT, images, or the folder itself."""
    images = find_named(root, ('images',))
    folders = split_folders(images) if images is not None and images.is_dir() else {}
    if not folders:
        folders = split_folders(root)
    if not folders:
        folders = {'train': images if images is not None and images.is_dir() else root}
    return {
        split: [Path(os.path.abspath(path)) for path in _images_of(folder, root)]
        for split, folder in folders.items()
        if next(_text_files(folder), None) is not None
    }


def _text_files(folder: Path) -> Iterator[Path]:
    """Yield the label files of the images in a folder."""
    for path in _images_of(folder, folder):
        label = label_path(path)
        if label.is_file():
            yield label


def _read_names(root: Path) -> tuple[str, ...]:
    for folder in (root, root / 'labels', *split_folders(root).values()):
        path = find_named(folder, _NAME_FILES)
        if path is not None and path.is_file():
            return tuple(line.strip() for line in read_lines(path))
    return ()
