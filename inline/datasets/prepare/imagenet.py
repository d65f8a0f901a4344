"""ImageNet-1K in class folders or in zips: see :mod:`inline.datasets.imagenet_layout`."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from inline.datasets.imagenet_layout import (
    IMAGE_EXTENSIONS,
    inner_root,
    is_synset,
    map_of,
    read_labels,
    zip_of,
)
from inline.datasets.prepare.images import DecodeImage, Decoding, Files, FolderFiles, ZipFiles, inspect_all
from inline.datasets.prepare.report import Part
from inline.datasets.zip_archive import ZipArchive
from inline.errors import UserError

PAGE = 'https://image-net.org/challenges/LSVRC/2012/2012-downloads.php'
ARCHIVES = {'train': 'ILSVRC2012_img_train.tar', 'val': 'ILSVRC2012_img_val.tar'}


@dataclass(frozen=True)
class ImageNetSpec:
    train: int = 1_281_167
    val: int = 50_000
    classes: int = 1000


PUBLIC = ImageNetSpec()


@dataclass(frozen=True)
class Content:
    """The files of a split.

    Attributes:
        images: Names such as ``n01440764/n01440764_10026.JPEG``, or without a folder.
        folders: Names of the class folders.
        labels: The text file that gives each image its label, if there is one.
    """

    files: Files
    images: list[str]
    folders: set[str]
    labels: Path | None


def check(root: Path, decoding: Decoding | None, spec: ImageNetSpec = PUBLIC) -> list[Part]:
    parts, found = [], {}
    for split, expected in (('train', spec.train), ('val', spec.val)):
        part = Part(split, f'{PAGE}, after registration: {ARCHIVES[split]}')
        parts.append(part)
        content = found[split] = _find(root, split, part)
        if content is None:
            continue
        part.found = f'{len(content.images):,} images in {len(content.folders):,} class folders'
        part.expect('images', len(content.images), expected)
        _check_folders(part, content, spec)
        if content.labels is not None:
            _check_labels(part, content, content.labels, spec)
        if decoding is not None:
            part.add_faults(inspect_all(DecodeImage(content.files), content.images, decoding, part.name))
    if found['train'] and found['val'] and not (found['train'].labels or found['val'].labels):
        train, val = found['train'].folders, found['val'].folders
        parts[1].add('classes that train has and val has not', train - val)
        parts[1].add('classes that val has and train has not', val - train)
    return parts


def _find(root: Path, split: str, part: Part) -> Content | None:
    folder = root / split
    meta = root / 'meta' / f'{split}.txt'
    labels = meta if meta.is_file() else None
    if folder.is_dir():
        images, folders = _list_folder(folder)
        return Content(FolderFiles(folder), images, folders, labels)
    packed = zip_of(folder)
    if packed is None:
        part.problems.append(f'there is neither a folder {split} nor a file {split}.zip')
        return None
    part.name = packed.name
    part.found = f'{packed.stat().st_size / 1e6:,.1f} MB'
    print(f'reading the directory of {part.name} ({part.found})', file=sys.stderr, flush=True)
    try:
        archive = ZipArchive(packed)
    except UserError as error:
        part.problems.append(str(error))
        return None
    inside = inner_root(archive)
    images = [name for name in archive.names(inside) if _is_image(name)]
    return Content(ZipFiles(archive, inside), images, set(archive.folders(inside)), labels or map_of(packed))


def _list_folder(folder: Path) -> tuple[list[str], set[str]]:
    """Images right inside a folder and in its folders, sorted, and the names of these folders."""
    with os.scandir(folder) as entries:
        inside = sorted((entry.name, entry.is_dir()) for entry in entries)
    folders = [name for name, is_folder in inside if is_folder]
    images = [name for name, is_folder in inside if not is_folder and _is_image(name)]
    for name in tqdm(folders, desc=f'listing {folder.name}', unit='class', leave=False):
        images += sorted(f'{name}/{file}' for file in os.listdir(folder / name) if _is_image(file))
    return images, set(folders)


def _is_image(name: str) -> bool:
    return name.lower().endswith(IMAGE_EXTENSIONS)


def _check_folders(part: Part, content: Content, spec: ImageNetSpec) -> None:
    """Each image lies in the folder of its class, unless a file gives the labels."""
    filled = {name.partition('/')[0] for name in content.images if '/' in name}
    part.add(
        'class folders that are not named like n01440764',
        (name for name in content.folders if not is_synset(name)),
    )
    part.add('class folders without an image', content.folders - filled)
    if content.labels is None:
        part.expect('class folders', len(content.folders), spec.classes)
        loose = [name for name in content.images if '/' not in name]
        part.add(f'images in no class folder, without labels in meta/{Path(part.name).stem}.txt', loose)


def _check_labels(part: Part, content: Content, path: Path, spec: ImageNetSpec) -> None:
    """A file of labels names every image, every class, and gives classes the order of their folders."""
    part.found += f', labels from {path.name}'
    try:
        label_of = dict(read_labels(path))
    except ValueError as error:
        part.problems.append(f'{path.name} must have a name and a whole number a line: {error}')
        return
    images = set(content.images)
    part.add(f'images that {path.name} names and that are missing', label_of.keys() - images)
    part.add(f'images that {path.name} does not name', images - label_of.keys())
    wrong = [name for name, label in label_of.items() if not 0 <= label < spec.classes]
    part.add(f'labels that are not from 0 to {spec.classes - 1}', wrong)
    unused = set(range(spec.classes)) - set(label_of.values())
    part.add('labels of no image', (str(label) for label in unused))
    if len(content.folders) == spec.classes:
        order = {name: label for label, name in enumerate(sorted(content.folders))}
        other = [
            f'{name}: {label} for {order[folder]}'
            for name, label in label_of.items()
            if (folder := name.partition('/')[0]) in order and order[folder] != label
        ]
        part.add('labels that are not the place of the class among the sorted classes', other)
