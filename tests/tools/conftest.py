"""Tools run in the tests' own process, which saves the seconds that the toolboxes take to import."""

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT

Run = Callable[..., tuple[int, list[str], list[str]]]


@pytest.fixture
def run_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a tool of this name with these words: exit code, lines of output, lines of errors."""

    def run(tool: str, *words: str | Path) -> tuple[int, list[str], list[str]]:
        monkeypatch.chdir(ROOT)
        monkeypatch.setattr(sys, 'argv', [f'{tool}.py', *map(str, words)])
        capsys.readouterr()
        code = 0
        try:
            runpy.run_path(f'tools/{tool}.py', run_name='__main__')
        except SystemExit as stop:
            code = int(stop.code or 0)
        printed = capsys.readouterr()
        return code, printed.out.splitlines(), printed.err.splitlines()

    return run
