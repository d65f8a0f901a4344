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
    """Return the flags of a training with small steps and a checkpoint after every tenth."""
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
            ['bash', 'tools/dist_train.sh', CONFIG, *arguments],
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


@pytest.mark.slow
def test_run_survives_a_killed_worker_and_saves_when_it_is_stopped(
    launch: Callable[..., Launcher], digit_scenes: Path, tmp_path: Path
) -> None:
    """Kill a worker, stop the restarted run with SIGTERM, resume with one process, kill the launcher."""
    work_dir = tmp_path / 'run'
    flags = options(digit_scenes, work_dir)
    launcher = launch(['2', *flags], 'log', PORT=free_port())
    launcher.wait_for((work_dir / 'iter_10.pth').exists)
    os.kill(launcher.workers()[1], signal.SIGKILL)
    launcher.wait_for(lambda: count_logged_lines(work_dir, start=1) > 3)
    launcher.process.send_signal(signal.SIGTERM)
    assert launcher.process.wait(timeout=1200) == EXIT_PREEMPTED, launcher.output()
    _, message, output = launcher.output().partition('rank 1 was killed by SIGKILL: restarting all workers')
    assert message
    assert output.count('stopped by SIGTERM after step') == 1
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
        rf"error: work directory '.*' is in use by the training of process {launcher.pids[0]} on host '.+' "
        r'since \d{4}-\d\d-\d\d .*: wait for it, stop it, or choose another --work-dir\n',
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


# Programs that behave like those of SLURM. A requeued job runs its batch script again.
SBATCH = """#!/usr/bin/env bash
printf '%s\\n' "$@" > {folder}/sbatch
script=${{@: -1}}
export SLURM_JOB_ID=77
bash -c "${{script#--wrap=}}"
code=$?
if [ -f {folder}/requeue ]; then
    rm {folder}/requeue
    SLURM_RESTART_COUNT=1 bash -c "${{script#--wrap=}}"
    code=$?
fi
exit $code
"""
# In the first start, signals the task and the parent of this script as soon as the task runs.
SRUN = """#!/usr/bin/env bash
printf '%s\\n' "$@" > {folder}/srun"${{SLURM_RESTART_COUNT:-0}}"
while [ "$1" != {folder}/bin/training ]; do shift; done
"$@" &
if [ -z "${{SLURM_RESTART_COUNT:-}}" ]; then
    until [ -f {folder}/running ]; do sleep 0.02; done
    kill -USR1 $PPID $!
fi
wait $!
"""
SCONTROL = """#!/usr/bin/env bash
[ "$*" = 'requeue 77' ] && touch {folder}/requeue
"""
# Replaces `python tools/train.py`: runs until it is stopped in the first start, exits at once in the second.
TRAINING = """#!/usr/bin/env bash
[ -n "${{SLURM_RESTART_COUNT:-}}" ] && exit {second}
trap 'exit 75' USR1
touch {folder}/running
while :; do sleep 0.02; done
"""


@pytest.mark.parametrize('second', [0, 1])
def test_slurm_batch_job_requeues_itself_and_continues(second: int, tmp_path: Path) -> None:
    programs = {'sbatch': SBATCH, 'srun': SRUN, 'scontrol': SCONTROL, 'training': TRAINING}
    path = link_programs(tmp_path / 'bin', 'bash', 'dirname', 'env', 'mkdir', 'rm', 'sleep', 'touch')
    for name, script in programs.items():
        program = tmp_path / 'bin' / name
        program.write_text(script.format(folder=tmp_path, second=second))
        program.chmod(0o755)
    done = run_tool(
        'tools/slurm_train.sh', 'part', 'job', CONFIG, tmp_path / 'run', '--amp',
        PATH=path, PYTHON=str(tmp_path / 'bin' / 'training'),
        BATCH='1', SBATCH_ARGS='--time=1:00', SRUN_ARGS='--quiet', GPUS='1', WARNING_SECONDS='60',
    )  # fmt: skip
    assert done.returncode == second, done.stderr
    asked = set((tmp_path / 'sbatch').read_text().splitlines())
    assert {'--requeue', '--signal=USR1@60', '--open-mode=append', '--time=1:00', '--ntasks=1'} <= asked
    starts = [(tmp_path / f'srun{count}').read_text().splitlines() for count in (0, 1)]
    assert starts[0] == starts[1]
    assert {'--quiet', '--signal=USR1@60', '--amp', '--work-dir', str(tmp_path / 'run')} <= set(starts[0])
    # Only the preempted start is queued again, not one that failed or finished.
    assert done.stdout.count('job 77 is queued again') == 1


@pytest.mark.slow
def test_training_runs_as_a_slurm_task(digit_scenes: Path, tmp_path: Path) -> None:
    """A restarted task continues from the checkpoint of the first start, without --resume."""
    flags = [*options(digit_scenes, tmp_path), 'train_dataloader.num_workers=0']
    flags += ['train_dataloader.persistent_workers=False', 'train_cfg.val_interval=100']
    task = {
        'SLURM_PROCID': '0',
        'SLURM_NTASKS': '1',
        'SLURM_LOCALID': '0',
        'SLURM_LAUNCH_NODE_IPADDR': '127.0.0.1',
        'MASTER_PORT': free_port(),
    }
    first = run_tool(
        'tools/train.py', CONFIG, '--launcher', 'slurm', *flags, 'train_cfg.max_iters=10', **task
    )
    assert first.returncode == 0, first.stderr[-3000:]
    again = run_tool(
        'tools/train.py', CONFIG, '--launcher', 'slurm', *flags, 'train_cfg.max_iters=12',
        SLURM_RESTART_COUNT='1', **task,
    )  # fmt: skip
    assert again.returncode == 0, again.stderr[-3000:]
    assert logged_steps(tmp_path) == [list(range(1, 11)), [11, 12]]
