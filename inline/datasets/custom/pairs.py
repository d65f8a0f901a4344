"""Finding images and their label maps in any common pair of folders."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from inline.datasets.custom.layouts import (
    SPLIT_NAMES,
    Layout,
    find_images,
    find_named,
    format_names,
    has_files,
    has_named,
    read_lines,
    split_folders,
    visible_folders,
)
from inline.datasets.image_file import IMAGE_EXTENSIONS
from inline.utils.errors import UserError

IMAGE_FOLDERS = (
    *('images', 'img', 'imgs', 'image', 'jpegimages', 'leftimg8bit', 'img_dir', 'photos', 'rgb'),
    *('input', 'inputs', 'x', 'frames', 'image_2', 'raw'),
)
LABEL_FOLDERS = (
    *('labels', 'annotations', 'masks', 'label', 'annotation', 'mask', 'annot', 'gt', 'gtfine'),
    *('ground_truth', 'groundtruth', 'segmentation', 'segmentations', 'segmentationclass', 'ann_dir'),
    *('segmentationclasspng', 'targets', 'target', 'label_maps', 'labelmaps', 'seg', 'y', 'semantic'),
)
# Endings of a folder of label maps next to the folder of a split, as in train and trainannot.
_LABEL_ENDINGS = ('annot', 'labels', 'label', 'masks', 'mask', 'annotations', 'gt', 'seg')
# Suffixes of the file names of label maps and images that otherwise have the same name.
_LABEL_SUFFIXES = (
    *('_mask', '_masks', '-mask', '_label', '_labels', '_gt', '_l', '_p', '_seg', '_segmentation'),
    *('_annotation', '_annot', '_manual1', '_gtfine_labelids', '_labelids', '_gtfine_labeltrainids'),
)
_IMAGE_SUFFIXES = ('_image', '_img', '_leftimg8bit', '_rgb', '_sat')
LAYOUTS = (
    Layout(
        'images and label maps in two folders (images/train/*.jpg and labels/train/*.png)',
        (
            ('a folder images', has_named(*IMAGE_FOLDERS)),
            (
                'a folder labels, annotations or masks with images',
                lambda root: _find_label_folder(root) is not None,
            ),
            ('images', has_files(*IMAGE_EXTENSIONS)),
        ),
    ),
    Layout(
        'images and label maps by split (train/*.png and trainannot/*.png, or train/images and train/masks)',
        (
            ('a folder train or val', lambda root: bool(split_folders(root))),
            (
                'a folder of label maps such as trainannot or train/masks',
                lambda root: bool(_folders_by_split(root)),
            ),
            ('images', has_files(*IMAGE_EXTENSIONS)),
        ),
    ),
)


class Pair(NamedTuple):
    """Paths of an image and its label map, relative to the root."""

    image: str
    label_map: str


def find_pairs(root: Path) -> dict[str, list[Pair]]:
    """Return the pairs by split; pairs without splits are in 'train'. Empty if there are none."""
    folders = _folders_by_split(root)
    if folders:
        return {split: _pair(root, images, labels) for split, (images, labels) in folders.items()}
    images, labels = find_named(root, IMAGE_FOLDERS), _find_label_folder(root)
    if images is not None and labels is not None:
        lists = _find_lists(root)
        pairs = _pair(root, images, labels, needs_all=not lists)
        return _divide(pairs, lists) if lists else {'train': pairs}
    # Both in one folder, as in an export with NAME.jpg and NAME_mask.png.
    mixed = {split: _pair_mixed(root, folder) for split, folder in split_folders(root).items()}
    mixed = mixed or {'train': _pair_mixed(root, root)}
    return {split: pairs for split, pairs in mixed.items() if pairs}


def _folders_by_split(root: Path) -> dict[str, tuple[Path, Path]]:
    """Return the folders of images and label maps by split."""
    found: dict[str, tuple[Path, Path]] = {}
    images, labels = find_named(root, IMAGE_FOLDERS), _find_label_folder(root)
    if images is not None and labels is not None:
        image_splits, label_splits = split_folders(images), split_folders(labels)
        for split in image_splits:
            if split in label_splits:
                found[split] = image_splits[split], label_splits[split]
            elif split != 'test':
                raise UserError(
                    f'{str(image_splits[split])!r} has no label maps: {str(labels)!r} has no folder {split}'
                )
    if found:
        return found
    siblings = {path.name.lower(): path for path in visible_folders(root)}
    for split, folder in split_folders(root).items():
        inner = find_named(folder, IMAGE_FOLDERS), _find_label_folder(folder)
        if inner[0] is not None and inner[1] is not None:
            found[split] = inner[0], inner[1]
            continue
        names = [f'{folder.name.lower()}{dash}{end}' for end in _LABEL_ENDINGS for dash in ('', '_', '-')]
        beside = next((siblings[name] for name in names if name in siblings), None)
        if beside is not None:
            found[split] = folder, beside
    return found


def _find_label_folder(root: Path) -> Path | None:
    """Return the first folder named after label maps that has images; others may have boxes, as in VOC."""
    found = [find_named(root, [name]) for name in LABEL_FOLDERS]
    folders = [path for path in found if path is not None and path.is_dir()]
    return next((path for path in folders if has_files(*IMAGE_EXTENSIONS)(path)), None)


def _pair(root: Path, images: Path, labels: Path, needs_all: bool = True) -> list[Pair]:
    """Match images and label maps by their names without common suffixes.

    Args:
        root: Paths are relative to it.
        images, labels: Folders, searched at any depth.
        needs_all: Whether an image without a label map is an error.
    """
    label_files: dict[str, list[str]] = {}
    for name in find_images(labels):
        for key in {_key(name), _key(name, _LABEL_SUFFIXES)}:
            label_files.setdefault(key, []).append(name)
    pairs, missing = [], []
    for name in find_images(images):
        found = label_files.get(_key(name)) or label_files.get(_key(name, _IMAGE_SUFFIXES)) or []
        found = [one for one in found if _key(one) == _key(name)] or found
        if len(found) > 1:
            raise UserError(
                f'image {str(images / name)!r} has {len(found)} label maps in {str(labels)!r}: '
                f'{format_names(found)}'
            )
        if found:
            pairs.append(_relative(root, images / name, labels / found[0]))
        else:
            missing.append(name)
    if missing and needs_all:
        raise UserError(
            f'{len(missing)} images of {str(images)!r} have no label map in '
            f'{labels.relative_to(root).as_posix()}; the first is {missing[0]!r}'
        )
    return pairs


def _pair_mixed(root: Path, folder: Path) -> list[Pair]:
    """Match images and label maps in one folder: the label maps have one of the common suffixes."""
    names = find_images(folder)
    label_files = {
        _key(name, _LABEL_SUFFIXES): name for name in names if _key(name, _LABEL_SUFFIXES) != _key(name)
    }
    images = [name for name in names if name not in label_files.values()]
    missing = [name for name in images if _key(name) not in label_files]
    if missing and len(missing) < len(images):
        raise UserError(f'image {str(folder / missing[0])!r} has no label map {_key(missing[0])}_mask.png')
    return (
        []
        if missing
        else [_relative(root, folder / name, folder / label_files[_key(name)]) for name in images]
    )


def _relative(root: Path, image: Path, label_map: Path) -> Pair:
    return Pair(image.relative_to(root).as_posix(), label_map.relative_to(root).as_posix())


def _key(name: str, suffixes: Sequence[str] = ()) -> str:
    stem = str(Path(name).with_suffix(''))
    suffix = next((one for one in suffixes if stem.lower().endswith(one)), '')
    return stem[: len(stem) - len(suffix)]


def _find_lists(root: Path) -> dict[str, Path]:
    """Return the lists of images by split: ImageSets/Segmentation/*.txt, or train.txt and val.txt."""
    for folder in (root / 'ImageSets' / 'Segmentation', root / 'splits', root):
        found = {
            split: path
            for split, names in SPLIT_NAMES.items()
            if (path := find_named(folder, [f'{name}.txt' for name in names])) is not None
        }
        if found:
            return found
    return {}


def _divide(pairs: list[Pair], lists: dict[str, Path]) -> dict[str, list[Pair]]:
    by_stem = {Path(pair.image).stem: pair for pair in pairs}
    found: dict[str, list[Pair]] = {}
    for split, path in lists.items():
        listed = [line.split()[0] for line in read_lines(path)]
        stems = [name if name in by_stem else Path(name).stem for name in listed]
        missing = [name for name in stems if name not in by_stem]
        if missing:
            raise UserError(f'{str(path)!r} lists {missing[0]!r}, which has no image with a label map')
        found[split] = [by_stem[name] for name in stems]
    if 'train' in found:
        return found
    # A list of the validation images alone, as in fast.ai's CamVid.
    held_out = {pair.image for members in found.values() for pair in members}
    return {'train': [pair for pair in pairs if pair.image not in held_out], **found}
