"""Fixtures for tests of the tools."""

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.apis.conftest import checkpoints, folder  # noqa: F401 (fixtures)
from tests.conftest import ROOT

Run = Callable[..., tuple[int, list[str], list[str]]]


@pytest.fixture
def run_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a tool in this process, which saves the time to import the toolboxes.

    Call it with the name of the tool and its arguments. It returns the exit code and the lines of stdout and
    stderr.
    """

    def run(tool: str, *args: str | Path) -> tuple[int, list[str], list[str]]:
        monkeypatch.chdir(ROOT)
        monkeypatch.setattr(sys, 'argv', [f'{tool}.py', *map(str, args)])
        capsys.readouterr()
        code = 0
        try:
            runpy.run_path(f'tools/{tool}.py', run_name='__main__')
        except SystemExit as stop:
            code = int(stop.code or 0)
        printed = capsys.readouterr()
        return code, printed.out.splitlines(), printed.err.splitlines()

    return run
