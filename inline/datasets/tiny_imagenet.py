"""Tiny-ImageNet in its published layout: 200 classes, 64×64 pixels, one box per image.

The folder ``tiny-imagenet-200`` holds ``train/WNID/images/*.JPEG`` with ``train/WNID/WNID_boxes.txt``,
``val/images/*.JPEG`` with ``val/val_annotations.txt``, ``wnids.txt`` and ``words.txt``. The zip of the same
name is read as it is. A label is the index of the class in sorted order of the WordNet ids, as in ImageNet.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmengine.fileio import get_text, join_path

from inline.datasets.imagenet import zip_uri
from inline.datasets.zip_archive import zip_of
from inline.openmmlab.patches import apply_patches
from inline.registry import DATASETS
from inline.utils.errors import UserError

# A spawned worker imports this module first, to unpickle the dataset, before any patches are applied.
apply_patches()

from mmpretrain.datasets import BaseDataset  # noqa: E402

SIDE = 64
SPLITS = ('train', 'val')


@dataclass(frozen=True)
class Sample:
    """An image with its class and the box of its object.

    Attributes:
        path: Path or address of the image.
        label: Index of the class.
        box: Pixels (x1, y1, x2, y2); x2 and y2 are exclusive.
    """

    path: str
    label: int
    box: tuple[int, int, int, int]


def find_root(data_root: str | Path) -> str:
    """Return the folder of the dataset, or the address of its zip if there is no folder."""
    folder = Path(data_root)
    path = folder if folder.is_file() else zip_of(folder)
    return str(folder) if path is None else zip_uri(path)


def read_classes(data_root: str | Path) -> dict[str, str]:
    """Return the first name of every class by WordNet id, in label order."""
    root = find_root(data_root)
    names = {}
    for number, line in _read_lines(join_path(root, 'words.txt')):
        wnid, tab, synonyms = line.partition('\t')
        if not tab:
            raise UserError(
                f'words.txt of {root}, line {number}: {line!r} must be a WordNet id, a tab and names'
            )
        names[wnid] = synonyms.partition(',')[0].strip()
    wnids = sorted(line for _, line in _read_lines(join_path(root, 'wnids.txt')))
    return {wnid: names.get(wnid, wnid) for wnid in wnids}


def read_split(data_root: str | Path, split: str) -> list[Sample]:
    """Return the samples of ``'train'`` or ``'val'`` in the order of the annotation files."""
    if split not in SPLITS:
        raise UserError(f'split {split!r} of Tiny-ImageNet: must be one of {", ".join(SPLITS)}')
    root = find_root(data_root)
    label_of = {wnid: label for label, wnid in enumerate(read_classes(data_root))}
    if split == 'val':
        path = join_path(root, 'val', 'val_annotations.txt')
        return [
            Sample(join_path(root, 'val', 'images', name), _label(label_of, wnid, path, number), box)
            for number, name, (wnid,), box in read_boxes(path, fields=1)
        ]
    return [
        Sample(join_path(root, 'train', wnid, 'images', name), label, box)
        for wnid, label in label_of.items()
        for _, name, _, box in read_boxes(join_path(root, 'train', wnid, f'{wnid}_boxes.txt'), fields=0)
    ]


def read_boxes(path: str, fields: int) -> list[tuple[int, str, list[str], tuple[int, int, int, int]]]:
    """Return line number, image name, more fields and box of every line of a tab-separated file."""
    rows = []
    for number, line in _read_lines(path):
        name, *words = line.split('\t')
        more, corners = words[:fields], words[fields:]
        if len(corners) != 4 or not all(corner.isdecimal() for corner in corners):
            raise UserError(f'{path}, line {number}: {line!r} must end with four integers separated by tabs')
        x1, y1, x2, y2 = (int(corner) for corner in corners)
        # The last row and column of the box are inclusive in the file: 0 0 63 63 is the whole image.
        rows.append((number, name, more, (x1, y1, x2 + 1, y2 + 1)))
    return rows


@DATASETS.register_module()
class TinyImageNet(BaseDataset):
    """Tiny-ImageNet for classification.

    Args:
        data_root: The folder ``tiny-imagenet-200``, or the zip next to it or in its place.
        split: ``'train'`` (100,000 images) or ``'val'`` (10,000).
        pipeline: Transforms.
    """

    def __init__(self, data_root: str, split: str, pipeline: Any = (), **kwargs: Any) -> None:
        self.split = split
        super().__init__(
            ann_file='',
            data_root=data_root,
            metainfo={'classes': tuple(read_classes(data_root).values())},
            pipeline=pipeline,
            **kwargs,
        )

    def load_data_list(self) -> list[dict[str, Any]]:
        samples = read_split(self.data_root, self.split)
        return [{'img_path': sample.path, 'gt_label': sample.label} for sample in samples]


def _label(label_of: dict[str, int], wnid: str, path: str, number: int) -> int:
    if wnid not in label_of:
        raise UserError(f'{path}, line {number}: class {wnid!r} is not in wnids.txt')
    return label_of[wnid]


def _read_lines(path: str) -> list[tuple[int, str]]:
    """Return the lines of a text file that are not empty, with their numbers from 1."""
    try:
        text = get_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f'{path} cannot be read: {error}') from error
    return [(number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
