"""The set-up script with a stand-in for the environment's interpreter that only writes down its arguments."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

PINS = ('requirements.txt', 'constraints.txt')
FILES = ('tools/setup_env.sh', *PINS, 'setup.cfg', 'pyproject.toml', 'inline/__init__.py')


class Checkout:
    """A copy of what the script reads, and a fake virtual environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in FILES:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
        self.fail_on('nothing')

    def fail_on(self, word: str) -> None:
        """From now on the fake interpreter fails when its arguments contain this word."""
        python = self.folder / 'venv' / 'bin' / 'python'
        python.parent.mkdir(parents=True, exist_ok=True)
        python.write_text(
            f'#!/bin/sh\necho "$@" >> {self.folder}/calls\ncase "$*" in *{word}*) exit 1;; esac\n'
        )
        python.chmod(0o755)

    def run(self, **env: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
        """The finished script, and what it asked the interpreter to do."""
        (self.folder / 'calls').write_text('')
        done = subprocess.run(
            ['bash', str(self.folder / 'tools' / 'setup_env.sh')],
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


def test_torch_comes_first_then_the_pins_then_the_package_then_the_check(checkout: Checkout) -> None:
    done, calls = checkout.run()
    assert done.returncode == 0, done.stderr
    build, torch, requirements, package, check = calls
    assert 'setuptools==' in build
    assert 'ninja==' in build
    assert 'torch==' in torch
    assert 'torchvision==' in torch
    assert requirements.endswith('-r requirements.txt')
    assert package.endswith('--no-deps --editable .')
    assert check == '-m inline.compat'
    assert all('--no-build-isolation --constraint constraints.txt' in call for call in calls[:-1])
    assert '13 CPU-minutes' in done.stdout


def test_run_again_it_does_nothing(checkout: Checkout) -> None:
    checkout.run()
    done, calls = checkout.run()
    assert (done.returncode, done.stdout, calls) == (0, '', [])


@pytest.mark.parametrize('name', PINS)
def test_changed_pins_are_noticed(name: str, checkout: Checkout) -> None:
    checkout.run()
    with (checkout.folder / name).open('a') as file:
        file.write('einops==0.8.2\n')
    _, calls = checkout.run()
    assert [call.split()[-1] for call in calls] == ['requirements.txt', 'inline.compat']


def test_interrupted_it_goes_on_at_the_step_where_it_stopped(checkout: Checkout) -> None:
    checkout.fail_on('-r')
    done, calls = checkout.run()
    assert done.returncode == 1
    assert 'a C++ compiler' in done.stderr
    assert len(calls) == 3
    checkout.fail_on('nothing')
    done, calls = checkout.run()
    assert done.returncode == 0
    assert [call.split()[-1] for call in calls] == ['requirements.txt', '.', 'inline.compat']


def test_operators_that_do_not_run_are_told_with_a_remedy(checkout: Checkout) -> None:
    checkout.fail_on('compat')
    done, _ = checkout.run()
    assert done.returncode == 1
    assert 'mmcv has no working operators: run' in done.stderr.splitlines()[-1]


def test_an_old_interpreter_is_told(checkout: Checkout) -> None:
    old = checkout.folder / 'python3.10'
    old.write_text('#!/bin/sh\n[ "$1" = -V ] && echo Python 3.10.14\nexit 1\n')
    old.chmod(0o755)
    done, calls = checkout.run(PYTHON=str(old))
    assert done.returncode == 1
    assert 'is Python 3.10.14: Python 3.11 or newer is needed' in done.stderr
    assert calls == []


def test_a_missing_interpreter_is_told(checkout: Checkout) -> None:
    done, calls = checkout.run(PYTHON='python-of-nowhere')
    assert done.returncode == 1
    assert "no interpreter 'python-of-nowhere'" in done.stderr
    assert calls == []
