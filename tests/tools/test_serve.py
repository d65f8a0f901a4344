"""Mistakes on the command line of the page. The page itself is in tests/serve."""

import runpy
import socket
import sys

import pytest

from tests.conftest import ROOT

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
    'sharing': ([CONFIG, 'gone.pth', '--share'], 'unrecognized arguments: --share'),
}


def run(words: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, 'argv', ['serve.py', *words])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path('tools/serve.py', run_name='__main__')
    return int(stop.value.code or 0)


@pytest.mark.parametrize('mistake', MISTAKES)
def test_a_mistake_gets_one_clear_line(
    mistake: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words, expected = MISTAKES[mistake]
    free = [] if '--port' in words or not words else ['--port', str(free_port())]
    assert run([*words, *free], monkeypatch) == 2
    told = capsys.readouterr().err.splitlines()
    assert len([line for line in told if 'error: ' in line]) == 1
    assert expected in told[-1]


def test_a_port_that_is_taken_is_told_before_models_are_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(('127.0.0.1', 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert run(['nowhere.py', 'gone.pth', '--port', str(port)], monkeypatch) == 2
    assert f'--port {port} cannot be used: Address already in use' in capsys.readouterr().err


def free_port() -> int:
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        return int(free.getsockname()[1])
