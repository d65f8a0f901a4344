"""SIGTERM, SIGUSR1 and Ctrl-C before and during training, each test in a small process without torch."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from inline.engine.signals import EXIT_INTERRUPTED, EXIT_PREEMPTED, REPEAT_SECONDS
from tests.conftest import ROOT

LISTEN = 'from inline.engine.signals import stop_request\nstop_request.listen()\n'


def start(code: str, **env: str) -> subprocess.Popen[str]:
    """Run Python code until it prints the line 'ready'."""
    process = subprocess.Popen(
        [sys.executable, '-c', LISTEN + code],
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
    """Return the pending signals of a process as a bit mask."""
    status = Path(f'/proc/{pid}/status').read_text()
    return int(status.split('ShdPnd:')[1].split()[0], 16)


@pytest.mark.parametrize(
    ('signum', 'name', 'code'),
    [
        (signal.SIGTERM, 'SIGTERM', EXIT_PREEMPTED),
        (signal.SIGUSR1, 'SIGUSR1', EXIT_PREEMPTED),
        (signal.SIGINT, 'Ctrl-C', EXIT_INTERRUPTED),
    ],
)
def test_signal_before_training_ends_the_process_even_inside_compiled_code(
    signum: signal.Signals, name: str, code: int
) -> None:
    # The hash runs for minutes and releases the GIL, like a collective that waits for other ranks.
    process = start('import hashlib; print("ready", flush=True); hashlib.pbkdf2_hmac("md5", b"", b"", 10**9)')
    process.send_signal(signum)
    _, err = process.communicate(timeout=120)
    assert process.returncode == code
    assert err == f'stopped by {name} before training began: nothing to save\n'


def test_only_rank_0_prints_the_message() -> None:
    process = start('import time; print("ready", flush=True); time.sleep(300)', RANK='1')
    process.terminate()
    assert process.communicate(timeout=120)[1] == ''
    assert process.returncode == EXIT_PREEMPTED


@pytest.mark.parametrize(
    ('signum', 'rank', 'code', 'is_marked'),
    [
        # srun sends SIGTERM when another rank has failed, whose code must be the highest.
        (signal.SIGTERM, '0', 1, False),
        (signal.SIGTERM, '1', 1, False),
        (signal.SIGUSR1, '0', EXIT_PREEMPTED, True),
        (signal.SIGUSR1, '1', 0, False),
    ],
)
def test_signal_before_training_in_a_step_of_several_tasks(
    signum: signal.Signals, rank: str, code: int, is_marked: bool, tmp_path: Path
) -> None:
    marker = tmp_path / 'marker'
    process = start(
        'import time; print("ready", flush=True); time.sleep(300)',
        SLURM_STEP_NUM_TASKS='2', SLURM_PROCID=rank, INLINE_PREEMPTED_FILE=str(marker),
    )  # fmt: skip
    process.send_signal(signum)
    process.communicate(timeout=120)
    assert process.returncode == code
    assert marker.exists() == is_marked


def test_first_signal_during_training_is_recorded() -> None:
    process = start(
        'import time\n'
        'stop_request.exit_immediately = False\n'
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


def test_second_ctrl_c_ends_the_process_at_once() -> None:
    """The first two come together, as from a launcher that forwards what the terminal sends to all."""
    process = start(
        'import time\n'
        'stop_request.exit_immediately = False\n'
        'print("ready", flush=True)\n'
        'while not stop_request.signum: time.sleep(0.01)\n'
        'print("noted", flush=True)\n'
        'time.sleep(300)\n'
    )
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    assert process.stdout.readline() == 'noted\n'
    process.send_signal(signal.SIGINT)
    time.sleep(2 * REPEAT_SECONDS)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == EXIT_INTERRUPTED
    assert err.splitlines() == [
        'saving a checkpoint after this step; press Ctrl-C again to exit without it',
        'stopped by a second Ctrl-C: --resume continues from the last checkpoint',
    ]


def test_signal_during_interpreter_shutdown_does_not_change_the_exit_code() -> None:
    """The interpreter drops Python's handlers early in its shutdown, which takes a second here."""
    process = start(
        'import atexit, sys\n'
        'stop_request.ignore_signals()\n'
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
    assert process.wait(timeout=120) == EXIT_PREEMPTED


def test_forked_worker_exits_only_on_signals_of_its_parent() -> None:
    """This test is neither; the parent signals the worker when it reads a line."""
    process = start(
        'import os, signal, sys, time\n'
        'stop_request.exit_immediately = False\n'
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
    for signum in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGTERM):
        os.kill(worker, signum)
        # A signal is lost while the same signal is pending.
        while pending(worker):
            time.sleep(0.01)
    out, err = process.communicate('\n', timeout=120)
    # The worker is alive and the parent saw no signal; then the worker exits with code 0.
    assert out.split() == ['0', '0', '0'], err
