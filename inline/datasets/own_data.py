"""What a user's own data set says about itself: classes, number of images, colours, where things are."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import hsv_to_rgb
from PIL import Image, UnidentifiedImageError
from tqdm import tqdm

from inline.datasets.coco_check import read_tables
from inline.errors import UserError

SPLITS = ('train', 'val')
IMAGE_SUFFIXES = ('.jpg', '.jpeg', '.png', '.bmp', '.webp', '.tif', '.tiff', '.ppm', '.pgm')
IGNORED_LABEL = 255
# Where people put the annotations and the images of a split, in the order tried.
_COCO_FILES = (
    '{split}.json',
    'annotations/{split}.json',
    'annotations/instances_{split}.json',
    'annotations/instances_{split}2017.json',
    '{split}/_annotations.coco.json',
)
_COCO_FOLDERS = ('{split}', 'images/{split}', '{split}2017', 'images', '.')
_SPLIT_NAMES = {'train': ('train', 'training'), 'val': ('val', 'validation', 'valid')}
_IMAGE_FOLDERS, _LABEL_FOLDERS = ('images', 'img'), ('labels', 'annotations', 'masks')


@dataclass(frozen=True)
class ImageFolder:
    """Images sorted into a folder for each class: ``train/CLASS/…`` and ``val/CLASS/…``."""

    classes: tuple[str, ...]
    counts: dict[str, int]


@dataclass(frozen=True)
class CocoFormat:
    """Boxes, perhaps masks, in COCO's format; by split the file and the folder, relative to the root."""

    classes: tuple[str, ...]
    counts: dict[str, int]
    files: dict[str, str]
    folders: dict[str, str]
    has_masks: bool


@dataclass(frozen=True)
class LabelMaps:
    """Images and label maps of the same names, whose pixels are numbers of classes."""

    classes: tuple[str, ...]
    counts: dict[str, int]
    palette: list[list[int]]
    image_folders: dict[str, str]
    label_folders: dict[str, str]
    image_suffix: str
    label_suffix: str


OwnData = ImageFolder | CocoFormat | LabelMaps


def read_image_folder(root: Path) -> ImageFolder:
    """The classes are the folders of the training set, in the order of their names."""
    _check_root(root)
    counts: dict[str, Counter[str]] = {}
    for split in SPLITS:
        folder = root / split
        if not folder.is_dir():
            raise UserError(
                f'{str(root)!r} has no folder {split!r}: images belong in train/CLASS/ and val/CLASS/'
            )
        counts[split] = Counter(
            path.relative_to(folder).parts[0]
            for path in folder.rglob('*')
            if path.suffix.lower() in IMAGE_SUFFIXES and path.parent != folder
        )
        if not counts[split]:
            raise UserError(f'{str(folder)!r} has no images in folders of classes: expected CLASS/*.jpg')
    unknown = sorted(counts['val'].keys() - counts['train'].keys())
    if unknown:
        raise UserError(
            f'class {unknown[0]!r} is in {str(root / "val")!r} but not in {str(root / "train")!r}'
        )
    return ImageFolder(tuple(sorted(counts['train'])), {split: counts[split].total() for split in SPLITS})


def read_coco_format(root: Path) -> CocoFormat:
    """The classes are the categories that training annotations have, in the order of the file."""
    _check_root(root)
    files = {
        split: _first(root, (name.format(split=split) for name in _COCO_FILES), f'annotations of {split}')
        for split in SPLITS
    }
    contents = {split: read_tables(root / files[split]) for split in SPLITS}
    folders = {split: _folder_of(root, split, contents[split]['images'], files[split]) for split in SPLITS}
    train = contents['train']
    used = {annotation['category_id'] for annotation in train['annotations']}
    classes = tuple(category['name'] for category in train['categories'] if category['id'] in used)
    if not classes:
        raise UserError(f'{str(root / files["train"])!r} has no annotation of any of its categories')
    return CocoFormat(
        classes,
        {split: len(contents[split]['images']) for split in SPLITS},
        files,
        folders,
        all(annotation.get('segmentation') for annotation in train['annotations']),
    )


def read_label_maps(root: Path) -> LabelMaps:
    """Classes are named in ``classes.txt``, one a line; without it they are numbered by the label maps."""
    _check_root(root)
    image_folders, label_folders = (
        {
            split: _first(
                root,
                (f'{name}/{part}' for name in names for part in _SPLIT_NAMES[split]),
                f'{what} of {split}',
            )
            for split in SPLITS
        }
        for names, what in ((_IMAGE_FOLDERS, 'images'), (_LABEL_FOLDERS, 'label maps'))
    )
    image_suffix = _only_suffix(root, image_folders.values())
    label_suffix = _only_suffix(root, label_folders.values())
    label_maps = []
    for split in SPLITS:
        images = {path.stem for path in (root / image_folders[split]).glob(f'*{image_suffix}')}
        labels = {path.stem: path for path in (root / label_folders[split]).glob(f'*{label_suffix}')}
        lonely = sorted(images - labels.keys())
        if lonely:
            raise UserError(
                f'{len(lonely)} images of {str(root / image_folders[split])!r} have no label map in '
                f'{label_folders[split]}, the first is {lonely[0] + image_suffix!r}'
            )
        label_maps += [labels[name] for name in sorted(images)]
    highest = _highest_labels(label_maps)
    classes = _class_names(root / 'classes.txt', highest)
    return LabelMaps(
        classes,
        {split: len(list((root / image_folders[split]).glob(f'*{image_suffix}'))) for split in SPLITS},
        _palette(label_maps[0], len(classes)),
        image_folders,
        label_folders,
        image_suffix,
        label_suffix,
    )


def _check_root(root: Path) -> None:
    if not root.is_dir():
        raise UserError(f'data folder {str(root)!r} does not exist: name yours with --data-root')


def _first(root: Path, names: Iterable[str], what: str) -> str:
    tried = list(names)
    for name in tried:
        if (root / name).exists():
            return name
    raise UserError(f'{str(root)!r} has no {what}: looked for {", ".join(tried)}')


def _folder_of(root: Path, split: str, images: Sequence[Mapping[str, Any]], file: str) -> str:
    """The folder that file names are relative to: the first in which the first image is."""
    folders = [name.format(split=split) for name in _COCO_FOLDERS]
    name = images[0]['file_name']
    for folder in folders:
        if (root / folder / name).is_file():
            return folder
    raise UserError(
        f'image {name!r} of {file} is in none of the folders {", ".join(folders)} of {str(root)!r}'
    )


def _only_suffix(root: Path, folders: Iterable[str]) -> str:
    """The one suffix of all images of some folders: mmseg's data sets know one."""
    folders = list(folders)
    found = Counter(
        path.suffix
        for folder in folders
        for path in (root / folder).iterdir()
        if path.suffix.lower() in IMAGE_SUFFIXES
    )
    if len(found) != 1:
        what = ' and '.join(f'{count} {suffix}' for suffix, count in found.most_common()) or 'no'
        raise UserError(f'{" and ".join(folders)} of {str(root)!r} hold {what} files: must be of one kind')
    return next(iter(found))


def _highest_labels(paths: list[Path]) -> dict[Path, int]:
    """The highest label of each map but for the one that is ignored."""
    with ThreadPoolExecutor() as pool:
        found = tqdm(
            pool.map(_highest_label, paths), total=len(paths), desc='label maps', unit='map', delay=2
        )
        return dict(zip(paths, found, strict=True))


def _highest_label(path: Path) -> int:
    try:
        with Image.open(path) as image:
            labels = np.asarray(image)
    except (UnidentifiedImageError, OSError) as error:
        raise UserError(f'label map {str(path)!r} cannot be read: {error}') from error
    if labels.ndim != 2:
        raise UserError(
            f'label map {str(path)!r} has {labels.shape[-1]} channels: must have one, of numbers of classes'
        )
    known = labels[labels != IGNORED_LABEL]
    return int(known.max()) if known.size else -1


def _class_names(path: Path, highest: Mapping[Path, int]) -> tuple[str, ...]:
    worst = max(highest, key=lambda label_map: highest[label_map])
    if highest[worst] < 0:
        raise UserError(
            f'no label map has a label, all pixels are {IGNORED_LABEL} for none: the first is {str(worst)!r}'
        )
    if not path.is_file():
        return tuple(f'class {i}' for i in range(highest[worst] + 1))
    names = tuple(line.strip() for line in path.read_text().splitlines() if line.strip())
    if highest[worst] >= len(names):
        raise UserError(
            f'label {highest[worst]} in {str(worst)!r}: {path.name} names {len(names)} classes, '
            f'so labels must be 0 to {len(names) - 1}, or {IGNORED_LABEL} for none'
        )
    return names


def _palette(label_map: Path, num_classes: int) -> list[list[int]]:
    """The colours inside the label map if it has some, else colours of many hues."""
    with Image.open(label_map) as image:
        stored = image.getpalette() if image.mode == 'P' else None
    if stored and len(stored) >= 3 * num_classes:
        return [stored[3 * i : 3 * i + 3] for i in range(num_classes)]
    # Steps of the golden ratio keep the hues of neighbours apart, however many there are.
    hues = (np.arange(num_classes) * 0.618) % 1
    colours = hsv_to_rgb(np.stack([hues, np.full(num_classes, 0.7), np.full(num_classes, 0.9)], axis=-1))
    return [[round(255 * float(value)) for value in colour] for colour in colours]
