"""Tiny random datasets in the layouts of the public ones, for the pipelines of the configs."""

import json
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

COCO_BOX = [20.0, 30.0, 60.0, 50.0]


def write_all(root: Path) -> None:
    rng = np.random.default_rng(0)
    write_tiny_imagenet(root)
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


def write_tiny_imagenet(root: Path) -> Path:
    """Write two classes with two training images and one validation image each; return the folder."""
    rng = np.random.default_rng(0)
    base = root / 'tiny-imagenet-200'
    rows = []
    # In the published file the classes are not sorted.
    for index, wnid in enumerate(('n00000002', 'n00000001')):
        names = [f'{wnid}_{number}.JPEG' for number in range(2)]
        for name in names:
            _write(base / 'train' / wnid / 'images' / name, _noise(64, 64, rng))
        boxes = [f'{name}\t{index}\t10\t40\t63\n' for name in names]
        (base / 'train' / wnid / f'{wnid}_boxes.txt').write_text(''.join(boxes))
        _write(base / 'val' / 'images' / f'val_{index}.JPEG', _noise(64, 64, rng))
        rows.append(f'val_{index}.JPEG\t{wnid}\t0\t0\t63\t63\n')
    (base / 'val' / 'val_annotations.txt').write_text(''.join(rows))
    (base / 'wnids.txt').write_text('n00000002\nn00000001\n')
    (base / 'words.txt').write_text('n00000001\tgoldfish, Carassius auratus\nn00000002\ttabby\n')
    return base


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
    _write(path, _noise(120, 160, rng))


def _noise(height: int, width: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    return rng.integers(0, 256, (height, width, 3), dtype=np.uint8)


def _write(path: Path, image: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), image)
