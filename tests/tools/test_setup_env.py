"""tools/setup_env.sh with a fake interpreter that records how it is called."""

import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.conftest import ROOT

PINS = ('requirements.txt', 'constraints.txt')
FILES = ('tools/setup_env.sh', *PINS, 'setup.py', 'setup.cfg', 'pyproject.toml', 'inline/__init__.py')
INSTALL = '-m pip install '

# Records its arguments and the variables that mmcv is compiled with; fails if an argument contains FAIL_ON.
INTERPRETER = """#!/bin/sh
echo "$@ | CFLAGS=$CFLAGS MMCV_WITH_OPS=$MMCV_WITH_OPS" >> {folder}/calls
[ -z "$FAIL_ON" ] && exit 0
case "$*" in *"$FAIL_ON"*) exit 1;; esac
"""
# Runs Python code as if the interpreter had another version.
OTHER_VERSION = """#!/bin/sh
[ "$1" = -V ] && echo Python {major}.{minor}.1 && exit
exec {python} -c "import sys; sys.version_info = ({major}, {minor}, 1)
$2"
"""


class Checkout:
    """Copy of the files that the script reads, with a fake virtual environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in FILES:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
        self.write_program('venv/bin/python', INTERPRETER.format(folder=folder))

    def write_program(self, name: str, script: str) -> str:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(script)
        path.chmod(0o755)
        return str(path)

    def run(self, *arguments: str, **env: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
        """Run the script; return the finished process and the calls of the interpreter."""
        (self.folder / 'calls').write_text('')
        done = subprocess.run(
            ['bash', str(self.folder / 'tools' / 'setup_env.sh'), *arguments],
            env={'PATH': '/usr/bin:/bin', 'VENV': 'venv', 'PYTHON': sys.executable, **env},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done, (self.folder / 'calls').read_text().splitlines()


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def find(calls: list[str], text: str) -> int:
    """Return the index of the only call that contains the text."""
    (index,) = [index for index, call in enumerate(calls) if text in call]
    return index


def test_steps_run_in_the_order_that_compiling_mmcv_needs(checkout: Checkout) -> None:
    """torch and the build tools are installed before mmcv, which compiles against them."""
    done, calls = checkout.run()
    assert done.returncode == 0, done.stderr
    tools, torch_, requirements = (find(calls, text) for text in (' ninja==', ' torch==', '-r requirements'))
    package = find(calls, '--editable .')
    assert tools < torch_ < requirements < package < len(calls) - 1
    # With build isolation pip would compile mmcv without torch, that is without operators.
    for call in calls[:-1]:
        assert call.startswith(INSTALL)
        assert ' --no-build-isolation ' in call
        assert ' --constraint constraints.txt ' in call
    assert calls[requirements].endswith('CFLAGS=-g0 -O2 MMCV_WITH_OPS=1')


@pytest.mark.parametrize('fault', ['missing', 'wrong'])
def test_last_step_detects_broken_operators(
    fault: str, checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run the module that the script runs at the end, with a broken mmcv."""
    _, calls = checkout.run()
    flag, module = calls[-1].split()[:2]
    assert flag == '-m'
    operators: ModuleType | None = None
    if fault == 'wrong':
        operators = ModuleType('mmcv.ops')
        operators.nms = lambda boxes, *_, **__: (boxes, torch.arange(3))  # type: ignore[attr-defined]
    # None makes the import fail, whichever submodules other tests have imported.
    monkeypatch.setitem(sys.modules, 'mmcv.ops', operators)
    # `from mmcv.ops import nms` would fall back to the submodule of that name.
    monkeypatch.delitem(sys.modules, 'mmcv.ops.nms', raising=False)
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises((ImportError, RuntimeError), match=r'mmcv\.ops'):
        runpy.run_module(module, run_name='__main__')


def test_second_run_does_nothing(checkout: Checkout) -> None:
    assert checkout.run()[1]
    done, calls = checkout.run()
    assert (done.returncode, done.stdout, calls) == (0, '', [])


@pytest.mark.parametrize('name', PINS)
def test_changed_pins_are_installed_and_checked(name: str, checkout: Checkout) -> None:
    checkout.run()
    with (checkout.folder / name).open('a') as file:
        file.write('einops==0.8.2\n')
    _, calls = checkout.run()
    assert len(calls) == 2
    assert find(calls, '-r requirements.txt') == 0
    assert not calls[1].startswith(INSTALL)


def test_interrupted_setup_continues_with_the_failed_step(checkout: Checkout) -> None:
    done, calls = checkout.run(FAIL_ON='-r requirements.txt')
    assert done.returncode == 1
    assert 'it needs a C++ compiler' in done.stderr
    assert find(calls, '-r requirements.txt') == len(calls) - 1
    done, calls = checkout.run()
    assert done.returncode == 0
    assert find(calls, '-r requirements.txt') == 0
    assert len(calls) == 3


def test_broken_operators_stop_the_setup_with_a_hint(checkout: Checkout) -> None:
    _, calls = checkout.run()
    shutil.rmtree(checkout.folder / 'venv' / '.inline-setup')
    done, _ = checkout.run(FAIL_ON=calls[-1].split(' | ')[0])
    assert done.returncode == 1
    assert 'the operators of mmcv do not work: run' in done.stderr.splitlines()[-1]
    # The check is repeated until it succeeds.
    assert len(checkout.run()[1]) == 1


@pytest.mark.parametrize(('version', 'accepted'), [((3, 10), False), ((2, 12), False), ((3, 11), True)])
def test_version_of_the_interpreter_is_checked(
    version: tuple[int, int], accepted: bool, checkout: Checkout
) -> None:
    major, minor = version
    script = OTHER_VERSION.format(major=major, minor=minor, python=sys.executable)
    done, calls = checkout.run(PYTHON=checkout.write_program('other_python', script))
    assert (done.returncode == 0) == accepted, done.stderr
    assert bool(calls) == accepted
    message = f'is Python {major}.{minor}.1: Python 3.11 or newer is required'
    assert (message in done.stderr) != accepted


def test_missing_interpreter_is_reported(checkout: Checkout) -> None:
    done, calls = checkout.run(PYTHON='no-such-python')
    assert done.returncode == 1
    assert "interpreter 'no-such-python' is not found" in done.stderr
    assert calls == []


def test_help_prints_the_usage(checkout: Checkout) -> None:
    done, calls = checkout.run('--help')
    assert done.returncode == 0
    assert 'Usage: tools/setup_env.sh' in done.stdout
    assert calls == []
