"""Set-up of all tests: patches of the stack, one thread, tools in processes, small digit scenes."""

import gc
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FunctionType

import pytest
import torch
from mmengine.utils import ManagerMixin

from inline.engine.signals import stop_request
from inline.openmmlab.patches import apply_patches
from tests.warm import freeze_imported_objects, run_warm, skip_slow_reports

# Until all tests are collected: importing them creates more than a million objects, which are all kept.
gc.disable()
# A shell that starts tests in the background makes them, and the processes that they start, ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
apply_patches()
skip_slow_reports()
torch.set_num_threads(1)
# Tests that run tools/train.py in this process must not install its signal handlers here: processes that
# later tests fork would ignore signals.
stop_request._is_listening = True

ROOT = Path(__file__).resolve().parents[1]


# Functions and modules that start processes.
PROCESSES = {'run_tool', 'run_fresh', 'run_ranks', 'run_warm', 'subprocess', 'fork', 'start_processes'}


# Folders of tests that use many packages together: tools, exports, reports, pages, datasets of users.
INTEGRATION = (
    'apis',
    'docs',
    'reproduce',
    'tools',
    'datasets/custom',
    'datasets/digits',
    'datasets/test_finetune',
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that start a process, and integration tests, as slow: `make quick` leaves them out."""
    for item in items:
        is_integration = item.path.relative_to(ROOT / 'tests').as_posix().startswith(INTEGRATION)
        if is_integration or (isinstance(item, pytest.Function) and _starts_process(item.function, set())):
            item.add_marker('slow')


def _starts_process(function: FunctionType, visited: set[CodeType]) -> bool:
    """Return whether a function, or one that it calls in the same module, uses one of PROCESSES."""
    codes = [function.__code__]
    for code in codes:
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    names = {name for code in codes for name in code.co_names}
    visited.add(function.__code__)
    called = (function.__globals__.get(name) for name in names)
    return bool(names & PROCESSES) or any(
        _starts_process(other, visited)
        for other in called
        if isinstance(other, FunctionType)
        and other.__module__ == function.__module__
        and other.__code__ not in visited
    )


def pytest_collection_finish() -> None:
    freeze_imported_objects()
    gc.enable()


def run_tool(*args: str | Path, timeout: int = 300, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a tool as a user would, ``run_tool('tools/train.py', …)``, or a shell script.

    Python tools run in a process that has imported the stack already: see :mod:`tests.warm`.
    """
    command = [str(arg) for arg in args]
    environment = {**os.environ, 'PYTHON': sys.executable, **env}
    if command[0].endswith('.py'):
        return run_warm(command, ROOT, environment, timeout)
    return run_fresh(['bash', *command], environment, timeout)


def run_fresh(
    command: Sequence[str], env: Mapping[str, str] | None = None, timeout: int = 300
) -> subprocess.CompletedProcess[str]:
    """Run a command in the root of the repository, in a new process."""
    return subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=timeout, check=False
    )


def free_port() -> str:
    """Return a free TCP port of this machine."""
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        return str(probe.getsockname()[1])


def link_programs(folder: Path, *names: str) -> str:
    """Fill a folder with links to system programs, for a PATH that holds nothing else, and return it."""
    folder.mkdir(exist_ok=True)
    for name in names:
        target = next(path for path in (Path('/usr/bin', name), Path('/bin', name)) if path.exists())
        (folder / name).symlink_to(target)
    return str(folder)


@pytest.fixture(autouse=True)
def forget_runs() -> Iterator[None]:
    """Forget the scopes, loggers, message hubs and visualizers of a test's runs.

    MMEngine keeps them by name. A run is named after its config and the second in which it starts, so the
    next test's run could get this one's scope. All visualizers of mmdet and mmseg have the same name, and a
    process that a later test forks would wait forever for the writer thread of this one.
    """
    yield
    classes = [ManagerMixin]
    for cls in classes:
        cls._instance_dict.clear()
        classes += cls.__subclasses__()


@pytest.fixture(autouse=True)
def restore_environment() -> Iterator[None]:
    """Restore the environment variables, such as the rank of a run that a test started in this process."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture(scope='session')
def digit_scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a small set of digit scenes, once."""
    from inline.datasets.digits.scenes import DigitScenesOptions, write_digit_scenes

    folder = tmp_path_factory.mktemp('data') / 'digit_scenes'
    options = DigitScenesOptions(
        num_classification_train=120, num_classification_val=20, num_scenes_train=16, num_scenes_val=4
    )
    write_digit_scenes(folder, options)
    return folder
