from pathlib import Path

import pytest

from tests.configs.tiny_datasets import write_all


@pytest.fixture(scope='session')
def tiny_datasets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small copies of ImageNet, COCO and ADE20K, made once."""
    root = tmp_path_factory.mktemp('data')
    write_all(root)
    return root
