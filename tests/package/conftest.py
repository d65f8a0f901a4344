"""The wheel, and environments in which it is installed."""

from pathlib import Path

import pytest

from tests.apis.conftest import checkpoints  # noqa: F401 (fixture)
from tests.package.environments import SITE_PACKAGES, Environment, build_wheel, link_requirements


@pytest.fixture(scope='session')
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp('wheel'))


@pytest.fixture(scope='session')
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The wheel with all extras."""
    return Environment(tmp_path_factory.mktemp('installed'), wheel, SITE_PACKAGES)


@pytest.fixture(scope='session')
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The wheel without extras: torch and what torch requires, nothing else."""
    folder = tmp_path_factory.mktemp('base')
    return Environment(folder, wheel, link_requirements(folder / 'packages', 'torch'))
