from pathlib import Path

import cv2
import numpy as np
import pytest

from inline import InLineModel
from tests.inference.small_models import CONFIGS, save_checkpoint


@pytest.fixture(scope='session')
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp('checkpoints')
    return {task: save_checkpoint(task, folder / f'{task}.pth') for task in CONFIGS}


@pytest.fixture(scope='session')
def models(checkpoints: dict[str, Path]) -> dict[str, InLineModel]:
    return {task: InLineModel(name, checkpoints[task], 'cpu') for task, name in CONFIGS.items()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five images of two sizes, two of them with one name."""
    rng = np.random.default_rng(0)
    for name, shape in (
        ('a/b.png', (88, 88)),
        ('a/d.png', (88, 88)),
        ('c/b.png', (64, 96)),
        ('c/e.png', (88, 88)),
        ('f.bmp', (88, 88)),
    ):
        path = tmp_path / 'images' / name
        path.parent.mkdir(parents=True, exist_ok=True)
        assert cv2.imwrite(str(path), rng.integers(0, 256, (*shape, 3)).astype(np.uint8))
    return tmp_path / 'images'
