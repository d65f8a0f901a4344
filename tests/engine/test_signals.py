"""How a process that is going to train takes SIGTERM and SIGUSR1; each in a light process of its own."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from inline.engine.signals import PREEMPTED
from tests.conftest import ROOT

WATCH = 'from inline.engine.signals import stop_request\nstop_request.watch()\n'


def start(code: str, **env: str) -> subprocess.Popen[str]:
    """Run Python code, up to the line 'ready' that it prints."""
    process = subprocess.Popen(
        [sys.executable, '-c', WATCH + code],
        cwd=ROOT,
        env={**os.environ, 'PYTHONPATH': str(ROOT), **env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == 'ready\n'
    return process


def pending(pid: int) -> int:
    """The signals that wait to be taken by a process, as bits."""
    status = Path(f'/proc/{pid}/status').read_text()
    return int(status.split('ShdPnd:')[1].split()[0], 16)


@pytest.mark.parametrize('signum', [signal.SIGTERM, signal.SIGUSR1])
def test_before_training_a_signal_ends_the_process_even_inside_compiled_code(signum: signal.Signals) -> None:
    # The hash runs for minutes and lets other threads run, as waiting for other processes does.
    process = start('import hashlib; print("ready", flush=True); hashlib.pbkdf2_hmac("md5", b"", b"", 10**9)')
    process.send_signal(signum)
    _, err = process.communicate(timeout=120)
    assert process.returncode == PREEMPTED
    assert err == f'stopped by {signum.name} before training began: nothing to save\n'


def test_only_the_first_rank_tells_it() -> None:
    process = start('import time; print("ready", flush=True); time.sleep(300)', RANK='1')
    process.terminate()
    assert process.communicate(timeout=120)[1] == ''
    assert process.returncode == PREEMPTED


def test_during_training_signals_are_noted_and_the_first_one_counts() -> None:
    process = start(
        'import time\n'
        'stop_request.at_once = False\n'
        'print("ready", flush=True)\n'
        'while not stop_request.signum: time.sleep(0.01)\n'
        'print("noted", flush=True)\n'
        'time.sleep(0.5)\n'
        'print(stop_request.signum)\n'
    )
    process.send_signal(signal.SIGUSR1)
    assert process.stdout is not None
    assert process.stdout.readline() == 'noted\n'
    process.terminate()
    assert process.stdout.readline() == f'{int(signal.SIGUSR1)}\n'
    assert process.wait(timeout=120) == 0


def test_a_signal_at_the_very_end_does_not_change_the_exit_code() -> None:
    """The interpreter drops Python's handlers before it is gone; here it takes long to go."""
    process = start(
        'import atexit, sys\n'
        'stop_request.ignore()\n'
        'class Slow:\n'
        '    def __del__(self, sleep=__import__("time").sleep): sleep(1)\n'
        'sys.slow = Slow()\n'
        'atexit.register(print, "over", flush=True)\n'
        'print("ready", flush=True)\n'
        'sys.exit(75)\n'
    )
    assert process.stdout is not None
    assert process.stdout.readline() == 'over\n'
    process.terminate()
    assert process.wait(timeout=120) == PREEMPTED


def test_a_forked_worker_obeys_its_parent_and_nobody_else() -> None:
    """The stranger is this test; the parent ends the worker when it reads a line."""
    process = start(
        'import os, signal, sys, time\n'
        'stop_request.at_once = False\n'
        'reader, writer = os.pipe()\n'
        'worker = os.fork()\n'
        'if worker == 0:\n'
        '    os.write(writer, b"up")\n'
        '    time.sleep(300)\n'
        'os.read(reader, 2)\n'
        'print("ready", flush=True)\n'
        'print(worker, flush=True)\n'
        'sys.stdin.readline()\n'
        'print(os.waitpid(worker, os.WNOHANG)[0], stop_request.signum, flush=True)\n'
        'os.kill(worker, signal.SIGTERM)\n'
        'print(os.waitpid(worker, 0)[1])\n'
    )
    assert process.stdout is not None
    worker = int(process.stdout.readline())
    for signum in (signal.SIGTERM, signal.SIGUSR1, signal.SIGTERM):
        os.kill(worker, signum)
        # The same signal again would be lost while this one waits to be taken.
        while pending(worker):
            time.sleep(0.01)
    out, err = process.communicate('\n', timeout=120)
    # Neither dead nor mistaken for a signal to the parent; then ended as asked, with code 0.
    assert out.split() == ['0', '0', '0'], err
