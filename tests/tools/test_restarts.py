"""Training runs that lose a worker or their SLURM job, run by the launch scripts in real processes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from inline.engine.resume import PREEMPTED_NAME
from inline.engine.signals import EXIT_PREEMPTED
from inline.engine.work_dir_lock import LOCK_NAME
from inline.utils.processes import find_process
from tests.conftest import ROOT, free_port, link_programs, run_tool

CONFIG = 'configs/digits_quick/inline-pvt-nano_digits.py'
STEPS = 60


def options(data: Path, work_dir: Path) -> list[str]:
    """Return the flags of a training run with small steps and a checkpoint after every tenth."""
    settings = {
        'train_cfg.max_iters': STEPS,
        'train_cfg.val_interval': STEPS,
        'default_hooks.logger.interval': 1,
        'default_hooks.checkpoint.interval': 10,
        'train_dataloader.batch_size': 2,
        'train_dataloader.dataset.data_root': data / 'classification',
        'val_dataloader.dataset.data_root': data / 'classification',
    }
    return [
        '--work-dir',
        str(work_dir),
        '--cfg-options',
        *(f'{key}={value}' for key, value in settings.items()),
    ]


def logged_steps(work_dir: Path) -> list[list[int]]:
    """Return the logged steps of each start, in order."""
    starts = []
    for path in sorted(work_dir.glob('*/vis_data/scalars.json')):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        starts.append([line['step'] for line in lines if 'loss' in line])
    return starts


def count_logged_lines(work_dir: Path, start: int) -> int:
    """Return the number of lines that a start has logged so far."""
    files = sorted(work_dir.glob('*/vis_data/scalars.json'))
    return len(files[start].read_text().splitlines()) if len(files) > start else 0


def children(pid: int) -> list[int]:
    """Return the processes that the main thread of a process has started."""
    return [int(child) for child in Path(f'/proc/{pid}/task/{pid}/children').read_text().split()]


class Launcher:
    """tools/dist_train.sh in the background, with its output in a file."""

    def __init__(self, arguments: list[str], log: Path, **env: str) -> None:
        self.log = log
        self.pids: list[int] = []
        self.process = subprocess.Popen(
            ['bash', 'tools/dist_train.sh', Path(CONFIG).stem, *arguments],
            cwd=ROOT,
            env={**os.environ, 'PYTHON': sys.executable, **env},
            stdout=log.open('w'),
            stderr=subprocess.STDOUT,
        )

    def workers(self) -> list[int]:
        """Return the process ids of the workers."""
        return children(self.process.pid)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 1200
        while not condition():
            assert self.process.poll() is None, self.output()
            assert time.monotonic() < deadline, self.output()
            time.sleep(0.02)

    def output(self) -> str:
        return self.log.read_text()

    def kill(self) -> None:
        """Kill the launcher and its workers."""
        if self.process.poll() is None:
            for process in (self.process.pid, *self.workers()):
                os.kill(process, signal.SIGKILL)
            self.process.wait()


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Launcher]]:
    """Return a function that starts a launcher, given its flags, the name of its log and its environment."""
    with ExitStack() as started:

        def start(arguments: list[str], log: str, **env: str) -> Launcher:
            launcher = Launcher(arguments, tmp_path / log, **env)
            started.callback(launcher.kill)
            return launcher

        yield start


@pytest.mark.exhaustive
def test_run_survives_a_killed_worker_and_saves_when_it_is_stopped(
    launch: Callable[..., Launcher], digit_scenes: Path, tmp_path: Path
) -> None:
    """Kill a worker, stop the restarted run with Ctrl-C, resume with one process, kill the launcher."""
    work_dir = tmp_path / 'run'
    flags = options(digit_scenes, work_dir)
    launcher = launch(['2', *flags], 'log', PORT=free_port())
    launcher.wait_for((work_dir / 'iter_10.pth').exists)
    os.kill(launcher.workers()[1], signal.SIGKILL)
    launcher.wait_for(lambda: count_logged_lines(work_dir, start=1) > 3)
    launcher.process.send_signal(signal.SIGINT)
    assert launcher.process.wait(timeout=1200) == EXIT_PREEMPTED, launcher.output()
    _, message, output = launcher.output().partition('rank 1 was killed by SIGKILL: restarting all workers')
    assert message
    assert output.count('stopped by Ctrl-C after step') == 1
    assert 'Traceback' not in output
    assert (work_dir / PREEMPTED_NAME).is_file()
    # One process with batch size 4 trains on the same batches as two ranks with batch size 2.
    flags = ['--resume', *flags, 'train_dataloader.batch_size=4']
    launcher = launch(['1', *flags, 'train_cfg.max_iters=100000'], 'log_resumed', PORT=free_port())
    launcher.wait_for(lambda: count_logged_lines(work_dir, start=2) > 1)
    launcher.pids = launcher.workers()
    os.kill(launcher.pids[0], signal.SIGSTOP)
    changed = 'the continuation is not exact, processes (2 → 1), batch size (2 → 4) changed'
    assert launcher.output().count(changed) == 1
    assert_in_use(launcher, work_dir, flags)
    kill_with_workers(launcher)
    end = logged_steps(work_dir)[2][-1] + 2
    resumed = run_tool('tools/train.py', CONFIG, *flags, f'train_cfg.max_iters={end}')
    assert resumed.returncode == 0, resumed.stderr[-3000:]
    assert f'took over the lock of process {launcher.pids[0]} on host' in resumed.stdout
    assert not (work_dir / LOCK_NAME).exists()
    first, second, third, fourth = logged_steps(work_dir)
    # The restarted run begins after the last checkpoint. Steps after it were lost with the worker.
    assert first == list(range(1, len(first) + 1))
    assert second == list(range(second[0], second[0] + len(second)))
    assert second[0] % 10 == 1
    assert 10 < second[0] <= len(first) + 1
    # The stopped run lost nothing, the killed one the steps after its last checkpoint.
    assert third == list(range(second[-1] + 1, second[-1] + 1 + len(third)))
    assert fourth == list(range(fourth[0], end + 1))
    assert second[-1] < fourth[0] <= third[-1] + 1


def assert_in_use(launcher: Launcher, work_dir: Path, flags: list[str]) -> None:
    """Another training in the work directory is refused, a test is not."""
    refused = run_tool('tools/train.py', CONFIG, *flags)
    assert refused.returncode == 2
    assert re.fullmatch(
        rf"error: work directory '.*' is in use by the training run of process {launcher.pids[0]} on host "
        r"'.+' since \d{4}-\d\d-\d\d .*: wait for it, stop it, or choose another --work-dir\n",
        refused.stderr,
    ), refused.stderr
    options = [flag.replace('val_dataloader', 'test_dataloader') for flag in flags[1:]]
    tested = run_tool('tools/test.py', CONFIG, work_dir / PREEMPTED_NAME, *options)
    assert tested.returncode == 0, tested.stderr[-3000:]


def kill_with_workers(launcher: Launcher) -> None:
    """Kill the launcher; its worker and the data workers end as well."""
    (worker,) = launcher.pids
    processes = [worker, *children(worker)]
    assert len(processes) > 1, 'no data workers'
    launcher.process.kill()
    launcher.process.wait()
    deadline = time.monotonic() + 60
    while any(find_process(process) for process in processes):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize('name', ['MAX_RESTARTS', 'REJOIN_SECONDS', 'GRACE_SECONDS', 'NODE_RANK'])
def test_variable_that_is_not_a_number_is_refused(name: str) -> None:
    done = run_tool('tools/dist_train.sh', CONFIG, '2', **{name: 'often'})
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {name} is 'often': must be an integer, at least ")


# Programs that behave like those of SLURM inside a job. tests/slurm runs the scripts on a real one.
SRUN = """#!/usr/bin/env bash
printf 'start %s\\n' "${{INLINE_RESTARTED:-0}}" >> {folder}/calls
{run}
"""
SQUEUE = """#!/usr/bin/env bash
printf '7 RUNNING\\n77 {state}\\n777 RUNNING\\n'
"""
SCONTROL = """#!/usr/bin/env bash
printf '%s\\n' "$*" >> {folder}/calls
exit {can_requeue}
"""
STOPPED = 'touch "$INLINE_PREEMPTED_FILE"; exit '
FIRST, AGAIN, REQUEUE = 'start 0', 'start 1', 'requeue 77'
# How the training ends, state of the job, whether it can be requeued; exit code and calls of the script.
ENDS: dict[str, tuple[str, str, bool, int, list[str]]] = {
    'finished': ('exit 0', 'RUNNING', True, 0, [FIRST]),
    'user error': ('exit 2', 'RUNNING', True, 2, [FIRST]),
    'stopped by a signal': (STOPPED + '75', 'RUNNING', True, 75, [FIRST, REQUEUE]),
    'stopped, another rank was killed': (STOPPED + '137', 'RUNNING', True, 75, [FIRST, REQUEUE]),
    'stopped before Python handles signals': ('exit 138', 'RUNNING', True, 75, [FIRST, REQUEUE]),
    'stopped because it was cancelled': (STOPPED + '75', 'COMPLETING', True, 75, [FIRST]),
    'stopped in salloc': (STOPPED + '75', 'RUNNING', False, 75, [FIRST, REQUEUE]),
    'code of a stopped run, but no marker': ('exit 75', 'RUNNING', True, 75, [FIRST]),
    'failed': ('exit 1', 'RUNNING', True, 1, [FIRST, AGAIN, AGAIN]),
    'failed while it was cancelled': ('exit 1', 'CANCELLED', True, 1, [FIRST]),
}


@pytest.mark.parametrize('end', ENDS)
def test_slurm_script_restarts_or_requeues_what_can_continue(end: str, tmp_path: Path) -> None:
    run, state, can_requeue, code, calls = ENDS[end]
    path = link_programs(tmp_path / 'bin', 'bash', 'dirname', 'env', 'mkdir', 'rm', 'touch')
    for name, script in (('srun', SRUN), ('squeue', SQUEUE), ('scontrol', SCONTROL)):
        program = tmp_path / 'bin' / name
        program.write_text(
            script.format(folder=tmp_path, run=run, state=state, can_requeue=int(not can_requeue))
        )
        program.chmod(0o755)
    work_dir = tmp_path / 'run'
    done = run_tool(
        'tools/slurm_train.sh', 'part', 'job', CONFIG, work_dir,
        PATH=path, SLURM_JOB_ID='77', MAX_RESTARTS='2',
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert (tmp_path / 'calls').read_text().splitlines() == calls
    queued = calls[-1] == REQUEUE and can_requeue
    assert ('job 77 is requeued' in done.stdout) == queued
    # A requeued job needs the count of requeues without a new checkpoint. Nothing else may stay.
    assert {path.name for path in work_dir.iterdir()} - {'.slurm-77.started', '.slurm-77.preempted'} == (
        {'.slurm-77.requeues'} if queued else set()
    )
