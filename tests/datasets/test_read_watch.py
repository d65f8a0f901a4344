"""Reads that hang are reported with the name of the file, in real trainings and in small processes."""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from mmengine.config import Config

from inline.datasets import loading, read_watch
from inline.datasets.read_watch import notes, watch_reads
from inline.engine.signals import end_with_launcher
from inline.utils.errors import BadDataError
from tests.engine.crash_runs import Attempt, Runs
from tests.engine.test_crash import COMMON


def wait_for_data() -> None:
    """Wait for ever, as for a FIFO without a writer. A signal interrupts it."""
    os.read(os.pipe()[0], 1)


def stop_process() -> None:
    """Stop this process: like one that waits for a network drive, it reacts to SIGKILL only."""
    os.kill(os.getpid(), signal.SIGSTOP)


def hang_at(image: Path, hang: Callable[[], None]) -> None:
    """Let the reading of one image hang, in a process like that of tools/train.py."""
    end_with_launcher()
    read = loading.read_file

    def read_file(path: str) -> bytes:
        if path.endswith(image.name):
            hang()
        return read(path)

    loading.read_file = read_file


@pytest.mark.slow
@pytest.mark.parametrize(('num_workers', 'hang'), [(0, wait_for_data), (2, stop_process)])
def test_hanging_read_ends_the_training_with_the_name_of_the_file(
    num_workers: int, hang: Callable[[], None], digit_scenes: Path, tmp_path: Path
) -> None:
    image = min(digit_scenes.glob('classification/train/*/*.jpg'))
    options = {
        **COMMON,
        'train_cfg.max_iters': 1000,
        'train_dataloader.num_workers': num_workers,
        'default_hooks.checkpoint.save_best': None,
        'data_validation': {'read_timeout': 1.0},
    }
    runs = Runs(tmp_path / 'run', digit_scenes.parent, options)
    assert runs.attempt(Attempt(patch=lambda: hang_at(image, hang)), resume=None)[0] == 2, runs.output()[
        -3000:
    ]
    error = runs.output().splitlines()[-1]
    assert error.startswith("error: '")
    assert image.name in error
    assert 'cannot be read: no answer within 1 s (data_validation.read_timeout)' in error
    assert 'Traceback' not in runs.output()


def in_child(work: Callable[[], None], output: Path) -> int:
    """Call a function in a forked process, with its errors in a file, and return the exit code."""
    child = os.fork()
    if child == 0:
        sys.stderr = output.open('w')
        code = 1
        try:
            work()
            code = 0
        except BadDataError as error:
            print(error, file=sys.stderr, flush=True)
            code = 3
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def config(read_timeout: float) -> Config:
    return Config({'data_validation': {'read_timeout': read_timeout}})


def test_process_that_cannot_be_interrupted_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_watch, '_END_SECONDS', 0.2)

    def work() -> None:
        with watch_reads(config(0.1)):
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
            notes.begin('stuck.png')
            time.sleep(300)

    assert in_child(work, tmp_path / 'errors') == 2
    assert (tmp_path / 'errors').read_text().startswith("error: 'stuck.png' cannot be read: no answer within")


def test_note_of_a_killed_data_worker_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def work() -> None:
        notes.open()
        child = os.fork()
        if child == 0:
            notes.begin('killed.png')
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(child, 0)
        # The watch starts after the worker's death, however long the kernel takes to end the process.
        monkeypatch.setattr(notes, 'open', lambda: None)
        with watch_reads(config(0.1)):
            assert list(notes.current().values()) == ['killed.png']
            notes.begin('read.png')
            notes.end()
            time.sleep(0.5)

    assert in_child(work, tmp_path / 'errors') == 0


def test_no_timeout_if_it_is_zero(tmp_path: Path) -> None:
    def work() -> None:
        with watch_reads(config(0)):
            notes.begin('slow.png')
            time.sleep(0.3)
            notes.end()

    assert in_child(work, tmp_path / 'errors') == 0


def test_forked_processes_have_their_own_notes() -> None:
    """More processes than slots are forked over a long run: the slots are used again."""
    notes.open()
    try:
        notes.begin('parent.png')
        for _ in range(3):
            notes._next_slot = read_watch._SLOTS - 1
            for name in ('a.png', 'b.png'):
                if os.fork() == 0:
                    notes.begin(name)
                    os._exit(0)
                os.wait()
        assert sorted(notes.current().values()) == ['a.png', 'b.png', 'parent.png']
    finally:
        notes.close()
    assert notes.current() == {}
