"""ImageNet-1K in class folders or zips; see :mod:`inline.datasets.zip_archive` for the layout."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from inline.datasets.image_file import MMPRETRAIN_EXTENSIONS
from inline.datasets.prepare.inspection import (
    Decoding,
    PathReport,
    ReadFile,
    folder_reader,
    image_decoder,
    inspect_all,
    zip_reader,
)
from inline.datasets.zip_archive import ZipArchive, inner_root, is_synset, label_file_of, read_labels, zip_of
from inline.utils.errors import UserError

PAGE = 'https://image-net.org/challenges/LSVRC/2012/2012-downloads.php'
ARCHIVES = {'train': 'ILSVRC2012_img_train.tar', 'val': 'ILSVRC2012_img_val.tar'}


@dataclass(frozen=True)
class ImageNetSpec:
    """Expected counts."""

    train: int = 1_281_167
    val: int = 50_000
    classes: int = 1000


PUBLIC = ImageNetSpec()


@dataclass(frozen=True)
class SplitContent:
    """The files of a split.

    Attributes:
        read: Reads an image by name.
        images: Names such as ``n01440764/n01440764_10026.JPEG``, or without a folder.
        folders: Names of the class folders.
        label_file: The text file with the labels, if there is one.
    """

    read: ReadFile
    images: list[str]
    folders: set[str]
    label_file: Path | None


def check(root: Path, decoding: Decoding | None, spec: ImageNetSpec = PUBLIC) -> list[PathReport]:
    """Check a copy of the dataset; `decoding` is None to not open images."""
    reports, found = [], {}
    for split, expected in (('train', spec.train), ('val', spec.val)):
        report = PathReport(split, f'{PAGE}, after registration: {ARCHIVES[split]}')
        reports.append(report)
        content = found[split] = _find_split(root, split, report)
        if content is None:
            continue
        report.found = f'{len(content.images):,} images in {len(content.folders):,} class folders'
        report.expect('images', len(content.images), expected)
        _check_folders(report, content, spec)
        if content.label_file is not None:
            _check_labels(report, content, content.label_file, spec)
        if decoding is not None:
            decode = image_decoder(content.read)
            report.add_file_problems(inspect_all(decode, content.images, decoding, report.name))
    train, val = found['train'], found['val']
    if train and val and not (train.label_file or val.label_file):
        reports[1].add('classes only in train', train.folders - val.folders)
        reports[1].add('classes only in val', val.folders - train.folders)
    return reports


def _find_split(root: Path, split: str, report: PathReport) -> SplitContent | None:
    folder = root / split
    meta = root / 'meta' / f'{split}.txt'
    label_file = meta if meta.is_file() else None
    if folder.is_dir():
        images, folders = _list_images(folder)
        return SplitContent(folder_reader(folder), images, folders, label_file)
    path = zip_of(folder)
    if path is None:
        report.problems.append(f'there is no folder {split} and no file {split}.zip')
        return None
    report.name = path.name
    report.found = f'{path.stat().st_size / 1e6:,.1f} MB'
    print(f'reading the directory of {report.name} ({report.found})', file=sys.stderr, flush=True)
    try:
        archive = ZipArchive(path)
    except UserError as error:
        report.problems.append(str(error))
        return None
    inside = inner_root(archive)
    images = [name for name in archive.names(inside) if _is_image(name)]
    folders = set(archive.folders(inside))
    return SplitContent(zip_reader(archive, inside), images, folders, label_file or label_file_of(path))


def _list_images(folder: Path) -> tuple[list[str], set[str]]:
    """Return the images in a folder and its direct subfolders, and the names of the subfolders."""
    with os.scandir(folder) as entries:
        inside = sorted((entry.name, entry.is_dir()) for entry in entries)
    folders = [name for name, is_folder in inside if is_folder]
    images = [name for name, is_folder in inside if not is_folder and _is_image(name)]
    for name in tqdm(folders, desc=f'listing {folder.name}', unit='class', leave=False):
        images += sorted(f'{name}/{file}' for file in os.listdir(folder / name) if _is_image(file))
    return images, set(folders)


def _is_image(name: str) -> bool:
    return name.lower().endswith(MMPRETRAIN_EXTENSIONS)


def _check_folders(report: PathReport, content: SplitContent, spec: ImageNetSpec) -> None:
    """Check that every image is in a class folder, unless a file gives the labels."""
    filled = {name.partition('/')[0] for name in content.images if '/' in name}
    misnamed = (name for name in content.folders if not is_synset(name))
    report.add('class folders not named like n01440764', misnamed)
    report.add('class folders without images', content.folders - filled)
    if content.label_file is None:
        report.expect('class folders', len(content.folders), spec.classes)
        outside = [name for name in content.images if '/' not in name]
        report.add(
            f'images outside class folders, without labels in meta/{Path(report.name).stem}.txt', outside
        )


def _check_labels(report: PathReport, content: SplitContent, path: Path, spec: ImageNetSpec) -> None:
    """Check that a label file has every image and every class, in the order of the class folders."""
    report.found += f', labels from {path.name}'
    try:
        label_of = dict(read_labels(path))
    except ValueError as error:
        report.problems.append(f'{path.name} must have a name and an integer per line: {error}')
        return
    images = set(content.images)
    report.add(f'images in {path.name} that are missing', label_of.keys() - images)
    report.add(f'images that are not in {path.name}', images - label_of.keys())
    invalid = [name for name, label in label_of.items() if not 0 <= label < spec.classes]
    report.add(f'labels that are not from 0 to {spec.classes - 1}', invalid)
    unused = set(range(spec.classes)) - set(label_of.values())
    report.add('labels without images', (str(label) for label in unused))
    if len(content.folders) == spec.classes:
        index_of = {name: label for label, name in enumerate(sorted(content.folders))}
        different = [
            f'{name}: {label} instead of {index_of[folder]}'
            for name, label in label_of.items()
            if (folder := name.partition('/')[0]) in index_of and index_of[folder] != label
        ]
        report.add('labels that differ from the index of the sorted class folder', different)
