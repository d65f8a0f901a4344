"""The launcher of several processes, forked from here so that torch loads once; its workers are light."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from inline.engine import agent
from inline.engine.signals import PREEMPTED, RESTARTED
from inline.errors import exit_on_user_error

PROMPT = """\
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
(folder / f'ready{rank}').touch()
time.sleep(300)
"""


class Launched:
    """An agent with two workers, in a forked process."""

    def __init__(self, folder: Path, worker: str, *words: str, max_restarts: int = 2) -> None:
        self.folder = folder
        self.script = folder / 'worker.py'
        self.script.write_text(PROMPT + worker)
        self.process = os.fork()
        if self.process == 0:
            self._run(words, max_restarts)

    def _run(self, words: tuple[str, ...], max_restarts: int) -> None:
        code = 99
        try:
            os.dup2(os.open(self.folder / 'stderr', os.O_CREAT | os.O_WRONLY), 2)
            sys.stderr = open(2, 'w', closefd=False)  # noqa: SIM115
            sys.argv = [
                'agent', '--nnodes=1', '--nproc_per_node=2', f'--max_restarts={max_restarts}',
                '--rdzv_backend=c10d', '--rdzv_endpoint=127.0.0.1:0', '--rdzv_conf=is_host=1',
                '--monitor_interval=0.05', str(self.script), str(self.folder), *words,
            ]  # fmt: skip
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
            assert os.waitpid(self.process, os.WNOHANG)[0] == 0, self.told()
            time.sleep(0.05)

    def code(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])

    def told(self) -> str:
        return (self.folder / 'stderr').read_text()

    def starts(self) -> list[str]:
        return sorted((self.folder / 'starts').read_text().splitlines())


@pytest.mark.parametrize('signum', [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_reaches_the_workers_and_their_end_is_no_failure(
    signum: signal.Signals, tmp_path: Path
) -> None:
    launched = Launched(tmp_path, WAIT, str(PREEMPTED))
    launched.wait_for_workers()
    os.kill(launched.process, signum)
    os.kill(launched.process, signum)
    assert launched.code() == PREEMPTED
    assert launched.starts() == ['0 0', '1 0']
    assert launched.told() == ''


def test_a_worker_that_is_slow_to_leave_does_not_turn_the_stop_into_a_failure(tmp_path: Path) -> None:
    launched = Launched(tmp_path, "sys.exit(75) if rank == '0' else time.sleep(300)")
    assert launched.code() == PREEMPTED
    assert launched.starts() == ['0 0', '1 0']


def test_workers_that_fail_while_they_should_stop_are_not_started_again(tmp_path: Path) -> None:
    launched = Launched(tmp_path, WAIT, '1')
    launched.wait_for_workers()
    os.kill(launched.process, signal.SIGTERM)
    assert launched.code() == 1
    assert launched.starts() == ['0 0', '1 0']


def test_all_workers_start_again_when_one_was_killed(tmp_path: Path) -> None:
    worker = f"""
if restarted == '0':
    if rank == '1':
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(300)
assert os.environ['TORCHELASTIC_RESTART_COUNT'] == '1' and os.environ[{RESTARTED!r}] == '1'
"""
    launched = Launched(tmp_path, worker)
    assert launched.code() == 0
    assert launched.starts() == ['0 0', '0 1', '1 0', '1 1']
    assert launched.told() == 'process 1 was killed by SIGKILL: starting all again, 1 restarts left\n'


def test_a_worker_that_keeps_failing_ends_the_run_with_one_line(tmp_path: Path) -> None:
    launched = Launched(tmp_path, "sys.exit(7 if rank == '1' else 0)", max_restarts=1)
    assert launched.code() == 1
    assert launched.starts() == ['0 0', '0 1', '1 0', '1 1']
    assert launched.told().splitlines() == [
        'process 1 ended with exit code 7: starting all again, 0 restarts left',
        'error: process 1 ended with exit code 7; what it printed above says why',
    ]


def test_a_mistake_of_the_user_is_not_tried_again(tmp_path: Path) -> None:
    launched = Launched(tmp_path, 'sys.exit(2)')
    assert launched.code() == 2
    assert launched.starts() == ['0 0', '1 0']
    assert launched.told() == ''


def test_an_unknown_master_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ['--rdzv_backend=c10d', '--rdzv_endpoint=no.such.machine.invalid:29500', str(tmp_path / 'x.py')]
    monkeypatch.setattr(sys, 'argv', ['agent', *words])
    with pytest.raises(ValueError, match=r"^MASTER_ADDR 'no.such.machine.invalid' is not known"):
        agent.main()
