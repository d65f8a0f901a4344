"""Mistakes on the command line of the page. The page itself is in tests/serve."""

import argparse
import socket
from pathlib import Path

import pytest
import torch

from tests.conftest import run_tool
from tests.inference.small_models import CONFIGS, save_checkpoint
from tests.tools.conftest import Run

CONFIG = 'configs/digits_quick/inline-pvt-nano_digits.py'
MISTAKES = {
    'nothing': ([], 'the following arguments are required: config, checkpoint'),
    'port': ([CONFIG, 'gone.pth', '--port', '99999'], '--port 99999: must be from 1 to 65535'),
    'no number': ([CONFIG, 'gone.pth', '--port', 'a'], "argument --port: invalid int value: 'a'"),
    'size': ([CONFIG, 'gone.pth', '--max-megabytes', '0'], '--max-megabytes 0: must be greater than 0'),
    'pixels': ([CONFIG, 'gone.pth', '--max-megapixels', '-1'], '--max-megapixels -1: must be greater than 0'),
    'config': (['nowhere.py', 'gone.pth'], "config 'nowhere.py' does not exist"),
    'checkpoint': ([CONFIG, 'gone.pth'], "checkpoint 'gone.pth' does not exist"),
    'half a comparison': ([CONFIG, 'gone.pth', '--compare', CONFIG], '--compare: expected 2 arguments'),
    'sharing': ([CONFIG, 'gone.pth', '--share'], 'unrecognized argument --share'),
}


@pytest.mark.parametrize('mistake', MISTAKES)
def test_a_mistake_gets_one_clear_line(mistake: str, run_here: Run) -> None:
    words, expected = MISTAKES[mistake]
    free = [] if '--port' in words or not words else ['--port', str(free_port())]
    code, _, told = run_here('serve', *words, *free)
    assert code == 2
    assert len([line for line in told if 'error: ' in line]) == 1
    assert expected in told[-1]


def test_a_port_that_is_taken_is_told_before_models_are_read(run_here: Run) -> None:
    with socket.socket() as taken:
        taken.bind(('127.0.0.1', 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, _, told = run_here('serve', 'nowhere.py', 'gone.pth', '--port', str(port))
    assert code == 2
    assert f'--port {port} cannot be used: Address already in use' in told[-1]


def test_trust_and_device_are_for_the_model(run_here: Run, tmp_path: Path) -> None:
    """A config by name. With trust the checkpoint is read, and the device is what is wrong then."""
    checkpoint = save_checkpoint('classification', tmp_path / 'a.pth')
    content = torch.load(checkpoint, weights_only=True)
    torch.save({**content, 'args': argparse.Namespace()}, checkpoint)
    words = [CONFIGS['classification'], checkpoint, '--device', 'abacus', '--port', str(free_port())]
    code, _, told = run_here('serve', *words)
    assert code == 2
    assert 'which is not data' in told[-1]
    # In a process of its own: trust is given to all that a process loads.
    done = run_tool('tools/serve.py', *words, '--trust-checkpoint')
    assert done.returncode == 2
    assert "error: device 'abacus' cannot be used" in done.stderr


def free_port() -> int:
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        return int(free.getsockname()[1])
