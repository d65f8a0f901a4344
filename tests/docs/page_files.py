"""Files that the commands and code of the documentation use: demo checkpoints, photographs, a model."""

from pathlib import Path

import cv2
import numpy as np
from mmengine.config import Config

from inline.engine.config import load_config
from inline.engine.launch import drop_pretrained
from tests.apis.small_models import save_model

DIGITS = tuple('0123456789')
# Checkpoint path in the pages and class names, by config. The weights are random.
CHECKPOINTS: dict[str, tuple[str, tuple[str, ...]]] = {
    'digits/mask-rcnn_inline-pvt-micro_digits': ('work_dirs/demo/detection/iter_400.pth', DIGITS),
    'digits/semantic-fpn_inline-pvt-micro_digits': (
        'work_dirs/demo/segmentation/iter_800.pth',
        ('background', *DIGITS),
    ),
    'semantic_fpn/semantic-fpn_inline-pvt-small_8xb4-40k_ade20k-512x512': (
        'semantic_fpn.pth',
        tuple(f'class {i}' for i in range(150)),
    ),
}
PHOTOGRAPHS = ('a.jpg', 'b.jpg', 'big.tif', 'more/photo.jpg', 'photos/1.jpg', 'photos/2.jpg')
# A classifier with one block, which exports in seconds. It replaces CONFIG and CHECKPOINT.
CONFIG, CHECKPOINT = 'one_block.py', 'one_block.pth'
ONE_BLOCK = {'embed_dims': (16,), 'depths': (1,), 'num_heads': (2,), 'mlp_ratios': (2,)}


def write_page_files() -> None:
    """Write all files into the current folder, which contains configs/."""
    for name, (checkpoint, classes) in CHECKPOINTS.items():
        _save(load_config(f'configs/{name}.py'), checkpoint, classes)
    cfg = load_config('configs/digits_quick/inline-pvt-nano_digits.py')
    cfg.model.backbone.update(arch=ONE_BLOCK, out_indices=(0,))
    cfg.model.head.in_channels = 16
    cfg.dump(CONFIG)
    _save(cfg, CHECKPOINT, DIGITS)
    pixels = np.random.default_rng(0)
    for photograph in PHOTOGRAPHS:
        Path(photograph).parent.mkdir(exist_ok=True)
        assert cv2.imwrite(photograph, pixels.integers(0, 256, (96, 128, 3)).astype(np.uint8))
    video = cv2.VideoWriter('clip.mp4', cv2.VideoWriter.fourcc(*'mp4v'), 5, (128, 96))
    for _ in range(2):
        video.write(pixels.integers(0, 256, (96, 128, 3)).astype(np.uint8))
    video.release()


def _save(cfg: Config, checkpoint: str, classes: tuple[str, ...]) -> None:
    Path(checkpoint).parent.mkdir(parents=True, exist_ok=True)
    drop_pretrained(cfg.model)
    save_model(cfg, classes, Path(checkpoint))
