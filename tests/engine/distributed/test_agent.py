"""The elastic agent in a forked process, which saves importing torch; its workers do not import it."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from inline.engine.distributed import agent
from inline.engine.signals import EXIT_INTERRUPTED, EXIT_PREEMPTED, LAUNCHER_ENV, RESTARTED_ENV
from inline.utils.errors import exit_on_user_error
from inline.utils.processes import find_process
from tests.conftest import free_port

pytestmark = pytest.mark.slow

START = """\
import os, signal, sys, time
from pathlib import Path
folder = Path(sys.argv[1])
rank, restarted = os.environ['RANK'], os.environ.get('INLINE_RESTARTED', '0')
with open(folder / 'starts', 'a') as log:
    print(rank, restarted, file=log)
(folder / f'up{rank}{restarted}').touch()
while not (folder / f'up{1 - int(rank)}{restarted}').exists():
    time.sleep(0.01)
"""
WAIT = """
stop = lambda *_: (time.sleep(0.2), os._exit(int(sys.argv[2])))
signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGUSR1, stop)
signal.signal(signal.SIGINT, stop)
(folder / f'ready{rank}').touch()
time.sleep(300)
"""


class Launched:
    """An agent in a forked process, with two workers unless `flags` say otherwise."""

    def __init__(
        self,
        folder: Path,
        worker: str,
        *arguments: str,
        max_restarts: int = 2,
        flags: tuple[str, ...] = (
            '--nproc_per_node=2',
            '--rdzv_endpoint=127.0.0.1:0',
            '--rdzv_conf=is_host=1',
        ),
    ) -> None:
        self.folder = folder
        self.script = folder / 'worker.py'
        self.script.write_text(worker)
        self.argv = [
            'agent', f'--max_restarts={max_restarts}', '--rdzv_backend=c10d', '--monitor_interval=0.05',
            *flags, str(self.script), str(self.folder), *arguments,
        ]  # fmt: skip
        self.process = os.fork()
        if self.process == 0:
            self._run()

    def _run(self) -> None:
        code = 99
        try:
            os.dup2(os.open(self.folder / 'stderr', os.O_CREAT | os.O_WRONLY | os.O_APPEND), 2)
            sys.stderr = open(2, 'w', closefd=False)  # noqa: SIM115
            sys.argv = self.argv
            with exit_on_user_error():
                agent.main()
            code = 0
        except SystemExit as ended:
            code = int(ended.code or 0)
        finally:
            sys.stderr.flush()
            os._exit(code)

    def wait_for_workers(self) -> None:
        while not all((self.folder / f'ready{rank}').exists() for rank in range(2)):
            assert os.waitpid(self.process, os.WNOHANG)[0] == 0, self.errors()
            time.sleep(0.05)

    def code(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])

    def errors(self) -> str:
        return (self.folder / 'stderr').read_text()

    def starts(self) -> list[str]:
        return sorted((self.folder / 'starts').read_text().splitlines())


@pytest.mark.parametrize('signum', [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_signal_is_forwarded_to_the_workers_and_their_exit_is_not_a_failure(
    signum: signal.Signals, tmp_path: Path
) -> None:
    launched = Launched(tmp_path, START + WAIT, str(EXIT_PREEMPTED))
    launched.wait_for_workers()
    os.kill(launched.process, signum)
    os.kill(launched.process, signum)
    assert launched.code() == EXIT_PREEMPTED
    assert launched.starts() == ['0 0', '1 0']
    assert launched.errors() == ''


def test_workers_that_leave_after_ctrl_c_are_neither_restarted_nor_reported(tmp_path: Path) -> None:
    launched = Launched(tmp_path, START + WAIT, str(EXIT_INTERRUPTED))
    launched.wait_for_workers()
    os.kill(launched.process, signal.SIGINT)
    assert launched.code() == EXIT_INTERRUPTED
    assert launched.starts() == ['0 0', '1 0']
    assert launched.errors() == ''


def test_slow_exit_of_one_worker_is_not_a_failure(tmp_path: Path) -> None:
    launched = Launched(tmp_path, START + "sys.exit(75) if rank == '0' else time.sleep(300)")
    assert launched.code() == EXIT_PREEMPTED
    assert launched.starts() == ['0 0', '1 0']


def test_workers_that_fail_after_a_signal_are_not_restarted(tmp_path: Path) -> None:
    launched = Launched(tmp_path, START + WAIT, '1')
    launched.wait_for_workers()
    os.kill(launched.process, signal.SIGTERM)
    assert launched.code() == 1
    assert launched.starts() == ['0 0', '1 0']


def test_all_workers_are_restarted_when_one_is_killed(tmp_path: Path) -> None:
    worker = f"""
if restarted == '0':
    if rank == '1':
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(300)
assert os.environ['TORCHELASTIC_RESTART_COUNT'] == '1' and os.environ[{RESTARTED_ENV!r}] == '1'
"""
    launched = Launched(tmp_path, START + worker)
    assert launched.code() == 0
    assert launched.starts() == ['0 0', '0 1', '1 0', '1 1']
    assert launched.errors() == 'rank 1 was killed by SIGKILL: restarting all workers, 1 restarts left\n'


def test_worker_that_keeps_failing_ends_the_run_with_one_line(tmp_path: Path) -> None:
    launched = Launched(tmp_path, START + "sys.exit(7 if rank == '1' else 0)", max_restarts=1)
    assert launched.code() == 1
    assert launched.starts() == ['0 0', '0 1', '1 0', '1 1']
    assert launched.errors().splitlines() == [
        'rank 1 exited with code 7: restarting all workers, 0 restarts left',
        'error: rank 1 exited with code 7; see its output above',
    ]


def test_user_error_is_not_retried(tmp_path: Path) -> None:
    launched = Launched(tmp_path, START + 'sys.exit(2)')
    assert launched.code() == 2
    assert launched.starts() == ['0 0', '1 0']
    assert launched.errors() == ''


# Stands for tools/train.py with one data worker.
FOLLOWER = """
from inline.engine.signals import end_with_launcher
end_with_launcher()
if os.fork():
    (folder / f'pid{rank}').write_text(str(os.getpid()))
else:
    (folder / f'data_worker{rank}').write_text(str(os.getpid()))
time.sleep(300)
"""


def test_workers_and_their_data_workers_end_with_a_killed_launcher(tmp_path: Path) -> None:
    launched = Launched(tmp_path, START + FOLLOWER)
    files = [tmp_path / f'{name}{rank}' for name in ('pid', 'data_worker') for rank in range(2)]
    for path in files:
        wait_for(path)
    processes = [int(path.read_text()) for path in files]
    assert all(find_process(process) for process in processes)
    os.kill(launched.process, signal.SIGKILL)
    assert launched.code() == -signal.SIGKILL
    deadline = time.monotonic() + 60
    while any(find_process(process) for process in processes):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_worker_ends_if_its_launcher_was_killed_before_it_could_follow(tmp_path: Path) -> None:
    late = 'import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\n' + START.split('with open')[0]
    late += f'while os.getppid() == int(os.environ[{LAUNCHER_ENV!r}]): time.sleep(0.01)\n'
    late += "(folder / 'pid').write_text(str(os.getpid()))" + FOLLOWER.replace("f'pid{rank}'", "'survived'")
    launched = Launched(tmp_path, late)
    assert launched.code() == -signal.SIGKILL
    wait_for(tmp_path / 'pid')
    process = int((tmp_path / 'pid').read_text())
    deadline = time.monotonic() + 60
    while find_process(process):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert not (tmp_path / 'survived').exists()


# Waits until the machine is killed or the workers are restarted, which happens when it has come back.
MEMBER = """\
import os, sys, time
from pathlib import Path
folder = Path(sys.argv[1])
names = ('RANK', 'WORLD_SIZE', 'INLINE_RESTARTED', 'TORCHELASTIC_RESTART_COUNT')
(folder / f'up{sys.argv[2]}').write_text(' '.join(os.environ.get(name, '0') for name in names))
if sys.argv[2] == 'back':
    sys.exit()
while os.environ.get('INLINE_RESTARTED') != '1':
    time.sleep(0.02)
"""


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 300
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline, path
        time.sleep(0.05)


def test_workers_are_restarted_when_a_lost_machine_comes_back(tmp_path: Path) -> None:
    """Two loopback addresses stand for the machines. The one without the rendezvous store is killed.

    It also starts first, and waits for the other one longer than torch would (`read_timeout`).
    """
    port = free_port()

    def start(name: str, node_rank: int) -> Launched:
        conf = f'is_host={1 - node_rank},join_timeout=300,keep_alive_interval=1,keep_alive_max_attempt=8'
        conf += ',read_timeout=1' if name == 'lost' else ''
        flags = (
            '--nnodes=2', '--nproc_per_node=1', f'--rdzv_endpoint=127.0.0.1:{port}', '--rdzv_id=test',
            f'--rdzv_conf={conf}', f'--local_addr=127.0.0.{1 + node_rank}',
        )  # fmt: skip
        return Launched(tmp_path, MEMBER, name, flags=flags)

    lost = start('lost', 1)
    wait_for(tmp_path / 'stderr')
    assert lost.errors() == f'waiting up to 300 s for NODE_RANK 0 at 127.0.0.1:{port}\n'
    stays = start('stays', 0)
    for name in ('stays', 'lost'):
        wait_for(tmp_path / f'up{name}')
    workers = Path(f'/proc/{lost.process}/task/{lost.process}/children').read_text().split()
    for process in (lost.process, *map(int, workers)):
        os.kill(process, signal.SIGKILL)
    assert lost.code() == -signal.SIGKILL
    (tmp_path / 'upstays').unlink()
    back = start('back', 1)
    assert (stays.code(), back.code()) == (0, 0), stays.errors()
    # RESTARTED_ENV is set on the remaining machine too, although none of its workers failed.
    world_size, restarted, failures = (tmp_path / 'upstays').read_text().split()[1:]
    assert (world_size, restarted, failures) == ('2', '1', '0')


def test_first_machine_that_never_starts_is_a_user_error(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    endpoint = f'127.0.0.1:{free_port()}'
    conf = '--rdzv_conf=is_host=0,join_timeout=1'
    monkeypatch.setattr(
        sys, 'argv', ['agent', '--rdzv_backend=c10d', f'--rdzv_endpoint={endpoint}', conf, 'x.py']
    )
    with pytest.raises(ValueError, match=rf'^cannot connect to {endpoint}: .* \(waited 1 s\)$'):
        agent.main()
    assert capfd.readouterr().err == f'waiting up to 1 s for NODE_RANK 0 at {endpoint}\n'


def test_unknown_master_address_is_a_user_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ['--rdzv_backend=c10d', '--rdzv_endpoint=no.such.machine.invalid:29500', str(tmp_path / 'x.py')]
    monkeypatch.setattr(sys, 'argv', ['agent', *words])
    with pytest.raises(ValueError, match=r"^MASTER_ADDR 'no.such.machine.invalid' is unknown"):
        agent.main()
