"""Command line of tools/serve.py. For the page, see tests/apis/serve."""

import socket
from pathlib import Path

import pytest
import torch

from tests.apis.small_models import CONFIGS
from tests.conftest import free_port
from tests.tools.conftest import Run

CONFIG = 'configs/digits_quick/inline-pvt-nano_digits.py'
INVALID = {
    'no arguments': ([], 'the following arguments are required: config, checkpoint'),
    'port': ([CONFIG, 'gone.pth', '--port', '99999'], '--port 99999: must be from 1 to 65535'),
    'port not a number': ([CONFIG, 'gone.pth', '--port', 'a'], "argument --port: invalid int value: 'a'"),
    'size': ([CONFIG, 'gone.pth', '--max-megabytes', '0'], '--max-megabytes 0: must be greater than 0'),
    'pixels': ([CONFIG, 'gone.pth', '--max-megapixels', '-1'], '--max-megapixels -1: must be greater than 0'),
    'seconds': ([CONFIG, 'gone.pth', '--max-seconds', '0'], '--max-seconds 0: must be greater than 0'),
    'host': (
        [CONFIG, 'gone.pth', '--allow-host', 'http://a.org'],
        "--allow-host 'http://a.org': must be a host name without scheme, port or path",
    ),
    'config': (['nowhere.py', 'gone.pth'], "config 'nowhere.py' does not exist"),
    'checkpoint': ([CONFIG, 'gone.pth'], "checkpoint 'gone.pth' does not exist"),
    'incomplete comparison': ([CONFIG, 'gone.pth', '--compare', CONFIG], '--compare: expected 2 arguments'),
    'sharing': ([CONFIG, 'gone.pth', '--share'], 'unrecognized argument --share'),
}


@pytest.mark.parametrize('case', INVALID)
def test_invalid_arguments_give_one_error_line(case: str, run_here: Run) -> None:
    args, expected = INVALID[case]
    port = [] if '--port' in args or not args else ['--port', free_port()]
    code, _, errors = run_here('serve', *args, *port)
    assert code == 2
    assert len([line for line in errors if 'error: ' in line]) == 1
    assert expected in errors[-1]


def test_port_in_use_raises_before_models_are_loaded(run_here: Run) -> None:
    with socket.socket() as occupied:
        occupied.bind(('127.0.0.1', 0))
        occupied.listen()
        port = occupied.getsockname()[1]
        code, _, errors = run_here('serve', 'nowhere.py', 'gone.pth', '--port', str(port))
    assert code == 2
    assert f'--port {port} cannot be used: Address already in use' in errors[-1]


def test_trust_and_device_apply_to_the_model(
    run_here: Run, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    """With --trust-checkpoint the file loads, and the error is the invalid device."""
    checkpoint = tmp_path / 'a.pth'
    content = torch.load(checkpoints['classification'], weights_only=True)
    torch.save({**content, 'args': torch.nn.Identity()}, checkpoint)
    args = [CONFIGS['classification'], checkpoint, '--device', 'abacus', '--port', free_port()]
    code, _, errors = run_here('serve', *args)
    assert code == 2
    assert 'which is not plain data' in errors[-1]
    code, _, errors = run_here('serve', *args, '--trust-checkpoint')
    assert code == 2
    assert "error: device 'abacus' is not available" in errors[-1]
