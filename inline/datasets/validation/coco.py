"""Check of a COCO annotation file before training.

Finds data that makes mmdet or pycocotools crash in the middle of a run, or that they silently misread.
"""

import json
import math
import reprlib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inline.datasets.image_file import file_name_error, read_file
from inline.utils.errors import UserError

# The keys that mmdet reads from every entry.
_REQUIRED_KEYS = {
    'images': ('id', 'file_name', 'width', 'height'),
    'annotations': ('id', 'image_id', 'category_id', 'bbox', 'area'),
    'categories': ('id', 'name'),
}
# mmdet converts boxes to tensors, which overflow on larger integers.
_NUMBER_LIMIT = 2**31
# Boxes are assumed to be corners if more than _MOST of them exceed the image as [x, y, width, height], and
# less than _FEW are invalid as [x1, y1, x2, y2].
_MOST, _FEW = 0.5, 0.05

Entry = dict[str, Any]
Tables = dict[str, list[Entry]]


def read_coco(path: Path, require_annotations: bool = True, fill: bool = False) -> Tables:
    """Read the images, annotations and categories of a COCO file and check their keys and ids.

    Args:
        path: The JSON file.
        require_annotations: False for a test split, whose file may have no annotations.
        fill: Whether to derive the area and ``iscrowd`` of annotations that lack them.
    """
    return parse_coco(load_json(path), path, require_annotations, fill)


def parse_coco(content: Any, path: Path, require_annotations: bool = True, fill: bool = False) -> Tables:
    """Return the tables of the content of a COCO file; see :func:`read_coco`."""
    if isinstance(content, dict) and not require_annotations:
        content.setdefault('annotations', [])
    for name in _REQUIRED_KEYS:
        if not isinstance(content, dict) or not isinstance(content.get(name), list):
            raise UserError(f'{str(path)!r} has no list {name!r}: not a COCO annotation file')
        if fill and name == 'annotations':
            fill_annotations(content[name])
        _check_entries(content[name], name, path)
    if not content['images']:
        raise UserError(f'{str(path)!r} lists no images')
    return {name: content[name] for name in _REQUIRED_KEYS}


def load_json(path: Path) -> Any:
    """Read a JSON file; raise a :class:`UserError` if this fails."""
    try:
        return json.loads(read_file(path, max_bytes=None))
    except (ValueError, RecursionError) as error:
        raise UserError(f'{str(path)!r} is not valid JSON: {error}') from error
    except OSError as error:
        raise UserError(f'{str(path)!r} cannot be read: {error.strerror}') from error


def check_coco(
    path: Path, classes: Sequence[str], with_masks: bool = False, require_annotations: bool = True
) -> dict[str, int]:
    """Read and check a COCO file; see :func:`check_tables`."""
    return check_tables(read_coco(path, require_annotations), path, classes, with_masks, require_annotations)


def check_tables(
    tables: Tables,
    path: Path,
    classes: Sequence[str],
    with_masks: bool = False,
    require_annotations: bool = True,
) -> dict[str, int]:
    """Raise a :class:`UserError` for invalid annotations, and count what mmdet drops or changes.

    Args:
        tables: Content of the file, as :func:`read_coco` returns it.
        path: The file, for messages.
        classes: Class names of the config, in label order.
        with_masks: Whether every object must have a segmentation.
        require_annotations: Whether the file must have usable objects, as for training and validation.

    Returns:
        Number of objects or images by what is done with them; empty if all are used unchanged.
    """
    images, annotations = tables['images'], tables['annotations']
    class_ids = _check_categories(tables['categories'], classes, path)
    image_index = {entry['id']: i for i, entry in enumerate(images)}
    check_references(tables, path)
    sizes = _numbers(images, ('width', 'height'), 'image', path)
    for i in np.flatnonzero((sizes < 1).any(axis=1))[:1]:
        shown = '{width}x{height}'.format(**images[i])
        raise UserError(f'{str(path)!r}: image {images[i]["id"]} has size {shown}: must be positive')
    check_box_format(tables, path)
    boxes = _numbers(annotations, ('bbox',), 'annotation', path)
    area = _numbers(annotations, ('area',), 'annotation', path)[:, 0]

    image_of = np.array([image_index[entry['image_id']] for entry in annotations], dtype=np.intp)
    of_class = np.array([entry['category_id'] in class_ids for entry in annotations], dtype=bool)
    ignored = np.array([bool(entry.get('ignore')) for entry in annotations], dtype=bool)
    top_left, size, image_size = boxes[:, :2], boxes[:, 2:], sizes[image_of]
    bottom_right = top_left + size
    found: Counter[str] = Counter()
    kept = np.ones(len(annotations), dtype=bool)
    for reason, dropped in {
        'dropped boxes of negative size': (size < 0).any(axis=1),
        'dropped boxes less than one pixel wide or high': (size < 1).any(axis=1),
        'dropped boxes outside the image': (
            np.minimum(bottom_right, image_size) <= np.maximum(top_left, 0)
        ).any(axis=1),
        'dropped objects without a positive area': area <= 0,
        'dropped objects of categories that are not classes': ~of_class,
        'dropped objects marked "ignore"': ignored,
    }.items():
        found[reason] = int((kept & dropped).sum())
        kept &= ~dropped
    # Public annotations are rounded: a box may end slightly after the last pixel.
    beyond = ((top_left < -1) | (bottom_right > image_size + 1)).any(axis=1)
    found['boxes clipped at the image border'] = int((kept & beyond).sum())
    used = [annotations[i] for i in np.flatnonzero(kept)]
    # The metric counts a match with id 0 as a miss; see `renumber_annotation_zero` in openmmlab/patches.py.
    found['annotations with id 0, replaced for evaluation'] = sum(entry['id'] == 0 for entry in annotations)
    found['crowd regions ignored by loss and metric'] = sum(bool(entry.get('iscrowd')) for entry in used)
    if with_masks:
        # Evaluation also decodes the masks of dropped objects.
        for i in np.flatnonzero(of_class):
            _check_mask(annotations[i], images[image_of[i]], bool(kept[i]), path)
        found += _count_short_polygons(entry['segmentation'] for entry in used)
    if require_annotations and not used:
        raise UserError(f'{str(path)!r} has no usable object of the classes {", ".join(classes[:5])}')
    found['images without objects'] = len(images) - len(np.unique(image_of[kept]))
    return dict(+found)


def check_box_format(tables: Tables, path: Path) -> None:
    """Raise a :class:`UserError` if most boxes exceed their image, but are inside it as two corners."""
    images = {entry['id']: entry for entry in tables['images']}
    entries = tables['annotations']
    if not entries:
        return
    boxes = _numbers(entries, ('bbox',), 'annotation', path)
    sizes = _numbers([images[entry['image_id']] for entry in entries], ('width', 'height'), 'image', path)
    exceeds = (boxes[:, :2] + boxes[:, 2:] > sizes + 1).any(axis=1)
    is_corners = ((boxes[:, 2:] > boxes[:, :2]) & (boxes[:, 2:] <= sizes + 1)).all(axis=1)
    if exceeds.mean() > _MOST and is_corners.mean() > 1 - _FEW:
        raise UserError(
            f'{str(path)!r}: {int(exceeds.sum()):,} of {len(boxes):,} boxes exceed their image, for example '
            f'{entries[int(exceeds.argmax())]["bbox"]}: they look like [x1, y1, x2, y2], '
            'but COCO boxes are [x, y, width, height]'
        )


def format_counts(path: Path, counts: dict[str, int]) -> str:
    """Describe the result of :func:`check_coco` in one line."""
    return f'data validation: {path}: ' + '; '.join(f'{what}: {count:,}' for what, count in counts.items())


def fill_annotations(annotations: list[Any]) -> None:
    """Add ``iscrowd``, and the area of the mask or box, to annotations that lack them."""
    for entry in annotations:
        if isinstance(entry, dict):
            entry.setdefault('iscrowd', 0)
            if 'area' not in entry and _is_numeric(entry.get('bbox'), True):
                entry['area'] = _mask_area(entry.get('segmentation')) or entry['bbox'][2] * entry['bbox'][3]


def _mask_area(segmentation: Any) -> float:
    """Return the area of valid polygons, 0 for other segmentations."""
    if not isinstance(segmentation, list) or any(
        _polygon_error(one, math.inf, math.inf) for one in segmentation
    ):
        return 0
    return sum(polygon_area(points) for points in segmentation)


def polygon_area(points: Sequence[float]) -> float:
    """Return the area of a polygon given as x1, y1, x2, y2, … (shoelace formula)."""
    xs, ys = np.asarray(points[::2][: len(points) // 2]), np.asarray(points[1::2])
    return float(abs((xs * np.roll(ys, -1) - np.roll(xs, -1) * ys).sum()) / 2)


def _check_entries(entries: list[Any], name: str, path: Path) -> None:
    text_key = {'images': 'file_name', 'categories': 'name'}.get(name)
    for i, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise UserError(f'{str(path)!r}: {name}[{i}] is {reprlib.repr(entry)}: must be a dict')
        for key in _REQUIRED_KEYS[name]:
            if key not in entry:
                raise UserError(f'{str(path)!r}: {name}[{i}] (id {entry.get("id")}) has no {key!r}')
        if type(entry['id']) is not int:
            raise UserError(f'{str(path)!r}: {name}[{i}] has id {entry["id"]!r}: must be an integer')
        if text_key and not (isinstance(entry[text_key], str) and entry[text_key]):
            raise UserError(
                f'{str(path)!r}: {name}[{i}] has {text_key} {entry[text_key]!r}: must be a non-empty string'
            )
        if name == 'images' and (reason := file_name_error(entry['file_name'])):
            raise UserError(
                f'{str(path)!r}: {name}[{i}] has file_name {entry["file_name"]!r}, which {reason}: '
                'must be a path inside the image folder'
            )
    repeated = [id_ for id_, count in Counter(entry['id'] for entry in entries).items() if count > 1]
    if repeated:
        raise UserError(f'{str(path)!r}: id {repeated[0]} occurs more than once in {name!r}')


def _check_categories(categories: list[Entry], classes: Sequence[str], path: Path) -> set[int]:
    """Return the ids of the categories that are classes. mmdet numbers them in the order of the file."""
    used = {entry['id']: entry['name'] for entry in categories if entry['name'] in classes}
    names = list(used.values())
    for name in classes:
        if name not in names:
            raise UserError(f'{str(path)!r} has no category {name!r}, which is a class of the config')
    if names != list(classes):
        index = next(i for i, name in enumerate(names) if i >= len(classes) or name != classes[i])
        raise UserError(
            f'{str(path)!r}: category {names[index]!r} has index {index} in the file and '
            f'{list(classes).index(names[index])} in the config: labels follow the order of the file'
        )
    return set(used)


def check_references(tables: Tables, path: Path) -> None:
    """Raise a :class:`UserError` if an annotation has an image or category that is not listed."""
    ids = {
        'image_id': {entry['id'] for entry in tables['images']},
        'category_id': {entry['id'] for entry in tables['categories']},
    }
    for entry in tables['annotations']:
        for key, listed in ids.items():
            if type(entry[key]) is not int or entry[key] not in listed:
                raise UserError(
                    f'{str(path)!r}: annotation {entry["id"]} has {key} {entry[key]!r}, which is not listed'
                )


def _numbers(entries: list[Entry], keys: Sequence[str], what: str, path: Path) -> NDArray[np.float64]:
    """Return the numbers of some keys, (entries, keys); the one key ``bbox`` has four columns."""
    is_box = keys == ('bbox',)
    rows = [entry['bbox'] if is_box else [entry[key] for key in keys] for entry in entries]
    columns = 4 if is_box else len(keys)
    if not rows:
        return np.zeros((0, columns))
    try:
        # Without a dtype, so that NumPy does not convert strings such as '40' to numbers.
        values = np.array(rows)
    except ValueError:
        values = np.array('ragged rows')
    if values.dtype.kind in 'iuf' and values.shape == (len(rows), columns):
        values = values.astype(np.float64)
        if (np.abs(values) < _NUMBER_LIMIT).all():
            return values
    entry, key = next((e, key) for e in entries for key in keys if not _is_numeric(e[key], is_box))
    raise UserError(
        f'{str(path)!r}: {what} {entry["id"]} has {key} {reprlib.repr(entry[key])}: '
        f'must be {"four finite numbers" if is_box else "a finite number"} below 2**31'
    )


def _is_numeric(value: Any, is_box: bool) -> bool:
    if is_box:
        return isinstance(value, list) and len(value) == 4 and all(_is_numeric(x, False) for x in value)
    return type(value) in (int, float) and abs(value) < _NUMBER_LIMIT


def _check_mask(annotation: Entry, image: Entry, is_used: bool, path: Path) -> None:
    segmentation, where = annotation.get('segmentation'), f'{str(path)!r}: annotation {annotation["id"]}'
    if segmentation:
        error = _mask_error(segmentation, image['width'], image['height'])
        if error is not None:
            raise UserError(f'{where} {error}')
    elif is_used:
        raise UserError(f'{where} has no segmentation, but the config trains masks')


def _mask_error(segmentation: Any, width: float, height: float) -> str | None:
    """Return why pycocotools cannot decode a segmentation; it crashes on some and misreads others."""
    if isinstance(segmentation, dict):
        return _rle_error(segmentation, width, height)
    if not isinstance(segmentation, list):
        return f'has segmentation {reprlib.repr(segmentation)}: must be polygons or RLE'
    errors = (_polygon_error(points, width, height) for points in segmentation)
    return next((error for error in errors if error is not None), None)


def _polygon_error(points: Any, width: float, height: float) -> str | None:
    invalid = f'has polygon {reprlib.repr(points)}: must be a flat list of finite numbers'
    if not isinstance(points, list):
        return invalid
    try:
        # One sum is enough: strings, lists and None raise, NaN and infinity propagate.
        if not math.isfinite(sum(points)):
            return invalid
    except (TypeError, OverflowError):
        return invalid
    # An object may extend beyond the border, by the size of the image at most.
    for coordinates, size in ((points[::2], width), (points[1::2], height)):
        if coordinates and (min(coordinates) < -size or max(coordinates) > 2 * size):
            farthest = max(coordinates, key=abs)
            return f'has a polygon coordinate {farthest!r} far outside its image of {width}x{height}'
    return None


def _rle_error(rle: Entry, width: float, height: float) -> str | None:
    size, counts = rle.get('size'), rle.get('counts')
    if size != [height, width]:
        return f'has RLE size {size}, but its image is {[height, width]}'
    runs = decode_rle_counts(counts) if isinstance(counts, str) else counts
    if not isinstance(runs, list) or not all(type(run) is int and run >= 0 for run in runs):
        return f'has RLE counts {reprlib.repr(counts)}: must be integers >= 0 or their compressed form'
    if sum(runs) != height * width:
        return f'has RLE counts for {sum(runs)} pixels, but its image has {height * width}'
    return None


def decode_rle_counts(counts: str) -> list[int] | None:
    """Decode COCO's compressed RLE: 5 bits per character, differences from the fourth run on.

    Returns None if the string is truncated.
    """
    runs: list[int] = []
    value = shift = 0
    for character in counts.encode():
        bits = character - 48
        value |= (bits & 0x1F) << shift
        shift += 5
        if bits & 0x20:
            # No image has this many pixels.
            if shift > 60:
                return None
            continue
        if bits & 0x10:
            value -= 1 << shift
        runs.append(value + (runs[-2] if len(runs) > 2 else 0))
        value = shift = 0
    return None if shift else runs


def _count_short_polygons(segmentations: Iterable[Any]) -> Counter[str]:
    """Count objects with polygons that mmdet drops: fewer than three points or an odd length."""
    found: Counter[str] = Counter()
    for segmentation in segmentations:
        valid = [
            isinstance(segmentation, dict) or (len(points) >= 6 and len(points) % 2 == 0)
            for points in segmentation
        ]
        if not any(valid):
            found['objects without a valid polygon ignored by loss and metric'] += 1
        elif not all(valid):
            found['objects that lose polygons with fewer than three points'] += 1
    return found
