"""Sample predictions: chosen by a fixed shuffle, never by how good they look, and drawn."""

import json
import pickle
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from pycocotools import mask as coco_mask

from inline.engine.data_files import load_pickled
from inline.errors import UserError
from inline.report.drawing import Image, Instance, draw_instances, draw_label_map, encode_jpeg, enlarge

Prediction = dict[str, Any]

SHUFFLE_SEED = 0
NUM_TILES = 24
NUM_SCENES = 8
# What mmdet draws by default. A detector of a few minutes is right more often than it is sure.
SCORE_THRESHOLD = 0.3


@dataclass(frozen=True)
class Panel:
    """One drawn picture: JPEG bytes, and in words what it shows."""

    jpeg: bytes
    description: str


@dataclass(frozen=True)
class Sample:
    """Pictures of one validation image by heading; `correct` where a prediction is right or wrong."""

    image: str
    panels: dict[str, Panel]
    note: str = ''
    correct: bool | None = None


def load_predictions(path: Path) -> list[Prediction]:
    """What a test dumped, read as data; nothing if it was not run, or was killed while writing."""
    try:
        with path.open('rb') as file:
            predictions: list[Prediction] = load_pickled(file)
    except (FileNotFoundError, EOFError, pickle.UnpicklingError):
        return []
    return predictions


def classification_samples(predictions: Sequence[Prediction]) -> list[Sample]:
    samples = []
    for prediction in _choose(predictions, NUM_TILES):
        predicted, true = int(prediction['pred_label']), int(prediction['gt_label'])
        note = f'{predicted} ({float(prediction["pred_score"][predicted]):.0%}), true {true}'
        panel = Panel(encode_jpeg(enlarge(_read_image(prediction['img_path']))), f'Predicted {note}')
        samples.append(
            Sample(Path(prediction['img_path']).name, {'Image': panel}, note, correct=predicted == true)
        )
    return samples


def detection_samples(predictions: Sequence[Prediction]) -> list[Sample]:
    samples = []
    for prediction in _choose(predictions, NUM_SCENES):
        path = Path(prediction['img_path'])
        image = _read_image(path)
        panels = {
            'Ground truth': _instance_panel(image, _true_instances(path)),
            'Prediction': _instance_panel(image, _predicted_instances(prediction['pred_instances'])),
        }
        samples.append(Sample(path.name, panels))
    return samples


def segmentation_samples(predictions: Sequence[Prediction]) -> list[Sample]:
    samples = []
    for prediction in _choose(predictions, NUM_SCENES):
        path = Path(prediction['img_path'])
        image = _read_image(path)
        # On disk 1 is the background and 2..11 are the digits; the model counts from 0.
        true = _read_image(prediction['seg_map_path'], cv2.IMREAD_GRAYSCALE).astype(int) - 1
        predicted = np.asarray(prediction['pred_sem_seg']['data']).squeeze(0)
        panels = {
            'Image': Panel(encode_jpeg(enlarge(image)), f'Scene {path.stem}'),
            'Ground truth': _map_panel(image, true),
            'Prediction': _map_panel(image, predicted),
        }
        samples.append(Sample(path.name, panels, f'digit IoU {_digit_iou(true, predicted):.0%}'))
    return samples


def _digit_iou(true: NDArray[np.integer], predicted: NDArray[np.integer]) -> float:
    # Without the background, which would make a map of nothing look nearly right.
    digits = (true > 0) | (predicted > 0)
    return float(np.mean((true == predicted)[digits]))


def _choose(predictions: Sequence[Prediction], count: int) -> list[Prediction]:
    # The order depends on the file names alone, so two runs on the same images show the same ones.
    ordered = sorted(predictions, key=lambda prediction: str(prediction['img_path']))
    random.Random(SHUFFLE_SEED).shuffle(ordered)
    return ordered[:count]


def _read_image(path: str | Path, flags: int = cv2.IMREAD_COLOR) -> Image:
    image = cv2.imread(str(path), flags)
    if image is None:
        raise UserError(
            f'cannot read {path}, which the predictions are about: '
            'the data set must be where it was when the model was tested'
        )
    return np.asarray(image)


def _instance_panel(image: Image, instances: Sequence[Instance]) -> Panel:
    digits = ', '.join(str(label) for label in sorted(instance.label for instance in instances))
    return Panel(
        encode_jpeg(draw_instances(image, instances)),
        f'Digits found: {digits}' if digits else 'No digits found',
    )


def _map_panel(image: Image, labels: NDArray[np.integer]) -> Panel:
    digits = ', '.join(str(label - 1) for label in np.unique(labels) if label > 0)
    return Panel(
        encode_jpeg(draw_label_map(image, labels)),
        f'Digits marked: {digits}' if digits else 'No digits marked',
    )


def _predicted_instances(predicted: dict[str, Any]) -> list[Instance]:
    return [
        _instance(int(label), np.asarray(box), mask, float(score))
        for label, box, mask, score in zip(
            predicted['labels'], predicted['bboxes'], predicted['masks'], predicted['scores'], strict=True
        )
        if score >= SCORE_THRESHOLD
    ]


def _true_instances(image_path: Path) -> list[Instance]:
    """From the COCO file of the digit scenes, because not every dump holds the ground truth."""
    coco = _load_coco(image_path.parents[2] / 'instances_val.json')
    names = {category['id']: category['name'] for category in coco['categories']}
    image_id = next(image['id'] for image in coco['images'] if image['file_name'] == image_path.name)
    instances = []
    for annotation in coco['annotations']:
        if annotation['image_id'] == image_id:
            x, y, width, height = annotation['bbox']
            box = np.array([x, y, x + width, y + height])
            label = int(names[annotation['category_id']])
            instances.append(_instance(label, box, annotation['segmentation']))
    return instances


@cache
def _load_coco(path: Path) -> dict[str, Any]:
    coco: dict[str, Any] = json.loads(path.read_text())
    return coco


def _instance(label: int, box: NDArray[np.floating], mask: Any, score: float | None = None) -> Instance:
    # mmengine's DumpResults keeps masks as they are, mmdet's DumpDetResults encodes them.
    dense = coco_mask.decode(mask) if isinstance(mask, dict) else mask
    x1, y1, x2, y2 = (float(value) for value in box)
    return Instance(label, (x1, y1, x2, y2), np.asarray(dense).astype(bool), score)
