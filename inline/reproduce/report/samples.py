"""Drawings of sample predictions, chosen by a shuffle with a fixed seed."""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image as PILImage
from PIL import ImageDraw
from pycocotools import mask as coco_mask

from inline.apis.drawing import DEFAULT_SCORE_THR
from inline.checkpoints import load_pickle
from inline.checkpoints.unpickling import DamagedPickleError
from inline.utils.drawing import BASE_PALETTE, Image, draw_instances, draw_label_map, draw_tag, enlarge
from inline.utils.errors import UserError

Prediction = dict[str, Any]

SHUFFLE_SEED = 0
NUM_TILES = 24
NUM_SCENES = 8
ZOOM = 3
DIGITS = tuple('0123456789')
# Label 0 of the label maps is the background; the digits follow.
_BACKGROUND = (40, 40, 40)
_JPEG_QUALITY = 90
# Smaller regions, in pixels, get no tag: noise would cover the map with text.
_MIN_TAGGED_REGION = 60
_TAG_SIZE = 20


@dataclass(frozen=True)
class Panel:
    """A picture as JPEG bytes, and its description in words."""

    jpeg: bytes
    description: str


@dataclass(frozen=True)
class Sample:
    """Pictures of one validation image by heading; `correct` is set for classification only."""

    image: str
    panels: dict[str, Panel]
    note: str = ''
    correct: bool | None = None


def load_predictions(path: Path) -> list[Prediction]:
    """Load the predictions that a test dumped, without executing code in the file.

    Returns an empty list if the file is missing or truncated.
    """
    try:
        with path.open('rb') as file:
            predictions: list[Prediction] = load_pickle(file)
    except (FileNotFoundError, DamagedPickleError):
        return []
    return predictions


def classification_samples(predictions: Sequence[Prediction]) -> list[Sample]:
    samples = []
    for prediction, path, image in _choose(predictions, NUM_TILES):
        predicted, true = int(prediction['pred_label']), int(prediction['gt_label'])
        note = f'{predicted} ({float(prediction["pred_score"][predicted]):.0%}), true {true}'
        panels = {'Image': Panel(_to_jpeg(enlarge(image, ZOOM)), f'Predicted {note}')}
        samples.append(Sample(path.name, panels, note, correct=predicted == true))
    return samples


def detection_samples(predictions: Sequence[Prediction]) -> list[Sample]:
    samples = []
    for prediction, path, image in _choose(predictions, NUM_SCENES):
        panels = {
            'Ground truth': _instance_panel(image, _true_instances(path)),
            'Prediction': _instance_panel(image, _confident(prediction['pred_instances'])),
        }
        samples.append(Sample(path.name, panels))
    return samples


def segmentation_samples(predictions: Sequence[Prediction]) -> list[Sample]:
    samples = []
    for prediction, path, image in _choose(predictions, NUM_SCENES):
        # In the files, 1 is the background and 2..11 are the digits; the model counts from 0.
        true = _read_image(prediction['seg_map_path'], cv2.IMREAD_GRAYSCALE).astype(int) - 1
        predicted = np.asarray(prediction['pred_sem_seg']['data']).squeeze(0)
        panels = {
            'Image': Panel(_to_jpeg(enlarge(image, ZOOM)), f'Scene {path.stem}'),
            'Ground truth': _map_panel(image, true),
            'Prediction': _map_panel(image, predicted),
        }
        samples.append(Sample(path.name, panels, f'digit IoU {_digit_iou(true, predicted):.0%}'))
    return samples


def _digit_iou(true: NDArray[np.integer], predicted: NDArray[np.integer]) -> float:
    # Ignores the background: with it, an empty map would score high.
    digits = (true > 0) | (predicted > 0)
    return float(np.mean((true == predicted)[digits]))


def _choose(predictions: Sequence[Prediction], count: int) -> Iterator[tuple[Prediction, Path, Image]]:
    """Yield `count` predictions with the path and pixels of their image.

    The choice depends on the file names only: both detectors show the same images.
    """
    ordered = sorted(predictions, key=lambda prediction: str(prediction['img_path']))
    random.Random(SHUFFLE_SEED).shuffle(ordered)
    for prediction in ordered[:count]:
        yield prediction, Path(prediction['img_path']), _read_image(prediction['img_path'])


def _read_image(path: str | Path, flags: int = cv2.IMREAD_COLOR_RGB) -> Image:
    image = cv2.imread(str(path), flags)
    if image is None:
        raise UserError(
            f'cannot read {path}, an image of the predictions: '
            'the dataset must be in the same folder as when the model was tested'
        )
    return np.asarray(image)


def _instance_panel(image: Image, instances: Prediction) -> Panel:
    labels = [int(label) for label in instances['labels']]
    # DumpResults of MMEngine writes dense masks; DumpDetResults of mmdet writes RLE.
    masks = [coco_mask.decode(mask) if isinstance(mask, dict) else mask for mask in instances['masks']]
    drawn = draw_instances(
        image,
        instances['bboxes'],
        labels,
        DIGITS,
        BASE_PALETTE,
        scores=instances.get('scores'),
        masks=masks,
        zoom=ZOOM,
    )
    digits = ', '.join(DIGITS[label] for label in sorted(labels))
    return Panel(_to_jpeg(drawn), f'Digits found: {digits}' if digits else 'No digits found')


def _map_panel(image: Image, labels: NDArray[np.integer]) -> Panel:
    drawn = PILImage.fromarray(draw_label_map(image, labels, (_BACKGROUND, *BASE_PALETTE), ZOOM))
    _tag_regions(ImageDraw.Draw(drawn), labels)
    digits = ', '.join(DIGITS[label - 1] for label in np.unique(labels) if label > 0)
    return Panel(_to_jpeg(np.asarray(drawn)), f'Digits marked: {digits}' if digits else 'No digits marked')


def _tag_regions(pen: ImageDraw.ImageDraw, labels: NDArray[np.integer]) -> None:
    """Write the digit at the centre of every large region of a label map."""
    for label, (digit, color) in enumerate(zip(DIGITS, BASE_PALETTE, strict=False), start=1):
        _, _, stats, centers = cv2.connectedComponentsWithStats((labels == label).astype(np.uint8))
        for (*_, area), center in zip(stats[1:], centers[1:], strict=True):
            if area >= _MIN_TAGGED_REGION:
                x, y = ZOOM * center
                left, bottom = x - _TAG_SIZE // 2, y + _TAG_SIZE // 2
                draw_tag(pen, (left, bottom, left, bottom), digit, color, _TAG_SIZE)


def _confident(predicted: Prediction) -> Prediction:
    """Select the instances with a score of at least the threshold."""
    scores = [float(score) for score in predicted['scores']]
    kept = [i for i, score in enumerate(scores) if score >= DEFAULT_SCORE_THR]
    chosen = {key: [predicted[key][i] for i in kept] for key in ('labels', 'bboxes', 'masks')}
    chosen['bboxes'] = [np.asarray(box) for box in chosen['bboxes']]
    return {**chosen, 'scores': [scores[i] for i in kept]}


def _true_instances(image_path: Path) -> Prediction:
    """Read the ground truth from the COCO file of the digit scenes, since not all dumps include it."""
    coco = _load_coco(image_path.parents[2] / 'instances_val.json')
    names = {category['id']: category['name'] for category in coco['categories']}
    image_id = next(image['id'] for image in coco['images'] if image['file_name'] == image_path.name)
    annotations = [annotation for annotation in coco['annotations'] if annotation['image_id'] == image_id]
    return {
        'labels': [int(names[annotation['category_id']]) for annotation in annotations],
        'bboxes': [(x, y, x + width, y + height) for x, y, width, height in (a['bbox'] for a in annotations)],
        'masks': [annotation['segmentation'] for annotation in annotations],
    }


@cache
def _load_coco(path: Path) -> dict[str, Any]:
    coco: dict[str, Any] = json.loads(path.read_text())
    return coco


def _to_jpeg(image: Image) -> bytes:
    bgr = cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
    return cv2.imencode('.jpg', bgr, [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY])[1].tobytes()
