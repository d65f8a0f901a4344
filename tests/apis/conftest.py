from pathlib import Path

import pytest

from inline import InLineModel
from tests.apis.small_models import CONFIGS, save_checkpoint, write_images


@pytest.fixture(scope='session')
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp('checkpoints')
    return {task: save_checkpoint(task, folder / f'{task}.pth') for task in CONFIGS}


@pytest.fixture(scope='session')
def models(checkpoints: dict[str, Path]) -> dict[str, InLineModel]:
    return {task: InLineModel(name, checkpoints[task], 'cpu') for task, name in CONFIGS.items()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_images(tmp_path / 'images')
