"""A throw-away SLURM cluster on this machine, with its own config, key, ports and folders.

It neither uses nor disturbs another SLURM: commands find it through ``SLURM_CONF`` alone, and its processes
are ended by their ids. Nodes 1 and 2 form the partition ``main``. Nodes 3 and 4 form the partition ``spare``,
for jobs that lose their node.
"""

import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from tests.conftest import ROOT, free_port

NODES = ('node1', 'node2', 'node3', 'node4')
PROGRAMS = (
    'munged',
    'slurmctld',
    'slurmd',
    'srun',
    'sbatch',
    'scancel',
    'scontrol',
    'squeue',
    'sinfo',
    'setpriv',
)
# Time for anything that a scenario waits for. Only a failure takes that long.
PATIENCE = 600
# Daemons are in folders that a user's PATH may lack.
SEARCH_PATH = f'{os.environ.get("PATH", "")}:/usr/sbin:/sbin:/usr/local/sbin'

# Every address is one of the loopback device, so that nothing leaves the machine. All timers are short.
# cred_expire also is the time that a requeued job waits.
CONFIG = """
ClusterName=inline
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=bf_interval=1,sched_interval=1,sched_min_interval=0,batch_sched_delay=0
GresTypes=gpu
SlurmdParameters=config_overrides
ReturnToService=2
JobRequeue=1
KillWait=10
MinJobAge=3600
SlurmdTimeout=10
{nodes}
PartitionName=main Nodes=node1,node2 MaxTime=60 State=UP
PartitionName=spare Nodes=node3,node4 MaxTime=60 State=UP
"""
# SLURM only counts GPUs that have a device file. No task opens these.
GRES = ''.join(f'Name=gpu File=/dev/{name}\n' for name in ('null', 'zero', 'full', 'random'))
NODE = 'NodeName={name} NodeHostname=localhost NodeAddr={address} Port={port} CPUs=8 Gres=gpu:4 State=UNKNOWN'


def missing_programs() -> list[str]:
    """Return the programs of SLURM and MUNGE that are not installed."""
    return [name for name in PROGRAMS if shutil.which(name, path=SEARCH_PATH) is None]


def node_address(name: str) -> str:
    """Return the address of a node: different ones, none of which is that of the machine itself."""
    return f'127.0.0.{NODES.index(name) + 2}'


class Cluster:
    """The daemons, as a context manager, and the commands of a user."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._stopped = False
        self.env = {**os.environ, 'SLURM_CONF': str(folder / 'slurm.conf'), 'PATH': SEARCH_PATH}

    def __enter__(self) -> 'Cluster':
        self.folder.mkdir()
        # munged wants a socket that everyone can reach, in a folder that only its user can write to.
        for folder in (self.folder, self.folder.parent):
            folder.chmod(0o755)
        (self.folder / 'state').mkdir()
        key = self.folder / 'munge.key'
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        nodes = (NODE.format(name=name, address=node_address(name), port=free_port()) for name in NODES)
        user = pwd.getpwuid(os.getuid()).pw_name
        config = CONFIG.format(folder=self.folder, port=free_port(), user=user, nodes='\n'.join(nodes))
        (self.folder / 'slurm.conf').write_text(config)
        (self.folder / 'gres.conf').write_text(GRES)
        try:
            self._start_daemons()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def command(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a command as a user of the cluster, in the root of the repository."""
        return subprocess.run(
            words,
            cwd=ROOT,
            env={**self.env, **env},
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )

    def job(self, job_id: str) -> dict[str, str]:
        """Return what ``scontrol show job`` reports: JobState, ExitCode, Restarts, NodeList and so on."""
        shown = self.command('scontrol', '--oneliner', 'show', 'job', job_id).stdout
        return dict(word.split('=', 1) for word in shown.split() if '=' in word)

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if self._stopped or time.monotonic() > deadline:
                raise TimeoutError(f'{what} did not happen; {self.command("squeue", "-a").stdout}')
            self._check_daemons()
            time.sleep(0.2)

    def wait_for_end(self, job_id: str) -> dict[str, str]:
        """Wait until a job has ended and its processes are gone; return :meth:`job`."""
        states = ('COMPLETED', 'FAILED', 'CANCELLED', 'TIMEOUT', 'NODE_FAIL')
        self.wait_for(
            lambda: self.job(job_id)['JobState'] in states and self.job(job_id)['EndTime'] != 'Unknown',
            f'the end of job {job_id}',
        )
        return self.job(job_id)

    def processes(self, **env: str) -> list[int]:
        """Return the processes of this cluster whose environment has the given values."""
        asked = {f'{name}={value}'.encode() for name, value in env.items()}
        asked.add(f'SLURM_CONF={self.env["SLURM_CONF"]}'.encode())
        return [pid for pid, variables in _environments() if asked <= variables]

    def lose_node(self, name: str) -> None:
        """End everything on a node at once, like a power failure. SLURM notices after SlurmdTimeout."""
        daemon = self._daemons.pop(name)
        daemon.kill()
        daemon.wait()
        _kill_tasks(self.processes(SLURMD_NODENAME=name))

    def _start_daemons(self) -> None:
        folder = self.folder
        self._start(
            'munged', '--foreground', '--num-threads=1', f'--key-file={folder}/munge.key',
            f'--socket={folder}/munge.socket', f'--pid-file={folder}/munged.pid',
            f'--log-file={folder}/munged.log', f'--seed-file={folder}/munged.seed',
        )  # fmt: skip
        self.wait_for((folder / 'munge.socket').exists, 'the start of munged')
        self._start('slurmctld', '-D', '-i')
        for name in NODES:
            self._start('slurmd', '-D', '-N', name, key=name)
        self.wait_for(self._is_ready, 'the start of the cluster')

    def _start(self, program: str, *options: str, key: str | None = None) -> None:
        name = key or program
        with (self.folder / f'{name}.out').open('wb') as output:
            self._daemons[name] = subprocess.Popen(
                # The daemon ends with this process, even if that is killed.
                ['setpriv', '--pdeathsig', 'TERM', program, *options],
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _check_daemons(self) -> None:
        for name, daemon in list(self._daemons.items()):
            if daemon.poll() is not None:
                raise RuntimeError(f'{name} has ended: {(self.folder / f"{name}.out").read_text()[-2000:]}')

    def _is_ready(self) -> bool:
        states = self.command('sinfo', '--noheader', '--Node', '--format=%N %T').stdout.split('\n')
        return {f'{name} idle' for name in NODES} <= {state.strip() for state in states}

    def stop(self) -> None:
        """End all jobs and daemons."""
        if self._stopped:
            return
        self._stopped = True
        for daemon in reversed(self._daemons.values()):
            daemon.terminate()
        for daemon in self._daemons.values():
            try:
                daemon.wait(timeout=20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        # Jobs do not end with their daemons.
        while left := self.processes():
            _kill_tasks(left)
            time.sleep(0.2)


def _environments() -> Iterator[tuple[int, set[bytes]]]:
    for path in Path('/proc').glob('[0-9]*/environ'):
        # The process may have ended, or belong to another user.
        with suppress(OSError):
            yield int(path.parent.name), set(path.read_bytes().split(b'\0'))


def _parent(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[1])
    return 0


def _is_step_daemon(pid: int) -> bool:
    with suppress(OSError):
        return Path(f'/proc/{pid}/comm').read_text().strip() == 'slurmstepd'
    return False


def _kill_tasks(pids: list[int]) -> None:
    """Kill processes of jobs. Their parents, the daemons of the steps, first: they would report the end."""
    for pid in [*filter(_is_step_daemon, map(_parent, pids)), *pids]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
