"""Trainings that lose a worker, a machine or their place in SLURM, as a user runs them: real processes."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from inline.engine.resume import PREEMPTED_NAME
from inline.engine.signals import PREEMPTED
from tests.conftest import ROOT, free_port, run_tool

CONFIG = 'configs/digits_quick/inline-pvt-nano_digits.py'
STEPS = 70


def options(data: Path, work_dir: Path) -> list[str]:
    """A training of small steps with a checkpoint after every tenth."""
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
    """The steps of each start, in the order of the starts."""
    starts = []
    for path in sorted(work_dir.glob('*/vis_data/scalars.json')):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        starts.append([line['step'] for line in lines if 'loss' in line])
    return starts


class Launcher:
    """tools/dist_train.sh in the background, its output in a file."""

    def __init__(self, words: list[str], log: Path, **env: str) -> None:
        self.log = log
        self.process = subprocess.Popen(
            ['bash', 'tools/dist_train.sh', CONFIG, *words],
            cwd=ROOT,
            env={**os.environ, 'PYTHON': sys.executable, **env},
            stdout=log.open('w'),
            stderr=subprocess.STDOUT,
        )

    def workers(self) -> list[int]:
        """The processes that the launcher has started."""
        pid = self.process.pid
        return [int(child) for child in Path(f'/proc/{pid}/task/{pid}/children').read_text().split()]

    def wait_for(self, path: Path) -> None:
        deadline = time.monotonic() + 1200
        while not path.exists():
            assert self.process.poll() is None, self.told()
            assert time.monotonic() < deadline, self.told()
            time.sleep(0.02)

    def told(self) -> str:
        return self.log.read_text()[-5000:]

    def end(self) -> None:
        """Leave no process behind, whatever the test came to."""
        if self.process.poll() is None:
            for process in (self.process.pid, *self.workers()):
                os.kill(process, signal.SIGKILL)
            self.process.wait()


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Launcher]]:
    """Starts a launcher with its flags, the name of its log, and its environment."""
    with ExitStack() as started:

        def start(words: list[str], log: str, **env: str) -> Launcher:
            launcher = Launcher(words, tmp_path / log, **env)
            started.callback(launcher.end)
            return launcher

        yield start


@pytest.mark.slow
def test_two_processes_that_are_told_to_stop_save_and_go_on(
    launch: Callable[..., Launcher], digit_scenes: Path, tmp_path: Path
) -> None:
    work_dir = tmp_path / 'run'
    words = ['2', *options(digit_scenes, work_dir)]
    launcher = launch(words, 'stopped', PORT=free_port())
    launcher.wait_for(work_dir / 'iter_10.pth')
    launcher.process.send_signal(signal.SIGTERM)
    assert launcher.process.wait(timeout=1200) == PREEMPTED, launcher.told()
    assert (work_dir / PREEMPTED_NAME).is_file()
    assert launcher.told().count('stopped by SIGTERM after step') == 1
    assert 'Traceback' not in launcher.told()
    resumed = launch([words[0], '--resume', *words[1:]], 'resumed', PORT=free_port())
    assert resumed.process.wait(timeout=1200) == 0, resumed.told()
    first, second = logged_steps(work_dir)
    assert len(first) < STEPS
    assert [*first, *second] == list(range(1, STEPS + 1))


@pytest.mark.slow
def test_a_training_survives_the_death_of_a_worker(
    launch: Callable[..., Launcher], digit_scenes: Path, tmp_path: Path
) -> None:
    work_dir = tmp_path / 'run'
    launcher = launch(['2', *options(digit_scenes, work_dir)], 'log', PORT=free_port())
    launcher.wait_for(work_dir / 'iter_10.pth')
    os.kill(launcher.workers()[1], signal.SIGKILL)
    assert launcher.process.wait(timeout=1200) == 0, launcher.told()
    first, second = logged_steps(work_dir)
    assert first[0] == 1
    assert len(first) < STEPS
    # A step that was logged twice was lost with the worker; none is missing.
    assert second == list(range(second[0], STEPS + 1))
    assert second[0] % 10 == 1
    assert 10 < second[0] <= len(first) + 1
    assert (work_dir / f'iter_{STEPS}.pth').is_file()


@pytest.mark.slow
def test_two_machines_train_together_and_one_comes_back(
    launch: Callable[..., Launcher], digit_scenes: Path, tmp_path: Path
) -> None:
    """Two loopback addresses stand for the machines. The one that doesn't keep the list is killed."""
    work_dir = tmp_path / 'run'
    words = ['1', *options(digit_scenes, work_dir)]
    meeting = {'NNODES': '2', 'MASTER_ADDR': '127.0.0.1', 'PORT': free_port()}
    stays = launch(words, 'stays', NODE_RANK='0', **meeting)
    elsewhere = {'NODE_RANK': '1', 'LOCAL_ADDR': '127.0.0.2', **meeting}
    lost = launch(words, 'lost', **elsewhere)
    lost.wait_for(work_dir / 'iter_10.pth')
    for process in (lost.process.pid, *lost.workers()):
        os.kill(process, signal.SIGKILL)
    lost.process.wait(timeout=60)
    back = launch(words, 'back', **elsewhere)
    assert stays.process.wait(timeout=1200) == 0, stays.told()
    assert back.process.wait(timeout=1200) == 0, back.told()
    first, second = logged_steps(work_dir)
    assert len(first) < STEPS
    assert second == list(range(second[0], STEPS + 1))
    assert 10 < second[0] <= len(first) + 1
    assert 'GPU number: 2' in max(work_dir.glob('*/*.log')).read_text()


@pytest.mark.parametrize('name', ['MAX_RESTARTS', 'REJOIN_SECONDS', 'GRACE_SECONDS', 'NODE_RANK'])
def test_a_count_that_is_none_is_refused(name: str) -> None:
    done = run_tool('tools/dist_train.sh', CONFIG, '2', **{name: 'often'})
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {name} is 'often': must be a whole number, at least ")


# What SLURM does, as its manuals have it. A job that is queued again starts again from its batch script.
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
# Warns the task in its first start, when it has logged a step; ends with the task's code.
SRUN = """#!/usr/bin/env bash
printf '%s\\n' "$@" > {folder}/srun"${{SLURM_RESTART_COUNT:-0}}"
while [ "$1" != {python} ]; do shift; done
SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_LOCALID=0 SLURM_LAUNCH_NODE_IPADDR=127.0.0.1 MASTER_PORT={port} "$@" &
task=$!
if [ -z "${{SLURM_RESTART_COUNT:-}}" ]; then
    until [ -s "$(ls {work_dir}/*/vis_data/scalars.json 2> /dev/null)" ]; do
        kill -0 $task || break
        sleep 0.05
    done
    kill -USR1 $task
fi
wait $task
"""
SCONTROL = """#!/usr/bin/env bash
[ "$*" = 'requeue 77' ] && touch {folder}/requeue
"""


@pytest.mark.slow
def test_a_batch_job_of_slurm_queues_itself_again_and_goes_on(digit_scenes: Path, tmp_path: Path) -> None:
    work_dir = tmp_path / 'run'
    for name, script in {'sbatch': SBATCH, 'srun': SRUN, 'scontrol': SCONTROL}.items():
        path = tmp_path / 'bin' / name
        path.parent.mkdir(exist_ok=True)
        python = shlex.quote(sys.executable)
        path.write_text(script.format(folder=tmp_path, work_dir=work_dir, python=python, port=free_port()))
        path.chmod(0o755)
    done = run_tool(
        'tools/slurm_train.sh', 'part', 'job', CONFIG, work_dir, *options(digit_scenes, work_dir)[2:],
        timeout=2400, PATH=f'{tmp_path / "bin"}:{os.environ["PATH"]}',
        BATCH='1', SBATCH_ARGS='--time=1:00', SRUN_ARGS='--quiet', GPUS='1', WARNING_SECONDS='60',
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    asked = (tmp_path / 'sbatch').read_text().splitlines()
    assert {'--requeue', '--signal=USR1@60', '--open-mode=append', '--time=1:00', '--ntasks=1'} <= set(asked)
    assert {'--quiet', '--signal=USR1@60'} <= set((tmp_path / 'srun0').read_text().splitlines())
    assert 'job 77 is queued again' in done.stdout
    # The end of the first start is one line, and the second takes up the very next step.
    told = done.stdout + done.stderr
    assert 'Traceback' not in told
    assert told.count('stopped by SIGUSR1 after step') == 1
    first, second = logged_steps(work_dir)
    assert len(first) < STEPS
    assert [*first, *second] == list(range(1, STEPS + 1))
