"""COCO 2017: images, and their boxes and masks in two JSON files."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from inline.datasets.prepare.inspection import (
    Decoding,
    PathReport,
    folder_reader,
    image_decoder,
    inspect_all,
    list_folder,
)
from inline.datasets.validation.coco import check_tables, read_coco
from inline.utils.errors import UserError

IMAGES_SOURCE = 'http://images.cocodataset.org/zips/{}.zip'
ANNOTATIONS_SOURCE = 'http://images.cocodataset.org/annotations/annotations_trainval2017.zip'


@dataclass(frozen=True)
class CocoSpec:
    """Expected content.

    Attributes:
        images: Number of images by split.
        categories: Number of categories.
        flat_boxes: Ids of images that have a box of height 0 in the public file. mmdet drops these boxes. In
            other images they are a problem.
    """

    images: Mapping[str, int] = field(default_factory=lambda: {'train2017': 118_287, 'val2017': 5_000})
    categories: int = 80
    flat_boxes: frozenset[int] = frozenset({200365, 550395})


PUBLIC = CocoSpec()


def check(root: Path, decoding: Decoding | None, spec: CocoSpec = PUBLIC) -> list[PathReport]:
    """Check a copy of the dataset; `decoding` is None to not open images."""
    folders, files = [], []
    for split, expected in spec.images.items():
        folder, names = list_folder(root, split, '.jpg', 'images', expected, IMAGES_SOURCE.format(split))
        file, annotated = _check_file(root, split, expected, spec)
        if names and annotated:
            folder.add(f'images in {file.name} that are missing', annotated - set(names))
            folder.add(f'images that are not in {file.name}', set(names) - annotated)
        if decoding is not None:
            decode = image_decoder(folder_reader(root / split))
            folder.add_file_problems(inspect_all(decode, names, decoding, split))
        folders.append(folder)
        files.append(file)
    return [*folders, *files]


def _check_file(root: Path, split: str, expected: int, spec: CocoSpec) -> tuple[PathReport, set[str]]:
    """Return the report on an annotation file and the image names in it. Training uses the same checks."""
    report = PathReport(f'annotations/instances_{split}.json', ANNOTATIONS_SOURCE)
    path = root / report.name
    if not path.is_file():
        report.problems.append('the file is missing')
        return report, set()
    report.found = f'{path.stat().st_size / 1e6:,.1f} MB'
    print(f'reading {report.name} ({report.found})', file=sys.stderr, flush=True)
    try:
        tables = read_coco(path)
        check_tables(tables, path, [entry['name'] for entry in tables['categories']], with_masks=True)
    except UserError as error:
        report.problems.append(str(error).removeprefix(repr(str(path))).lstrip(': '))
        return report, set()
    images, annotations, categories = (tables[name] for name in ('images', 'annotations', 'categories'))
    report.found = f'{len(annotations):,} objects in {len(images):,} images, {len(categories)} categories'
    report.expect('images', len(images), expected)
    report.expect('categories', len(categories), spec.categories)
    flat = (
        f'id {entry["id"]}: {entry["bbox"]}'
        for entry in annotations
        if min(entry['bbox'][2:]) <= 0 and entry['image_id'] not in spec.flat_boxes
    )
    report.add('boxes without a positive size', flat)
    return report, {entry['file_name'] for entry in images}
