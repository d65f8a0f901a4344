"""The lock of a work directory, held and left behind by real processes."""

import json
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inline.engine import work_dir_lock
from inline.engine.signals import stop_request
from inline.engine.work_dir_lock import LOCK_NAME, WorkDirLock
from inline.utils.errors import UserError
from inline.utils.processes import find_process

TAKEN = 3


def fork(work: Callable[[], None]) -> int:
    """Call a function in a forked process, which exits with TAKEN after a UserError."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    except UserError:
        code = TAKEN
    finally:
        os._exit(code)


def exit_code(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def hold(folder: Path) -> int:
    """Start a process that holds the lock until it is killed."""
    reader, writer = os.pipe()

    def work() -> None:
        WorkDirLock(folder)
        os.write(writer, b'x')
        signal.pause()

    child = fork(work)
    os.close(writer)
    assert os.read(reader, 1) == b'x'
    os.close(reader)
    return child


def write(folder: Path, **changes: Any) -> None:
    """Write the lock file of a process on this host that has ended, with some changes."""
    child = fork(lambda: None)
    assert exit_code(child) == 0
    holder = {
        'pid': child,
        'host': socket.gethostname(),
        'since': '2024-05-06 07:08:09+00:00',
        'start': 'boot 1',
        'job': '',
    }
    (folder / LOCK_NAME).write_text(json.dumps({**holder, **changes}))


def test_lock_of_a_running_process_is_refused_and_that_of_a_killed_one_is_taken_over(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    child = hold(tmp_path)
    since = json.loads((tmp_path / LOCK_NAME).read_text())['since']
    who = f'process {child} on host {socket.gethostname()!r} since {since}'
    with pytest.raises(UserError) as refused:
        WorkDirLock(tmp_path)
    assert str(refused.value) == (
        f'work directory {str(tmp_path)!r} is in use by the training run of {who}: wait for it, stop it, or '
        'choose another --work-dir'
    )
    os.kill(child, signal.SIGKILL)
    # Wait until it has ended, but leave it as a zombie, which still has its process id.
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert find_process(child) is None
    lock = WorkDirLock(tmp_path)
    assert capfd.readouterr().out == f'work directory: took over the lock of {who}\n'
    assert json.loads((tmp_path / LOCK_NAME).read_text())['pid'] == os.getpid()
    assert exit_code(fork(lambda: WorkDirLock(tmp_path) and None)) == TAKEN
    lock.release()
    assert os.listdir(tmp_path) == []
    assert exit_code(child) == -signal.SIGKILL


@pytest.mark.parametrize('stale', [False, True])
def test_of_runs_that_start_at_once_exactly_one_wins(stale: bool, tmp_path: Path) -> None:
    for _ in range(4):
        if stale:
            write(tmp_path)
        # Closing the writing end of a pipe wakes all processes that read from it.
        (go, start), (stop, end), (results, result) = os.pipe(), os.pipe(), os.pipe()
        descriptors = {go, start, stop, end, results, result}

        def work(
            go: int = go, start: int = start, stop: int = stop, end: int = end, result: int = result
        ) -> None:
            os.close(start)
            os.close(end)
            os.read(go, 1)
            try:
                lock = WorkDirLock(tmp_path)
            except UserError:
                os.write(result, b'-')
                raise
            os.write(result, b'+')
            os.read(stop, 1)
            lock.release()

        children = [fork(work) for _ in range(6)]
        os.close(start)
        assert sorted(os.read(results, 1) for _ in children) == [b'+', *[b'-'] * 5]
        os.close(end)
        assert sorted(exit_code(child) for child in children) == [0, *[TAKEN] * 5]
        assert not (tmp_path / LOCK_NAME).exists()
        for descriptor in descriptors - {start, end}:
            os.close(descriptor)


def test_process_id_that_another_process_has_now_is_not_the_holder(tmp_path: Path) -> None:
    this = find_process(os.getpid())
    assert this is not None
    write(tmp_path, pid=os.getpid(), start=f'{this.start}0')
    WorkDirLock(tmp_path).release()
    write(tmp_path, pid=os.getpid(), start=this.start)
    with pytest.raises(UserError, match=f'in use by the training run of process {os.getpid()} on host'):
        WorkDirLock(tmp_path)


def test_lock_of_another_host_is_explained(tmp_path: Path) -> None:
    write(tmp_path, host='node7')
    with pytest.raises(UserError) as refused:
        WorkDirLock(tmp_path, restarted=True)
    message = str(refused.value)
    assert "on host 'node7' since 2024-05-06 07:08:09+00:00" in message
    assert f'this host, {socket.gethostname()!r}, cannot check' in message
    assert f'if it has ended, delete {str(tmp_path / LOCK_NAME)!r}' in message
    (tmp_path / LOCK_NAME).unlink()
    WorkDirLock(tmp_path).release()


JOBS = {
    'slurm 77': {'SLURM_JOB_ID': '77'},
    'torchrun inline-10.0.0.1:29500': {'TORCHELASTIC_RUN_ID': 'inline-10.0.0.1:29500'},
}


@pytest.mark.parametrize('job', JOBS)
def test_restarted_job_takes_over_its_own_lock_from_another_host(
    job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ('SLURM_JOB_ID', 'TORCHELASTIC_RUN_ID'):
        monkeypatch.delenv(name, raising=False)
    for name, value in JOBS[job].items():
        monkeypatch.setenv(name, value)
    write(tmp_path, host='node7', job=job)
    with pytest.raises(UserError, match="host 'node7'"):
        WorkDirLock(tmp_path, restarted=False)
    WorkDirLock(tmp_path, restarted=True).release()
    write(tmp_path, host='node7', job=f'{job}1')
    with pytest.raises(UserError, match="host 'node7'"):
        WorkDirLock(tmp_path, restarted=True)


def test_restarted_run_waits_for_its_predecessor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system may notice the end of a host late. Here the process is killed while the restart waits."""
    child = hold(tmp_path)
    monkeypatch.setattr(work_dir_lock.time, 'sleep', lambda _: os.kill(child, signal.SIGKILL))
    WorkDirLock(tmp_path, restarted=True).release()
    assert exit_code(child) == -signal.SIGKILL


@pytest.mark.parametrize('content', ['', '{"pid": 1', '[]', '{"pid": 1, "host": "x\\u001b[2J"}'])
def test_incomplete_file_of_a_killed_process_is_taken_over(content: str, tmp_path: Path) -> None:
    (tmp_path / LOCK_NAME).write_text(content)
    WorkDirLock(tmp_path).release()
    assert os.listdir(tmp_path) == []


def test_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / 'precious').write_text('text')
    (tmp_path / LOCK_NAME).symlink_to(tmp_path / 'precious')
    with pytest.raises(OSError, match='symbolic links'):
        WorkDirLock(tmp_path)
    assert (tmp_path / 'precious').read_text() == 'text'


def test_lock_is_released_when_a_signal_ends_the_process_before_training(tmp_path: Path) -> None:
    WorkDirLock(tmp_path)
    (release,) = stop_request.before_exit
    release()
    assert os.listdir(tmp_path) == []
    assert stop_request.before_exit == []
