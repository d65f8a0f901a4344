"""Tiny datasets for the tests of this folder."""

import shutil
from pathlib import Path

import pytest

from tests.configs.tiny_datasets import write_all


@pytest.fixture(scope='session')
def tiny_datasets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ImageNet, COCO and ADE20K in small, written once; tests must not change them."""
    root = tmp_path_factory.mktemp('tiny_datasets')
    write_all(root)
    return root


@pytest.fixture
def datasets(tiny_datasets: Path, tmp_path: Path) -> Path:
    """A copy of the tiny datasets that a test may change."""
    return shutil.copytree(tiny_datasets, tmp_path / 'datasets')
