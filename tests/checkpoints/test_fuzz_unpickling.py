"""A small part of the fuzzer's files, always the same; and that the fuzzer notices failures."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from inline.utils.errors import UserError
from tests.checkpoints import fuzz_unpickling
from tests.checkpoints.fuzz_unpickling import HostileFile, all_files, bases, grid, judge, run
from tests.conftest import ROOT


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


def print_outcomes() -> None:
    """Print what the fuzzer says of readers that fail in every way."""
    # Enough for every reader but the one that waits, on a busy machine too.
    fuzz_unpickling.SECONDS, fuzz_unpickling.MEGABYTES = 3, 100
    readers = [lambda _: 1, crash, raise_another_error, raise_two_lines, wait, grow, lambda _: 2]
    print(json.dumps(run([(lambda read=read: HostileFile(b'', read, read.__name__)) for read in readers])))


@pytest.mark.slow
def test_the_fuzzer_notices_failures() -> None:
    """In a new process: a signal ended the reader that waits where other tests had loaded their libraries."""
    code = 'from tests.checkpoints.test_fuzz_unpickling import print_outcomes; print_outcomes()'
    done = subprocess.run([sys.executable, '-c', code], cwd=ROOT, capture_output=True, text=True, check=True)
    outcomes = json.loads(done.stdout.splitlines()[-1])
    assert outcomes.pop('data') == 2
    failures = sorted(outcomes)
    assert failures[0].startswith('FAILURE grow: ')
    assert failures[0].endswith(' MB')
    assert 'IndexError' in failures[1]
    assert 'bad message' in failures[2]
    assert failures[3] == 'FAILURE signal 11: crash'
    assert 'TimeoutError' in failures[4]
    assert len(failures) == 5
