"""The wheel, and environments in which it is installed. Parallel test workers share them."""

import fcntl
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.apis.conftest import checkpoints  # noqa: F401 (fixture)
from tests.package.environments import SITE_PACKAGES, Environment, build_wheel, link_requirements

# Returns the folder of a name, which a function has filled once.
Share = Callable[[str, Callable[[Path], object]], Path]


@pytest.fixture(scope='session')
def share(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Share:
    base = tmp_path_factory.getbasetemp()
    base = base if worker_id == 'master' else base.parent

    def fill_once(name: str, fill: Callable[[Path], object]) -> Path:
        folder = base / f'package_{name}'
        with (base / f'package_{name}.lock').open('w') as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / 'complete').exists():
                folder.mkdir()
                fill(folder)
                (folder / 'complete').touch()
        return folder

    return fill_once


@pytest.fixture(scope='session')
def wheel(share: Share) -> Path:
    (wheel,) = share('wheel', build_wheel).glob('*.whl')
    return wheel


@pytest.fixture(scope='session')
def installed(wheel: Path, share: Share) -> Environment:
    """The wheel with all extras."""
    return Environment(share('installed', lambda folder: Environment(folder).install(wheel, SITE_PACKAGES)))


@pytest.fixture(scope='session')
def base(wheel: Path, share: Share) -> Environment:
    """The wheel without extras: torch and what torch requires, nothing else."""

    def install(folder: Path) -> None:
        Environment(folder).install(wheel, link_requirements(folder / 'packages', 'torch'))

    return Environment(share('base', install))
