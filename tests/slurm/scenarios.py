"""What users, schedulers and failures do to jobs. All scenarios run at the same time on one cluster.

Each returns facts, which the tests compare with what the documentation promises.
"""

import os
import re
import signal
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from inline.engine.resume import PREEMPTED_NAME
from tests.conftest import ROOT
from tests.slurm.cluster import Cluster
from tests.slurm.warm_tasks import TASKS, start_server, write_client
from tests.tools.test_restarts import logged_steps

Facts = dict[str, Any]
CONFIG = str(TASKS / 'gated.py')
# No data workers: they would be forks of a process that waits.
QUICK = [
    'train_dataloader.num_workers=0',
    'train_dataloader.persistent_workers=False',
    'val_dataloader.num_workers=0',
    'val_dataloader.persistent_workers=False',
    'test_dataloader.num_workers=0',
    'test_dataloader.persistent_workers=False',
]


class Site:
    """The cluster, the digits, and folders for jobs."""

    def __init__(self, cluster: Cluster, folder: Path, data: Path, server: Path) -> None:
        self.cluster, self.folder, self.server = cluster, folder, server
        self.flags = ['--data-root', str(data.parent), '--cfg-options', *QUICK]

    def python(self, name: str, before: str = '') -> str:
        """Return a program for ``PYTHON``, which runs the shell commands `before` in every task."""
        return write_client(self.folder / f'python-{name}', self.server, before)

    def batch(self, name: str, config: str = CONFIG, partition: str = 'main', **env: str) -> 'Job':
        """Submit a batch job. Its work directory has the name `name`."""
        env = {'GPUS': '1', 'CPUS_PER_TASK': '1', 'PYTHON': self.python(name), **env}
        work_dir = self.folder / name
        done = self.cluster.command(
            'tools/slurm_train.sh', partition, name, config, str(work_dir), *self.flags, BATCH='1', **env
        )
        submitted = re.fullmatch(r'Submitted batch job (\d+)\n', done.stdout)
        assert submitted is not None, (done.stdout, done.stderr)
        return Job(self.cluster, submitted[1], work_dir)

    def interactive(self, tool: str, *args: str, **env: str) -> Facts:
        """Run one of the scripts in the foreground."""
        env = {'GPUS': '1', 'CPUS_PER_TASK': '1', 'PYTHON': self.python(f'{tool}-{args[1]}'), **env}
        done = self.cluster.command(f'tools/{tool}.sh', *args, *self.flags, **env)
        return {'code': done.returncode, 'output': done.stdout + done.stderr}


class Job:
    """A batch job."""

    def __init__(self, cluster: Cluster, number: str, work_dir: Path) -> None:
        self.cluster, self.number, self.work_dir = cluster, number, work_dir

    def wait_for_gate(self, step: int, ranks: int = 1) -> None:
        """Wait until all ranks wait before a step."""
        files = [self.work_dir / f'at_{step}_{rank}' for rank in range(ranks)]
        self.cluster.wait_for(
            lambda: all(file.exists() for file in files),
            f'step {step} of {self.work_dir.name}: {self.output()}',
        )

    def open_gates(self) -> None:
        (self.work_dir / 'open').touch()

    def set_time_limit(self, minutes: int) -> None:
        done = self.cluster.command('scontrol', 'update', f'JobId={self.number}', f'TimeLimit={minutes}')
        assert done.returncode == 0, done.stderr

    def output(self) -> str:
        file = self.work_dir / f'slurm-{self.number}.out'
        return file.read_text() if file.exists() else ''

    def end(self) -> Facts:
        """Wait for the end of the job and describe it."""
        job = self.cluster.wait_for_end(self.number)
        return {
            'state': job['JobState'],
            'code': int(job['ExitCode'].split(':')[0]),
            'requeues': int(job['Restarts']),
            'nodes': job['NodeList'],
            'output': self.output(),
            'steps': logged_steps(self.work_dir),
            'saved': (self.work_dir / PREEMPTED_NAME).is_file(),
            'left': sorted(path.name for path in self.work_dir.glob('.slurm-*')),
        }


def time_limit_then_cancel(site: Site) -> Facts:
    """SLURM warns before the time limit; the requeued job continues, and is cancelled by its user.

    The processes are not forked from a warm one, and use a data worker.
    """
    job = site.batch(
        'time_limit_%j',
        PYTHON=sys.executable,
        PYTHONPATH=str(TASKS),
        GATES='6 9',
        SBATCH_ARGS='--time=30',
        WARNING_SECONDS='120',
    )
    job.wait_for_gate(6)
    # Less than two minutes are left now. SLURM looks at time limits every 30 seconds.
    minutes = int(site.cluster.job(job.number)['RunTime'].split(':')[1])
    job.set_time_limit(minutes + 2)
    site.cluster.wait_for(lambda: site.cluster.job(job.number)['JobState'] == 'PENDING', 'the requeue')
    job.set_time_limit(30)
    job.wait_for_gate(9)
    assert site.cluster.command('scancel', job.number).returncode == 0
    return job.end()


def two_nodes(site: Site) -> Facts:
    """Train on two nodes in the foreground, then test the checkpoint there."""
    work_dir, nodes = site.folder / 'two_nodes', {'GPUS': '2', 'GPUS_PER_NODE': '1'}
    trained = site.interactive('slurm_train', 'main', 'train', CONFIG, str(work_dir), **nodes)
    checkpoint = work_dir / 'iter_12.pth'
    tested = site.interactive('slurm_test', 'main', 'test', CONFIG, str(checkpoint), **nodes)
    return {'trained': trained, 'tested': tested, 'steps': logged_steps(work_dir)}


def two_jobs_on_one_node(site: Site) -> Facts:
    """Two jobs of two processes share node 1; one of them asks for no GPU."""
    here = {'GATES': '3', 'SBATCH_ARGS': '--nodelist=node1 --nodes=1'}
    with_gpus = site.batch('with_gpus', GPUS='2', GPUS_PER_NODE='2', **here)
    without = site.batch('without_gpus', GPUS='0', CPU_TASKS='2', **here)
    # All four processes train at the same time.
    for job in (with_gpus, without):
        job.wait_for_gate(3, ranks=2)
    asked = site.cluster.job(without.number)
    for job in (with_gpus, without):
        job.open_gates()
    return {'gpu': with_gpus.end(), 'cpu': without.end(), 'cpu_resources': asked['TRES']}


def lost_node(site: Site) -> Facts:
    """The node of a job loses its power."""
    job = site.batch('lost_node', partition='spare', GATES='6')
    job.wait_for_gate(6)
    lost = site.cluster.job(job.number)['NodeList']
    site.cluster.lose_node(lost)
    job.open_gates()
    return {**job.end(), 'lost': lost}


def killed_rank(site: Site) -> Facts:
    """One of two processes is killed, as by the kernel when memory runs out."""
    job = site.batch('killed_rank', GPUS='2', GPUS_PER_NODE='1', GATES='6')
    job.wait_for_gate(6, ranks=2)
    (task,) = site.cluster.processes(SLURM_JOB_ID=job.number, SLURM_PROCID='1')
    os.kill(task, signal.SIGKILL)
    job.open_gates()
    return job.end()


def slow_exit(site: Site) -> Facts:
    """A rank takes longer to exit than SLURM waits after the first one has exited."""
    linger = """if [ "$SLURM_PROCID" = 1 ] && [ -z "$SLURM_RESTART_COUNT" ]; then
        trap '' TERM USR1
        {client} "$@"
        sleep 600
    fi"""
    python = site.python('lingers', linger)
    job = site.batch('slow_exit', GPUS='2', GPUS_PER_NODE='1', GATES='6', PYTHON=python)
    job.wait_for_gate(6, ranks=2)
    site.cluster.command('scancel', '--signal=USR1', job.number)
    return job.end()


def late_rank(site: Site) -> Facts:
    """A config has an error, and one of the ranks starts later than the other."""
    jobs = [
        site.batch(
            f'late_{rank}', str(TASKS / 'late_error.py'), GPUS='2', GPUS_PER_NODE='1', LATE_RANK=str(rank)
        )
        for rank in range(2)
    ]
    return {f'rank {rank}': job.end() for rank, job in enumerate(jobs)}


def no_progress(site: Site) -> Facts:
    """A job is always stopped before its first checkpoint."""
    return site.batch('no_progress', str(TASKS / 'early_signal.py'), MAX_REQUEUES='2').end()


def rendezvous(site: Site) -> Facts:
    """A step on the second node of a job prints where its processes would meet."""
    print_it = (
        'import os; from inline.engine.distributed.slurm import torchrun_environment; '
        'found = torchrun_environment(os.environ); '
        'print(os.environ["SLURM_JOB_ID"], found["MASTER_ADDR"], found["MASTER_PORT"])'
    )
    first = 'python3 -c "$1"; srun --overlap --nodes=1 --ntasks=1 --nodelist=node2 --quiet python3 -c "$1"'
    done = site.cluster.command(
        'srun', '--partition=main', '--nodes=2', '--ntasks=2', 'bash', '-c',
        f'[ "$SLURM_PROCID" = 1 ] || {{ {first}; }}', 'bash', print_it, PYTHONPATH=str(ROOT),
    )  # fmt: skip
    return {'lines': [line.split() for line in done.stdout.splitlines()], 'errors': done.stderr}


SCENARIOS: list[Callable[[Site], Facts]] = [
    time_limit_then_cancel,
    two_nodes,
    two_jobs_on_one_node,
    lost_node,
    killed_rank,
    slow_exit,
    late_rank,
    no_progress,
    rendezvous,
]


def run_scenarios(folder: Path, data: Path) -> dict[str, Facts]:
    """Start a cluster, run all scenarios, end the cluster, and return the facts of each scenario.

    Args:
        folder: An existing folder with a short path: those of sockets are limited to about 100 characters.
        data: Digit scenes.
    """
    server = start_server(folder / 'tasks.socket')
    try:
        with Cluster(folder / 'cluster') as cluster, ThreadPoolExecutor(len(SCENARIOS)) as threads:
            site = Site(cluster, folder, data, folder / 'tasks.socket')
            cluster.wait_for(lambda: site.server.exists() or not server.is_alive(), 'the start of the server')
            assert server.is_alive(), 'the server of the tasks has ended'
            started = {scenario.__name__: threads.submit(_run, scenario, site) for scenario in SCENARIOS}
            try:
                facts = {name: future.result() for name, future in started.items()}
            finally:
                # Also after Ctrl-C: scenarios that wait for jobs end with the cluster.
                cluster.stop()
        return {**facts, 'after': {'processes': len(cluster.processes())}}
    finally:
        server.kill()
        server.join()


def _run(scenario: Callable[[Site], Facts], site: Site) -> Facts:
    try:
        return scenario(site)
    except Exception:
        return {'failure': traceback.format_exc()}
