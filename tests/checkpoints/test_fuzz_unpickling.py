"""A small part of the fuzzer's files, always the same; and that the fuzzer notices failures."""

import io
import os
import signal
import time
from typing import Any

import pytest

from inline.utils.errors import UserError
from tests.checkpoints import fuzz_unpickling
from tests.checkpoints.fuzz_unpickling import HostileFile, all_files, bases, grid, judge, run


@pytest.mark.slow
def test_hostile_files_are_data_or_one_line() -> None:
    files = all_files(mutants=800, seed=1_000_000, step=67)
    outcomes = run(files)
    assert not [name for name in outcomes if name.startswith('FAILURE')]
    assert outcomes['data'] + outcomes['error'] == len(files)
    assert outcomes['data'] > 50


def test_the_unchanged_files_are_data() -> None:
    for name, content, read in bases():
        assert judge(HostileFile(content, read, name)) == 'data', name
    assert len(grid()) > 10_000


def crash(_: io.BytesIO) -> Any:
    os.kill(os.getpid(), signal.SIGSEGV)


def raise_another_error(_: io.BytesIO) -> Any:
    raise IndexError('x')


def raise_two_lines(_: io.BytesIO) -> Any:
    raise UserError('a\nb')


def wait(_: io.BytesIO) -> Any:
    time.sleep(60)


def grow(_: io.BytesIO) -> Any:
    return b'x' * 2**28


@pytest.mark.slow
def test_the_fuzzer_notices_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    # Enough for every reader but the one that waits, on a busy machine too.
    monkeypatch.setattr(fuzz_unpickling, 'SECONDS', 3)
    monkeypatch.setattr(fuzz_unpickling, 'MEGABYTES', 100)
    readers = [lambda _: 1, crash, raise_another_error, raise_two_lines, wait, grow, lambda _: 2]
    files = [(lambda read=read: HostileFile(b'', read, read.__name__)) for read in readers]
    outcomes = run(files)
    assert outcomes.pop('data') == 2
    failures = sorted(outcomes)
    assert failures[0].startswith('FAILURE grow: ')
    assert failures[0].endswith(' MB')
    assert 'IndexError' in failures[1]
    assert 'bad message' in failures[2]
    assert failures[3] == 'FAILURE signal 11: crash'
    assert 'TimeoutError' in failures[4]
    assert len(failures) == 5
