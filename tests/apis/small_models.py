"""Untrained models of the digits configs, saved like training checkpoints, and images for them."""

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope

from inline.engine.config import load_config
from tests.conftest import ROOT

CONFIGS = {
    'classification': 'digits_quick/inline-pvt-nano_digits',
    'detection': 'digits/mask-rcnn_inline-pvt-micro_digits',
    'segmentation': 'digits_quick/semantic-fpn_inline-pvt-nano_digits',
}
CLASSES = {
    'classification': tuple('abcdefghij'),
    'detection': tuple('abcdefghij'),
    'segmentation': ('ground', *'abcdefghij'),
}


def read(task: str) -> Config:
    return load_config(ROOT / 'configs' / f'{CONFIGS[task]}.py')


def save_checkpoint(task: str, path: Path) -> Path:
    return save_model(read(task), CLASSES[task], path)


def save_model(cfg: Config, classes: Sequence[str], path: Path) -> Path:
    torch.manual_seed(0)
    if cfg.get('data_preprocessor') is not None:
        cfg.model.setdefault('data_preprocessor', cfg.data_preprocessor)
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        model = MODELS.build(cfg.model)
    model.init_weights()
    content = {
        'meta': {'dataset_meta': {'classes': tuple(classes)}},
        'state_dict': model.state_dict(),
    }
    torch.save(content, path)
    return path


def write_images(folder: Path) -> Path:
    """Write five images of two sizes; two of them have the same file name."""
    rng = np.random.default_rng(0)
    for name, shape in (
        ('a/b.png', (88, 88)),
        ('a/d.png', (88, 88)),
        ('c/b.png', (64, 96)),
        ('c/e.png', (88, 88)),
        ('f.bmp', (88, 88)),
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        assert cv2.imwrite(str(path), rng.integers(0, 256, (*shape, 3)).astype(np.uint8))
    return folder
