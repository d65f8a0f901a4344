import shutil
from pathlib import Path

import pytest

from tests.configs.stand_ins import write_all


@pytest.fixture(scope='session')
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small copies of ImageNet, COCO and ADE20K, made once: not to be changed."""
    root = tmp_path_factory.mktemp('stand_ins')
    write_all(root)
    return root


@pytest.fixture
def data_sets(stand_ins: Path, tmp_path: Path) -> Path:
    """The same for one test, which may break them."""
    return shutil.copytree(stand_ins, tmp_path / 'data_sets')
