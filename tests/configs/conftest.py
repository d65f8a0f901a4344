from pathlib import Path

import pytest

from tests.configs.stand_ins import write_all


@pytest.fixture(scope='session')
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small copies of ImageNet, COCO and ADE20K, made once."""
    root = tmp_path_factory.mktemp('data')
    write_all(root)
    return root
