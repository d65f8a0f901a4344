"""Predictions as plain dictionaries, JSON, COCO results, pandas tables and supervision's detections."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pycocotools import mask as coco_mask

from inline.apis.inputs import ImageSource
from inline.utils.errors import UserError

if TYPE_CHECKING:
    from inline.apis.results import Prediction

Record = dict[str, Any]

# Classes and objects that a summary lists.
_MAX_SHOWN = 3
# Columns of the tables, after the name of the image.
_COLUMNS = {
    'classification': ('label', 'name', 'score'),
    'detection': ('label', 'name', 'score', 'x1', 'y1', 'x2', 'y2'),
    'segmentation': ('label', 'name', 'pixels', 'share'),
}


def to_dict(prediction: 'Prediction') -> Record:
    """Return a prediction as values that JSON can represent; see :meth:`Prediction.to_dict`."""
    source = prediction.source
    height, width = prediction.shape
    record: Record = {'image': prediction.name, 'file': source.location}
    if source.frame is not None:
        record['frame'] = source.frame
    record |= {'image_id': prediction.image_id, 'width': width, 'height': height, 'task': prediction.task}
    return {**record, 'predictions': _entries(prediction)}


def to_json(value: object, name: str) -> str:
    """Convert to JSON, in which NaN and infinity do not exist; `name` is that of the image for the error."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise UserError(
            f'the prediction for {name!r} contains NaN or infinity, which JSON cannot represent: '
            'the weights of the model may be damaged'
        ) from error


def to_coco(prediction: 'Prediction', image_id: int | None = None) -> list[Record]:
    """Return a prediction in COCO's results format; see :meth:`Prediction.to_coco`."""
    if prediction.task == 'classification':
        raise UserError('to_coco is for detection and segmentation: this is a classification result')
    number = prediction.image_id if image_id is None else image_id
    ids = prediction.classes.category_ids
    records = []
    for entry in _entries(prediction):
        label = entry['label']
        record: Record = {'image_id': number, 'category_id': ids[label], 'category_name': entry['name']}
        if 'box' in entry:
            x1, y1, x2, y2 = entry['box']
            record |= {'bbox': [x1, y1, x2 - x1, y2 - y1], 'score': entry['score']}
        if 'mask' in entry:
            record['segmentation'] = entry['mask']
        records.append(record)
    return records


def coco_images(images: Sequence[Record], names: Sequence[str], ids: Sequence[int]) -> Record:
    """Return the images and categories of COCO results in COCO's annotation format."""
    categories = [{'id': number, 'name': name} for number, name in zip(ids, names, strict=True)]
    return {'images': list(images), 'categories': categories, 'annotations': []}


def to_pandas(predictions: Iterable['Prediction'], task: str | None = None) -> Any:
    """Return a DataFrame with a row per class or object of each image; see :meth:`Prediction.to_pandas`."""
    try:
        import pandas
    except ImportError as error:
        raise UserError(f'to_pandas requires pandas ({error}): pip install pandas') from error
    rows = []
    for prediction in predictions:
        task = prediction.task
        for entry in _entries(prediction, with_masks=False):
            box = dict(zip(('x1', 'y1', 'x2', 'y2'), entry.get('box', ()), strict=False))
            rows.append({'image': prediction.name, **entry, **box})
    return pandas.DataFrame(rows, columns=['image', *_COLUMNS.get(task or '', ())])


def to_supervision(prediction: 'Prediction') -> Any:
    """Return supervision's type for a prediction; see :meth:`Prediction.to_supervision`."""
    try:
        import supervision
    except ImportError as error:
        raise UserError(f'to_supervision requires supervision ({error}): pip install supervision') from error
    if prediction.probs is not None:
        return supervision.Classifications(
            class_id=np.arange(len(prediction.probs)), confidence=prediction.probs
        )
    boxes, scores, labels, masks = prediction.boxes, prediction.scores, prediction.labels, prediction.masks
    if prediction.label_map is not None:
        labels = np.unique(prediction.label_map)
        masks = prediction.label_map == labels[:, None, None]
        boxes = np.array([mask_box(mask) for mask in masks], np.float32)
    assert labels is not None
    names = np.array([prediction.class_name(label) for label in labels.tolist()], dtype=str)
    return supervision.Detections(
        xyxy=boxes, mask=masks, confidence=scores, class_id=labels.astype(int), data={'class_name': names}
    )


def summarize(prediction: 'Prediction') -> str:
    """Return the most important classes or objects in one line."""
    key = 'share' if prediction.task == 'segmentation' else 'score'
    entries = sorted(_entries(prediction, with_masks=False), key=lambda entry: -entry[key])
    style = '.2f' if prediction.task == 'detection' else '.1%'
    shown = [f'{entry["name"]}: {entry[key]:{style}}' for entry in entries[:_MAX_SHOWN]]
    if len(entries) > _MAX_SHOWN:
        shown.append(f'… {len(entries) - _MAX_SHOWN} more' if prediction.task == 'detection' else '…')
    if prediction.task != 'detection':
        return ', '.join(shown)
    objects = f'{len(entries)} {"object" if len(entries) == 1 else "objects"}'
    return f'{objects} ({", ".join(shown)})' if shown else objects


def image_ids(sources: Sequence[ImageSource]) -> Mapping[str, int]:
    """Return COCO image ids by the name of the image.

    These are the numbers in the file names if all file names are distinct numbers, as in COCO. Otherwise
    images are counted from 0. With videos it returns `{}`: their frames are counted while they are read.
    """
    if any(source.is_video for source in sources):
        return {}
    stems = [Path(source.name).name for source in sources]
    numbers = [int(stem) for stem in stems if stem.isascii() and stem.isdigit()]
    is_numbered = len(numbers) == len(set(numbers)) == len(sources)
    return {source.name: numbers[i] if is_numbered else i for i, source in enumerate(sources)}


def encode_mask(mask: NDArray[Any]) -> Record:
    """Encode a mask (H, W) as COCO's run-length encoding, with the counts as text."""
    encoded = coco_mask.encode(np.asfortranarray(mask.astype(np.uint8)))
    return {'size': [int(side) for side in encoded['size']], 'counts': encoded['counts'].decode()}


def mask_box(mask: NDArray[np.bool_]) -> tuple[float, float, float, float]:
    """Return the corners x1, y1, x2, y2 around the pixels of a mask (H, W) that has at least one."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    return float(columns[0]), float(rows[0]), float(columns[-1] + 1), float(rows[-1] + 1)


def _entries(prediction: 'Prediction', with_masks: bool = True) -> list[Record]:
    """Return the classes or objects of a prediction."""
    name = prediction.class_name
    if prediction.probs is not None:
        return [
            {'label': label, 'name': name(label), 'score': float(prediction.probs[label])}
            for label in prediction.top_labels.tolist()
        ]
    entries: list[Record] = []
    if prediction.label_map is not None:
        labels, counts = np.unique(prediction.label_map, return_counts=True)
        for label, count in zip(labels.tolist(), counts.tolist(), strict=True):
            share = count / prediction.label_map.size
            entry: Record = {'label': label, 'name': name(label), 'pixels': count, 'share': share}
            if with_masks:
                entry['mask'] = encode_mask(prediction.label_map == label)
            entries.append(entry)
        return entries
    found = (prediction.labels, prediction.scores, prediction.boxes)
    values = (array.tolist() for array in found if array is not None)
    for i, (label, score, box) in enumerate(zip(*values, strict=True)):
        entry = {'label': label, 'name': name(label), 'score': score, 'box': box}
        if with_masks and prediction.masks is not None:
            entry['mask'] = encode_mask(prediction.masks[i])
        entries.append(entry)
    return entries
