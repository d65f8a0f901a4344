"""Tiny random datasets in the layouts of ImageNet, COCO and ADE20K, for the pipelines of the configs."""

import json
from pathlib import Path

import cv2
import numpy as np

COCO_BOX = [20.0, 30.0, 60.0, 50.0]


def write_all(root: Path) -> None:
    rng = np.random.default_rng(0)
    for split in ('train', 'val'):
        names = [f'n0000000{label}/{index}.JPEG {label}' for label in (0, 1) for index in (0, 1)]
        for name in names:
            _write_photo(root / 'imagenet' / split / name.split()[0], rng)
        (root / 'imagenet' / 'meta').mkdir(exist_ok=True)
        (root / 'imagenet' / 'meta' / f'{split}.txt').write_text('\n'.join(names))
        _write_coco(root / 'coco', f'{split}2017', rng)
    for split in ('training', 'validation'):
        base = root / 'ade' / 'ADEChallengeData2016'
        for index in range(2):
            _write_photo(base / 'images' / split / f'{index}.jpg', rng)
            labels = rng.integers(0, 151, (120, 160)).astype(np.uint8)
            _write(base / 'annotations' / split / f'{index}.png', labels)


def _write_coco(base: Path, split: str, rng: np.random.Generator) -> None:
    images, annotations = [], []
    for index in (1, 2):
        _write_photo(base / split / f'{index}.jpg', rng)
        images.append({'id': index, 'file_name': f'{index}.jpg', 'width': 160, 'height': 120})
        x, y, width, height = COCO_BOX
        corners = [x, y, x + width, y, x + width, y + height, x, y + height]
        annotations.append(
            {
                'id': index,
                'image_id': index,
                'category_id': index,
                'bbox': COCO_BOX,
                'area': width * height,
                'iscrowd': 0,
                'segmentation': [corners],
            }
        )
    categories = [{'id': i + 1, 'name': name} for i, name in enumerate(_coco_classes())]
    (base / 'annotations').mkdir(parents=True, exist_ok=True)
    content = {'images': images, 'annotations': annotations, 'categories': categories}
    (base / 'annotations' / f'instances_{split}.json').write_text(json.dumps(content))


def _coco_classes() -> list[str]:
    from mmdet.datasets import CocoDataset

    return list(CocoDataset.METAINFO['classes'])


def _write_photo(path: Path, rng: np.random.Generator) -> None:
    _write(path, rng.integers(0, 256, (120, 160, 3)).astype(np.uint8))


def _write(path: Path, image: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), image)
