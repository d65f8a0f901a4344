"""COCO 2017: images, and boxes and masks of their objects in two JSON files."""

import json
import math
import sys
from collections import Counter
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from tqdm import tqdm

from inline.datasets.prepare.images import DecodeImage, Decoding, FolderFiles, inspect_all
from inline.datasets.prepare.report import Fault, Part

IMAGES_SOURCE = 'http://images.cocodataset.org/zips/{}.zip'
ANNOTATIONS_SOURCE = 'http://images.cocodataset.org/annotations/annotations_trainval2017.zip'
_TABLES = ('images', 'annotations', 'categories')

Row = dict[str, Any]
Tables = dict[str, list[Row]]


@dataclass(frozen=True)
class CocoSpec:
    """What the public data set has.

    Attributes:
        images: Number of images by split.
        categories: Number of categories.
        flat_boxes: Images with a box of no height in the public annotations. The toolbox leaves such boxes
            out, so they are no problem; in other images they are.
    """

    images: Mapping[str, int] = field(default_factory=lambda: {'train2017': 118_287, 'val2017': 5_000})
    categories: int = 80
    flat_boxes: frozenset[int] = frozenset({200365, 550395})


PUBLIC = CocoSpec()


def check(root: Path, decoding: Decoding | None, spec: CocoSpec = PUBLIC) -> list[Part]:
    folders, files = [], []
    for split, expected in spec.images.items():
        folder, in_folder = _check_folder(root, split, expected)
        file, annotated = _check_file(root, split, expected, spec)
        if in_folder and annotated:
            folder.add(f'images that {file.name} names and that are missing', annotated - in_folder)
            folder.add(f'images that {file.name} does not name', in_folder - annotated)
        if decoding is not None:
            inspect = DecodeImage(FolderFiles(root / split))
            folder.add_faults(inspect_all(inspect, sorted(in_folder), decoding, split))
        folders.append(folder)
        files.append(file)
    return [*folders, *files]


def _check_folder(root: Path, split: str, expected: int) -> tuple[Part, set[str]]:
    part, folder = Part(split, IMAGES_SOURCE.format(split)), root / split
    if not folder.is_dir():
        part.problems.append(f'the folder is missing, {expected:,} images expected')
        return part, set()
    names = {path.name for path in folder.iterdir() if path.suffix == '.jpg'}
    part.found = f'{len(names):,} images'
    part.expect('images', len(names), expected)
    return part, names


def _check_file(root: Path, split: str, expected: int, spec: CocoSpec) -> tuple[Part, set[str]]:
    """The findings, and the names of the images that the file knows."""
    part = Part(f'annotations/instances_{split}.json', ANNOTATIONS_SOURCE)
    tables = _read(root / part.name, part)
    if tables is None:
        return part, set()
    images, annotations, categories = (tables[name] for name in _TABLES)
    part.found = f'{len(annotations):,} objects in {len(images):,} images, {len(categories)} categories'
    part.expect('images', len(images), expected)
    part.expect('categories', len(categories), spec.categories)
    for name, rows in tables.items():
        repeated = (id_ for id_, count in Counter(row['id'] for row in rows).items() if count > 1)
        part.add(f'ids of {name} that are not unique', map(str, repeated))
    names = {row['id']: row.get('file_name') for row in images}
    part.add('images without a file_name', (str(id_) for id_, name in names.items() if not _is_text(name)))
    bar = tqdm(annotations, desc=f'checking {part.name}', unit='object', leave=False)
    category_ids = {row['id'] for row in categories}
    part.add_faults(fault for row in bar for fault in _faults(row, names.keys(), category_ids, spec))
    return part, {name for name in names.values() if _is_text(name)}


def _read(path: Path, part: Part) -> Tables | None:
    """The three tables with the rows that have an id, or None if there are none to check."""
    if not path.is_file():
        part.problems.append('the file is missing')
        return None
    part.found = f'{path.stat().st_size / 1e6:,.1f} MB'
    print(f'reading {part.name} ({part.found})', file=sys.stderr, flush=True)
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, OSError) as error:
        part.problems.append(f'cannot be read as JSON: {error}')
        return None
    tables = content if isinstance(content, dict) else {}
    missing = [name for name in _TABLES if not isinstance(tables.get(name), list)]
    part.add('lists that are missing', missing)
    if missing:
        return None
    good = {}
    for name in _TABLES:
        good[name] = [row for row in tables[name] if isinstance(row, dict) and isinstance(row.get('id'), int)]
        if len(good[name]) < len(tables[name]):
            part.problems.append(f'entries of {name} without an id: {len(tables[name]) - len(good[name]):,}')
    return good


def _faults(row: Row, images: Container[int], categories: Container[int], spec: CocoSpec) -> Iterator[Fault]:
    """What is wrong with the annotation of one object."""
    name, image, category = f'id {row["id"]}', row.get('image_id'), row.get('category_id')
    if not isinstance(image, int) or image not in images:
        yield Fault('annotations of an unknown image', name, f'image_id {image}')
    if not isinstance(category, int) or category not in categories:
        yield Fault('annotations of an unknown category', name, f'category_id {category}')
    box = row.get('bbox')
    if not isinstance(box, list) or len(box) != 4 or not all(_is_finite(number) for number in box):
        yield Fault('boxes that are not four finite numbers', name, str(box))
    elif min(box[2:]) <= 0 and image not in spec.flat_boxes:
        yield Fault('boxes without a positive size', name, str(box))


def _is_finite(number: Any) -> bool:
    return isinstance(number, int | float) and math.isfinite(number)


def _is_text(name: Any) -> TypeGuard[str]:
    return isinstance(name, str) and name != ''
