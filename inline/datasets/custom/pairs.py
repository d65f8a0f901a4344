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
# Of a folder of label maps next to the folder of a split, as in train and trainannot.
_LABEL_ENDINGS = ('annot', 'labels', 'label', 'masks', 'mask', 'annotations', 'gt', 'seg')
# Of file names of label maps and images that otherwise have the same name.
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
            ('a folder labels, annotations or masks', has_named(*LABEL_FOLDERS)),
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
        return {split: _pair(root, *pair) for split, pair in folders.items()}
    images, labels = find_named(root, IMAGE_FOLDERS), _find_label_folder(root)
    if images is not None and labels is not None and images.is_dir() and labels.is_dir():
        return _listed(root, _pair(root, images, labels))
    # Both in one folder, as in an export with NAME.jpg and NAME_mask.png.
    mixed = {split: _pair(root, folder, folder) for split, folder in split_folders(root).items()}
    mixed = mixed or {'train': _pair(root, root, root)}
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


def _pair(root: Path, images: Path, labels: Path) -> list[Pair]:
    """Match images and label maps by their names without common suffixes."""
    is_mixed = images == labels
    label_files: dict[str, list[str]] = {}
    label_names = find_images(labels)
    for name in label_names:
        keys = (
            [_key(name, _LABEL_SUFFIXES)]
            if is_mixed
            else list(dict.fromkeys([_key(name), _key(name, _LABEL_SUFFIXES)]))
        )
        for key in keys:
            if not is_mixed or key != _key(name):
                label_files.setdefault(key, []).append(name)
    used = {name for names in label_files.values() for name in names} if is_mixed else set()
    pairs, missing = [], []
    for name in find_images(images):
        if is_mixed and name in used:
            continue
        candidates = label_files.get(_key(name)) or label_files.get(_key(name, _IMAGE_SUFFIXES)) or []
        exact = [one for one in candidates if _key(one) == _key(name)]
        candidates = exact or candidates
        if len(candidates) > 1:
            raise UserError(
                f'image {str(images / name)!r} has {len(candidates)} label maps in {str(labels)!r}: '
                f'{format_names(candidates)}'
            )
        if not candidates:
            missing.append(name)
            continue
        pairs.append(
            Pair(
                *(
                    (folder / one).relative_to(root).as_posix()
                    for folder, one in ((images, name), (labels, candidates[0]))
                )
            )
        )
    if missing and (pairs or not is_mixed):
        raise UserError(
            f'{len(missing)} images of {str(images)!r} have no label map in '
            f'{labels.relative_to(root).as_posix()}; the first is {missing[0]!r}'
        )
    return pairs


def _key(name: str, suffixes: Sequence[str] = ()) -> str:
    stem = str(Path(name).with_suffix(''))
    suffix = next((one for one in suffixes if stem.lower().endswith(one)), '')
    return stem[: len(stem) - len(suffix)]


def _listed(root: Path, pairs: list[Pair]) -> dict[str, list[Pair]]:
    """Divide pairs by lists of names: ImageSets/Segmentation/*.txt as in VOC, or train.txt and val.txt."""
    folders = (root / 'ImageSets' / 'Segmentation', root / 'splits', root)
    by_stem = {Path(pair.image).stem: pair for pair in pairs}
    found: dict[str, list[Pair]] = {}
    for folder in folders:
        for split, names in SPLIT_NAMES.items():
            path = find_named(folder, [f'{name}.txt' for name in names])
            if path is None or found.get(split):
                continue
            listed = [line.split()[0] for line in path.read_text().splitlines() if line.strip()]
            stems = [name if name in by_stem else Path(name).stem for name in listed]
            missing = [name for name in stems if name not in by_stem]
            if missing:
                raise UserError(f'{str(path)!r} lists {missing[0]!r}, which has no image with a label map')
            found[split] = [by_stem[name] for name in stems]
        if found:
            break
    if not found:
        return {'train': pairs}
    if 'train' not in found:
        # A list of the validation images alone, as in fast.ai's CamVid.
        listed_images = {pair.image for members in found.values() for pair in members}
        found = {'train': [pair for pair in pairs if pair.image not in listed_images], **found}
    return {split: found[split] for split in SPLIT_NAMES if split in found}
