"""Shared by all tests: the stack's cures first, one thread, and a small set of digit scenes."""

import os

# One thread a process: tests start processes of their own, and threads that wait for a busy core are
# many times slower than one thread.
os.environ.setdefault('OMP_NUM_THREADS', '1')
os.environ['ORT_DISABLE_TELEMETRY'] = '1'

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import torch

from inline.compat import prepare
from tests.warm import run_warm, spare_time

# A shell that starts tests in the background lets them ignore Ctrl-C, and so the processes that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
prepare()
spare_time()
torch.set_num_threads(1)

ROOT = Path(__file__).resolve().parents[1]


def run_tool(*args: str | Path, timeout: int = 300, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the repository as a user would: `run_tool('tools/train.py', …)` or a .sh file.

    Python tools run in a process that has the stack imported already: see :mod:`tests.warm`.
    """
    words = [str(arg) for arg in args]
    environment = {**os.environ, 'PYTHON': sys.executable, **env}
    if words[0].endswith('.py'):
        return run_warm(words, ROOT, environment, timeout)
    return run_fresh(['bash', *words], environment, timeout)


def run_fresh(
    command: Sequence[str], env: Mapping[str, str] | None = None, timeout: int = 300
) -> subprocess.CompletedProcess[str]:
    """Run a command of the repository in a process that starts from nothing."""
    return subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=timeout, check=False
    )


def free_port() -> str:
    """Of this machine, for processes that a test lets meet."""
    with socket.socket() as one:
        one.bind(('127.0.0.1', 0))
        return str(one.getsockname()[1])


@pytest.fixture(autouse=True)
def no_visualizer_is_left() -> Iterator[None]:
    """MMEngine keeps visualizers by name, and mmdet's and mmseg's all have one name.

    A process that a later test forks would be given this one's, and wait for ever for its writing thread.
    """
    yield
    visualization = sys.modules.get('mmengine.visualization')
    kinds = [visualization.Visualizer] if visualization else []
    for kind in kinds:
        kind._instance_dict.clear()
        kinds += kind.__subclasses__()


@pytest.fixture(scope='session')
def digit_scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small set of digit scenes, made once."""
    from inline.datasets.digit_scenes import DigitScenesOptions, write_digit_scenes

    folder = tmp_path_factory.mktemp('data') / 'digit_scenes'
    options = DigitScenesOptions(
        num_classification_train=120, num_classification_val=20, num_scenes_train=16, num_scenes_val=4
    )
    write_digit_scenes(folder, options)
    return folder
