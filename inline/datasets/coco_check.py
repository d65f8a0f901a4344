"""Checking a COCO file once, before training: what the toolbox would trip over, or read as something else."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inline.datasets.coco_masks import is_whole_polygon, mask_fault
from inline.errors import UserError

TABLES = ('images', 'annotations', 'categories')
# What the toolbox reads of every row.
_KEYS = {
    'images': ('id', 'file_name', 'width', 'height'),
    'annotations': ('id', 'image_id', 'category_id', 'bbox', 'area'),
    'categories': ('id', 'name'),
}
# The toolbox makes tensors of boxes, which hold no whole number of any length.
LIMIT = 2**31

Row = dict[str, Any]
Tables = dict[str, list[Row]]


def read_tables(path: Path, needs_objects: bool = True) -> Tables:
    """The three lists of a COCO file, whose rows have all keys and ids of their own.

    A file to be tested on may be without annotations, as those of COCO's server are.
    """
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UserError(f'{str(path)!r} is not JSON: {error}') from error
    except OSError as error:
        raise UserError(f'{str(path)!r} cannot be read: {error.strerror}') from error
    if isinstance(content, dict) and not needs_objects:
        content.setdefault('annotations', [])
    for name in TABLES:
        if not isinstance(content, dict) or not isinstance(content.get(name), list):
            raise UserError(f"{str(path)!r} has no {name!r}: it is not in COCO's format")
        _check_rows(content[name], name, path)
    if not content['images']:
        raise UserError(f'{str(path)!r} lists no images')
    return {name: content[name] for name in TABLES}


def check_coco(
    path: Path, classes: Sequence[str], needs_masks: bool = False, needs_objects: bool = True
) -> Counter[str]:
    """Refuse a file that cannot be meant, and count what is left out or changed where it is read.

    Args:
        path: The file.
        classes: Names of the classes that are trained, in the order of their labels.
        needs_masks: Whether every object must have a segmentation.
        needs_objects: Whether there must be objects, as there must be to train or to validate.

    Returns:
        Numbers of objects and images by what happens to them.
    """
    tables = read_tables(path, needs_objects)
    images, annotations = tables['images'], tables['annotations']
    known = _check_categories(tables['categories'], classes, path)
    row_of = {row['id']: i for i, row in enumerate(images)}
    _check_references(annotations, row_of, {row['id'] for row in tables['categories']}, path)
    sizes = _numbers(images, ('width', 'height'), 'images', path)
    bad = np.flatnonzero((sizes < 1).any(axis=1))
    if len(bad):
        row = images[bad[0]]
        raise UserError(
            f'{str(path)!r}: image {row["id"]} has size {row["width"]}x{row["height"]}: must be positive'
        )
    boxes = _boxes(annotations, path)
    image_of = np.array([row_of[row['image_id']] for row in annotations], dtype=np.intp)
    area = _numbers(annotations, ('area',), 'annotations', path)[:, 0]
    found, kept = _count_boxes(boxes, sizes[image_of], area)
    ours = np.array([row['category_id'] in known for row in annotations], dtype=bool)
    found['objects of other categories than the classes are left out'] = int((kept & ~ours).sum())
    kept &= ours
    ignored = np.array([bool(row.get('ignore')) for row in annotations], dtype=bool)
    found['objects marked as ignored are left out'] = int((kept & ignored).sum())
    kept &= ~ignored
    found['crowds are regions that count neither way'] = sum(
        bool(annotations[i].get('iscrowd')) for i in np.flatnonzero(kept)
    )
    if needs_masks:
        # Evaluation draws also what training leaves out.
        for i in np.flatnonzero(ours):
            _check_mask(annotations[i], images[image_of[i]], bool(kept[i]), path)
        found += _count_polygons(annotations[i]['segmentation'] for i in np.flatnonzero(kept))
    if needs_objects and not kept.any():
        raise UserError(
            f'{str(path)!r} has no object of the classes {", ".join(classes[:5])} that can be used'
        )
    found['images have no object'] = len(images) - len(np.unique(image_of[kept]))
    return +found


def describe_found(path: Path, found: Mapping[str, int]) -> str:
    return f'bad data: {path}: ' + ', '.join(f'{count:,} {what}' for what, count in found.items())


def _check_rows(rows: list[Any], name: str, path: Path) -> None:
    for i, row in enumerate(rows):
        if not isinstance(row, dict):
            raise UserError(f'{str(path)!r}: entry {i} of {name!r} is {row!r}: must be a dict')
        for key in _KEYS[name]:
            if key not in row:
                raise UserError(f'{str(path)!r}: entry {i} of {name!r} (id {row.get("id")}) has no {key!r}')
        if type(row['id']) is not int:
            raise UserError(
                f'{str(path)!r}: entry {i} of {name!r} has id {row["id"]!r}: must be a whole number'
            )
    repeated = [id_ for id_, count in Counter(row['id'] for row in rows).items() if count > 1]
    if repeated:
        raise UserError(f'{str(path)!r}: id {repeated[0]} is of several {name}: ids must be unique')
    for row in rows if name == 'images' else ():
        if not isinstance(row['file_name'], str) or not row['file_name']:
            raise UserError(f'{str(path)!r}: image {row["id"]} has file_name {row["file_name"]!r}')
    for row in rows if name == 'categories' else ():
        if not isinstance(row['name'], str):
            raise UserError(f'{str(path)!r}: category {row["id"]} has name {row["name"]!r}: must be a word')


def _check_categories(categories: list[Row], classes: Sequence[str], path: Path) -> set[int]:
    """Ids of the categories that are classes. The toolbox labels them in the order of the file."""
    names = [row['name'] for row in categories if row['name'] in set(classes)]
    missing = [name for name in classes if name not in set(names)]
    if missing:
        raise UserError(f'{str(path)!r} has no category {missing[0]!r}, which is a class of the config')
    if names != list(classes):
        wrong = next(i for i, name in enumerate(names) if i >= len(classes) or name != classes[i])
        raise UserError(
            f'{str(path)!r}: category {names[wrong]!r} is number {wrong} of the classes there, and number '
            f'{list(classes).index(names[wrong])} of the config: labels follow the order of the file'
        )
    return {row['id'] for row in categories if row['name'] in set(classes)}


def _check_references(
    annotations: list[Row], images: Mapping[int, int], categories: set[int], path: Path
) -> None:
    for row in annotations:
        for key, what, ids in (('image_id', 'image', images), ('category_id', 'category', categories)):
            if type(row[key]) is not int or row[key] not in ids:
                raise UserError(
                    f'{str(path)!r}: annotation {row["id"]} is of {what} {row[key]!r}, which is not listed'
                )


def _numbers(rows: list[Row], keys: Sequence[str], name: str, path: Path) -> NDArray[np.float64]:
    """Finite numbers of each row, (rows, keys)."""
    values = _finite([[row[key] for key in keys] for row in rows], len(keys))
    if values is not None:
        return values
    row, key = next((row, key) for row in rows for key in keys if not _is_finite(row[key]))
    raise UserError(
        f'{str(path)!r}: {key} of {name} id {row["id"]} is {row[key]!r}: must be a finite number below 2**31'
    )


def _boxes(annotations: list[Row], path: Path) -> NDArray[np.float64]:
    """Left, top, width and height, (objects, 4)."""
    boxes = _finite([row['bbox'] for row in annotations], 4)
    if boxes is not None:
        return boxes
    row = next(row for row in annotations if not _is_box(row['bbox']))
    raise UserError(
        f'{str(path)!r}: annotation {row["id"]} has bbox {row["bbox"]!r}: must be '
        'four finite numbers below 2**31'
    )


def _finite(rows: list[Any], columns: int) -> NDArray[np.float64] | None:
    """The rows as an array, (rows, columns), if there is nothing in them but finite numbers."""
    if not rows:
        return np.zeros((0, columns))
    try:
        values = np.array(rows)
    except ValueError:
        return None
    # Words that look like numbers would become some if a type were asked for.
    if values.dtype.kind not in 'iuf' or values.shape != (len(rows), columns):
        return None
    values = values.astype(np.float64)
    return values if (np.abs(values) < LIMIT).all() else None


def _is_box(box: Any) -> bool:
    return isinstance(box, list) and len(box) == 4 and all(_is_finite(number) for number in box)


def _is_finite(number: Any) -> bool:
    return type(number) in (int, float) and abs(number) < LIMIT


def _count_boxes(
    boxes: NDArray[np.float64], sizes: NDArray[np.float64], area: NDArray[np.float64]
) -> tuple[Counter[str], NDArray[np.bool_]]:
    """What the toolbox leaves out, and which boxes remain."""
    low, size = boxes[:, :2], boxes[:, 2:]
    negative = (size < 0).any(axis=1)
    small = ~negative & (size < 1).any(axis=1)
    outside = ~negative & ~small & (np.minimum(low + size, sizes) <= np.maximum(low, 0)).any(axis=1)
    no_area = ~negative & ~small & ~outside & (area <= 0)
    kept = ~(negative | small | outside | no_area)
    # Public annotations are rounded: a box may end a little after the last pixel.
    beyond = kept & ((low < -1) | (low + size > sizes + 1)).any(axis=1)
    found = Counter(
        {
            'boxes of negative size are left out': int(negative.sum()),
            'boxes less than a pixel wide or high are left out': int(small.sum()),
            'boxes outside their image are left out': int(outside.sum()),
            'objects without a positive area are left out': int(no_area.sum()),
            'boxes are cut off at the border of their image': int(beyond.sum()),
        }
    )
    return found, kept


def _check_mask(row: Row, image: Row, is_used: bool, path: Path) -> None:
    segmentation = row.get('segmentation')
    if segmentation:
        fault = mask_fault(segmentation, image['width'], image['height'])
        if fault is not None:
            raise UserError(f'{str(path)!r}: the mask of annotation {row["id"]} {fault}')
    elif is_used:
        raise UserError(
            f'{str(path)!r}: annotation {row["id"]} has no segmentation, and the config trains masks'
        )


def _count_polygons(segmentations: Iterator[Any]) -> Counter[str]:
    """What the toolbox leaves out of masks that are good otherwise."""
    found: Counter[str] = Counter()
    for segmentation in segmentations:
        if isinstance(segmentation, dict) or all(is_whole_polygon(points) for points in segmentation):
            continue
        if any(is_whole_polygon(points) for points in segmentation):
            found['objects lose polygons of less than three points'] += 1
        else:
            found['objects without a whole polygon count neither way'] += 1
    return found
