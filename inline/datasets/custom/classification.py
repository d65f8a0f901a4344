"""Images with one label each: class folders, or a CSV file of paths and labels."""

import csv
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from inline.datasets.custom.layouts import (
    CustomData,
    Layout,
    ReadOptions,
    UnknownLayoutError,
    complete_splits,
    find_images,
    format_names,
    has_files,
    read_lines,
    resolve_classes,
    split_folders,
    split_of,
    unknown_layout_error,
    visible_folders,
)
from inline.datasets.image_file import IMAGE_EXTENSIONS
from inline.utils.atomic import atomic_write
from inline.utils.errors import UserError

# Headers of the two columns of a CSV file.
_PATH_COLUMNS = (
    *('path', 'file', 'filename', 'file_name', 'filepath', 'file_path'),
    *('image', 'image_path', 'img', 'img_path', 'image_name', 'filenames'),
)
_LABEL_COLUMNS = ('label', 'class', 'category', 'target', 'class_name', 'label_name', 'labels')
LAYOUTS = (
    Layout(
        'class folders (train/CLASS/*.jpg and val/CLASS/*.jpg, or CLASS/*.jpg)',
        (
            ('images', has_files(*IMAGE_EXTENSIONS)),
            (
                'class folders: images must be in one folder per class',
                lambda root: any(
                    map(visible_folders, split_folders(root).values())
                    if split_folders(root)
                    else visible_folders(root)
                ),
            ),
        ),
    ),
    Layout('CSV (path,label)', (('a .csv file', has_files('.csv')),)),
)


class Labelled(NamedTuple):
    """An image and its class.

    Attributes:
        path: Relative to the folder of the dataset.
        label: Name of the class.
    """

    path: str
    label: str


Splits = dict[str, list[Labelled]]


def read_classification(root: Path, options: ReadOptions) -> CustomData:
    """Read class folders or CSV files; the classes are the names in the training split, sorted."""
    base = root.parent if root.is_file() else root
    notes: list[str] = []
    splits, layout = _read_csv_files(root), 'CSV'
    if not splits:
        splits, layout = _read_folders(root, notes), 'class folders'
    if not splits:
        raise unknown_layout_error(root, LAYOUTS)
    splits = complete_splits(
        splits, root, options, key=lambda sample: sample.path, group=lambda sample: sample.label
    )
    found = {split: {sample.label for sample in samples} for split, samples in splits.items()}
    names = found.get('train') or set().union(*found.values())
    for split, labels in found.items():
        for name in sorted(labels - names):
            raise UserError(f'class {name!r} is in {split} but not in train of {str(root)!r}')
    if 'train' in found and len(names) < 2:
        raise UserError(
            f'{str(root)!r} has one class, {format_names(sorted(names))!r}: at least two are required'
        )
    classes = resolve_classes(_sorted(names, layout), options)
    for split, labels in found.items():
        absent = [name for name in classes if name not in labels]
        if absent:
            notes.append(
                f'custom data: {split} has no image of {len(absent)} classes: {format_names(absent)}'
            )
    settings = {}
    for split, samples in splits.items():
        path = options.folder / f'{split}.txt'
        _write_list(path, samples, classes)
        settings[split] = {
            'data_root': str(base),
            'data_prefix': '',
            'ann_file': str(path),
            'classes': list(classes),
            # By default mmpretrain silently ignores some of the images that are counted here, such as .webp.
            'extensions': list(IMAGE_EXTENSIONS),
        }
    images = {split: len(samples) for split, samples in splits.items()}
    return CustomData(layout, classes, images, settings, notes=tuple(notes))


def _sorted(names: set[str], layout: str) -> list[str]:
    # Folders are sorted as text, as in mmpretrain and torchvision; labels in a file may be numbers.
    if layout == 'CSV' and all(name.isdecimal() for name in names):
        return sorted(names, key=int)
    return sorted(names)


def _write_list(path: Path, samples: list[Labelled], classes: tuple[str, ...]) -> None:
    """Write mmpretrain's annotation file: a path, a space and a label per line."""
    labels = {name: i for i, name in enumerate(classes)}
    for sample in samples:
        if '\n' in sample.path or '\r' in sample.path:
            raise UserError(f'image {sample.path!r} has a line break in its name: rename it')
    lines = ''.join(f'{sample.path} {labels[sample.label]}\n' for sample in samples)
    atomic_write(path, lines.encode('utf-8', 'surrogateescape'))


def _read_folders(root: Path, notes: list[str]) -> Splits:
    splits: Splits = {}
    for split, folder in split_folders(root).items():
        samples = _read_annotated_folder(folder) or _read_class_folders(root, folder)
        if samples and {sample.label for sample in samples} == {'images'}:
            # As in Tiny-ImageNet, whose test images have no labels.
            samples = []
        if samples:
            splits[split] = samples
        elif find_images(folder):
            if split != 'test':
                raise UnknownLayoutError(
                    f'{str(folder)!r} has no images in class folders: must be CLASS/*.jpg in {split}'
                )
            notes.append(f'custom data: {str(folder)!r} has no class folders and is not used')
    if splits:
        return splits
    samples = _read_class_folders(root, root) if root.is_dir() else []
    return {'train': samples} if samples else {}


def _read_class_folders(root: Path, folder: Path) -> list[Labelled]:
    samples = []
    empty = []
    for class_folder in visible_folders(folder):
        images = find_images(class_folder)
        prefix = class_folder.relative_to(root).as_posix()
        samples += [Labelled(f'{prefix}/{name}', class_folder.name) for name in images]
        if not images:
            empty.append(class_folder)
    is_train = split_of(folder.name) in ('train', None)
    if samples and empty and is_train:
        # In a dataset for another task, this may be a folder of labels.
        raise UnknownLayoutError(
            f'class folder {str(empty[0])!r} has no images ({", ".join(IMAGE_EXTENSIONS)})'
        )
    return samples


def _read_annotated_folder(folder: Path) -> list[Labelled]:
    """Read the labels of Tiny-ImageNet's validation images from ``val/val_annotations.txt``."""
    path = folder / f'{folder.name}_annotations.txt'
    if not path.is_file():
        return []
    # Imports mmpretrain.
    from inline.datasets.tiny_imagenet import read_boxes

    return [
        Labelled(f'{folder.name}/images/{name}', wnid)
        for _, name, (wnid,), _ in read_boxes(str(path), fields=1)
    ]


def _read_csv_files(root: Path) -> Splits:
    if root.is_file():
        paths = {'train': root} if root.suffix.lower() == '.csv' else {}
        # The file of one split, with the others next to it.
        split = split_of(root.stem)
        if paths and split is not None:
            paths = _split_csv_files(root.parent)
    else:
        paths = _split_csv_files(root)
        files = sorted(root.glob('*.csv'))
        if not paths and len(files) == 1 and not split_folders(root):
            paths = {'train': files[0]}
    base = root.parent if root.is_file() else root
    return {split: _read_csv(path, base) for split, path in paths.items()}


def _split_csv_files(root: Path) -> dict[str, Path]:
    found = {split_of(path.stem): path for path in sorted(root.glob('*.csv'))}
    return {split: found[split] for split in ('train', 'val', 'test') if split in found}


def _read_csv(path: Path, base: Path) -> list[Labelled]:
    """Read the columns of paths and labels; paths are relative to the file."""
    rows = list(csv.reader(read_lines(path)))
    rows = [[cell.strip() for cell in row] for row in rows if any(cell.strip() for cell in row)]
    if not rows:
        raise UserError(f'{str(path)!r} is empty: must have the columns path and label')
    header = [cell.lower() for cell in rows[0]]
    columns = [
        next((header.index(name) for name in names if name in header), None)
        for names in (_PATH_COLUMNS, _LABEL_COLUMNS)
    ]
    has_header = None not in columns
    if not has_header:
        if len(header) != 2 or not header[0].endswith(IMAGE_EXTENSIONS):
            raise UserError(
                f'{str(path)!r} has the columns {format_names(rows[0])}: must have path and label'
            )
        columns = [0, 1]
    samples = []
    for number, row in enumerate(rows[has_header:], start=1 + has_header):
        cells = [row[column] if column is not None and column < len(row) else '' for column in columns]
        if not all(cells):
            raise UserError(f'{str(path)!r}, row {number}: {",".join(row)!r} must have a path and a label')
        samples.append(Labelled(cells[0], cells[1]))
    if not samples:
        raise UserError(f'{str(path)!r} lists no images')
    repeated = [name for name, count in Counter(sample.path for sample in samples).items() if count > 1]
    if repeated:
        raise UserError(f'{str(path)!r}: {repeated[0]!r} is listed more than once')
    # Individual missing files are skipped in training, as in all formats.
    if not any((base / sample.path).is_file() for sample in samples):
        raise UserError(
            f'{str(path)!r}: none of its images exists, the first is {str(base / samples[0].path)!r}: '
            'paths must be relative to the folder of the file'
        )
    return samples
