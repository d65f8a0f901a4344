"""Fabricated results of a demo on real digit scenes, and a parser for HTML pages."""

import json
import math
import pickle
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from pycocotools import mask as coco_mask

TEST_METRICS: dict[str, dict[str, float]] = {
    'classification': {'accuracy/top1': 91.25},
    'detection': {
        'coco/bbox_mAP': 0.4123,
        'coco/bbox_mAP_50': 0.706,
        'coco/segm_mAP': 0.354,
        'coco/segm_mAP_50': 0.642,
    },
    'detection_scratch': {
        'coco/bbox_mAP': 0.123,
        'coco/bbox_mAP_50': 0.295,
        'coco/segm_mAP': 0.101,
        'coco/segm_mAP_50': 0.249,
    },
    'segmentation': {'mIoU': 61.44, 'aAcc': 93.5},
    'segmentation_scratch': {'mIoU': 40.0, 'aAcc': 88.0},
}


def training_line(step: int, loss: float, time: float = 1.0) -> dict[str, float]:
    return {'loss': loss, 'lr': 1e-3, 'time': time, 'iter': step, 'step': step}


def write_scalars(run_dir: Path, session: str, lines: Iterable[dict[str, float]]) -> None:
    folder = run_dir / session / 'vis_data'
    folder.mkdir(parents=True)
    (folder / 'scalars.json').write_text('\n'.join(json.dumps(line) for line in lines))


def write_test_metrics(run_dir: Path, session: str, metrics: dict[str, float]) -> None:
    folder = run_dir / 'test' / session
    folder.mkdir(parents=True)
    (folder / f'{session}.json').write_text(json.dumps(metrics))


def fabricate_demo(demo_dir: Path, data_dir: Path, iterations: int = 1000) -> None:
    """Write all runs: learning curves that rise to the test metrics, and nearly correct predictions."""
    random = np.random.default_rng(0)
    for run, metrics in TEST_METRICS.items():
        lines: list[dict[str, float]] = []
        for step in range(20, iterations + 1, 20):
            progress = 1 - math.exp(-4 * step / iterations)
            loss = 2.4 - 2 * progress + 0.1 * random.random()
            lines.append({'loss': loss, 'lr': 1e-3, 'time': 0.3, 'iter': step, 'step': step})
            if step % 100 == 0:
                lines.append({key: value * progress for key, value in metrics.items()} | {'step': step})
        write_scalars(demo_dir / run, '20260101_000000', lines)
        write_test_metrics(demo_dir / run, '20260102_000000', metrics)

    coco = json.loads((data_dir / 'instances_val.json').read_text())
    _dump(demo_dir / 'classification', _classify(data_dir))
    _dump(demo_dir / 'detection', [_detect(data_dir, coco, image, 0.9) for image in coco['images']])
    scratch = [_detect(data_dir, coco, image, 0.55, dense=True) for image in coco['images']]
    _dump(demo_dir / 'detection_scratch', scratch)
    segmented = [_segment(data_dir, image['file_name']) for image in coco['images']]
    for name in ('segmentation', 'segmentation_scratch'):
        _dump(demo_dir / name, segmented)


def _dump(run_dir: Path, predictions: list[dict[str, Any]]) -> None:
    (run_dir / 'test' / 'predictions.pkl').write_bytes(pickle.dumps(predictions))


def _classify(data_dir: Path) -> list[dict[str, Any]]:
    """Return predictions; every fifth is wrong."""
    predictions = []
    for index, path in enumerate(sorted((data_dir / 'classification' / 'val').glob('*/*.jpg'))):
        true = int(path.parent.name)
        predicted = (true + 1) % 10 if index % 5 == 0 else true
        scores = torch.full((10,), 0.02)
        scores[predicted] = 0.82
        label, truth = torch.tensor([predicted]), torch.tensor([true])
        predictions.append(
            {'img_path': str(path), 'pred_label': label, 'gt_label': truth, 'pred_score': scores}
        )
    return predictions


def _detect(
    data_dir: Path, coco: dict[str, Any], image: dict[str, Any], score: float, dense: bool = False
) -> dict[str, Any]:
    """Return the ground truth, slightly shifted; every other instance has a lower score."""
    annotations = [a for a in coco['annotations'] if a['image_id'] == image['id']]
    masks: Any = [annotation['segmentation'] for annotation in annotations]
    if dense:
        masks = torch.from_numpy(np.stack([coco_mask.decode(mask).astype(bool) for mask in masks]))
    boxes = [
        (x - 1, y + 1, x + width + 1, y + height) for x, y, width, height in (a['bbox'] for a in annotations)
    ]
    return {
        'img_path': str(data_dir / 'images' / 'validation' / image['file_name']),
        'pred_instances': {
            'labels': torch.tensor([annotation['category_id'] - 1 for annotation in annotations]),
            'bboxes': torch.tensor(boxes),
            'scores': torch.tensor([score - 0.3 * (i % 2) for i in range(len(annotations))]),
            'masks': masks,
        },
    }


def _segment(data_dir: Path, file_name: str) -> dict[str, Any]:
    label_path = data_dir / 'annotations' / 'validation' / Path(file_name).with_suffix('.png')
    labels = cv2.imread(str(label_path), cv2.IMREAD_GRAYSCALE).astype(int) - 1
    labels = np.roll(labels, 2, axis=1)
    return {
        'img_path': str(data_dir / 'images' / 'validation' / file_name),
        'seg_map_path': str(label_path),
        'pred_sem_seg': {'data': torch.from_numpy(labels)[None]},
    }


class Page(HTMLParser):
    """Tags with their attributes, and text, of an HTML page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ''
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def attributes(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


MALICIOUS_NAMES = (
    '<img src=x onerror=alert(1)>',
    '"><script>alert(1)</script>',
    '" onmouseover="alert(1)',
    "' onfocus='alert(1)' autofocus='",
    '</title></style></svg><svg onload=alert(1)>',
    '{{ 7 * 7 }}{% raw %}',
)


def assert_harmless(html: str, num_scripts: int) -> None:
    """Check that a page has no further scripts, no event handlers and no external pictures."""
    page = Page(html)
    assert len(page.attributes('script')) == num_scripts
    for tag, attributes in page.tags:
        assert not [name for name in attributes if name.startswith('on') or name == 'autofocus'], tag
        assert tag != 'img' or (attributes['src'] or '').startswith('data:image/')
