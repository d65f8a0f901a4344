"""Lock of a work directory: two runs in one folder would overwrite each other's files.

Rank 0 holds ``run.lock`` while it trains. The file says who holds it: process, host, start time and job. The
process also has a POSIX lock on the file, which the kernel releases when the process ends in any way, and
which data workers do not inherit. Two runs that start at once compete for it, so exactly one wins.

The file that a killed process left behind is taken over if the process is no longer running. For another host
this cannot be checked. Only a job that was restarted, by the elastic agent or by SLURM, takes over its own
lock from another host.
"""

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from pathlib import Path

from mmengine.config import Config

from inline.engine.resume import call_in_work_dir, is_restarted_anywhere
from inline.engine.signals import stop_request
from inline.utils.errors import UserError
from inline.utils.processes import find_process

LOCK_NAME = 'run.lock'
# A network file system releases the locks of a host that has crashed after its lease, 90 seconds for NFS.
_RESTART_SECONDS = 120
# Time that a new holder may take from the POSIX lock to writing its name.
_WRITE_SECONDS = 2
_IN_USE = (errno.EACCES, errno.EAGAIN)
# Some network file systems do not support locks. Then only the content of the file counts.
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@dataclass(frozen=True)
class Holder:
    """Who holds the lock.

    Attributes:
        pid: Process id of rank 0.
        host: Name of its machine.
        since: Date and time at which the lock was taken.
        start: As in :class:`inline.utils.processes.Process`, to recognise another process with the same id.
        job: SLURM job or torchrun rendezvous that the process belongs to; empty without one.
    """

    pid: int
    host: str
    since: str
    start: str
    job: str

    @classmethod
    def this_process(cls) -> 'Holder':
        process = find_process(os.getpid())
        return cls(
            pid=os.getpid(),
            host=socket.gethostname(),
            since=datetime.now().astimezone().isoformat(' ', 'seconds'),
            start=process.start if process else '',
            job=_job(),
        )

    @classmethod
    def parse(cls, text: str) -> 'Holder | None':
        """Read the content of a lock file; None if its writer was killed before it was complete."""
        try:
            content = json.loads(text)
            holder = cls(**{field.name: content[field.name] for field in fields(cls)})
        except (ValueError, TypeError, KeyError):
            return None
        texts = (holder.host, holder.since, holder.start, holder.job)
        is_valid = isinstance(holder.pid, int) and all(isinstance(text, str) for text in texts)
        return holder if is_valid and all(text.isprintable() for text in texts) else None

    def runs(self) -> bool:
        """Return whether the process runs on this machine."""
        process = find_process(self.pid)
        return process is not None and (not self.start or process.start == self.start)

    def __str__(self) -> str:
        return f'process {self.pid} on host {self.host!r} since {self.since}'


@contextmanager
def lock_work_dir(cfg: Config) -> Iterator[None]:
    """Hold the lock of the work directory on rank 0; if it is taken, raise a UserError on all ranks."""
    restarted = is_restarted_anywhere(cfg)
    # An open file cannot be sent to other ranks.
    held: list[WorkDirLock] = []
    call_in_work_dir(lambda: held.append(WorkDirLock(Path(cfg.work_dir), restarted)), cfg)
    try:
        yield
    finally:
        for lock in held:
            lock.release()


class WorkDirLock:
    """The lock of a work directory, taken by the constructor.

    Args:
        work_dir: An existing folder.
        restarted: Whether a launcher has restarted this run.
    """

    def __init__(self, work_dir: Path, restarted: bool = False) -> None:
        self.path = work_dir / LOCK_NAME
        self._restarted = restarted
        self._holder = Holder.this_process()
        self._descriptor = self._open()
        try:
            previous = Holder.parse(self._read())
            if previous is not None and not self._may_take_over(previous):
                raise UserError(self._refusal(previous))
            if previous is not None:
                print(f'work directory: took over the lock of {previous}', flush=True)
            self._write()
        except BaseException:
            os.close(self._descriptor)
            raise
        # A signal before the first step ends the process without running `finally` blocks.
        stop_request.before_exit.append(self.release)

    def release(self) -> None:
        """Delete the file, unless another process has taken it over."""
        if self.release in stop_request.before_exit:
            stop_request.before_exit.remove(self.release)
        if self._descriptor < 0:
            return
        try:
            if self._is_current() and Holder.parse(self._read()) == self._holder:
                self.path.unlink()
        except OSError:
            pass  # The folder was removed or is no longer writable. The lock is stale from now on.
        os.close(self._descriptor)
        self._descriptor = -1

    def _open(self) -> int:
        """Open the file and take the POSIX lock on it, without waiting unless the run was restarted."""
        deadline = time.monotonic() + _RESTART_SECONDS
        while True:
            # Without following a link, which could make the run write elsewhere.
            self._descriptor = os.open(
                self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644
            )
            try:
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (*_IN_USE, *_UNSUPPORTED):
                    raise
                if error.errno in _IN_USE:
                    holder = self._read_holder()
                    os.close(self._descriptor)
                    if not self._restarted or time.monotonic() > deadline:
                        raise UserError(self._in_use(holder)) from None
                    time.sleep(1)
                    continue
            # The previous holder may have deleted the file after this process opened it.
            if self._is_current():
                return self._descriptor
            os.close(self._descriptor)

    def _is_current(self) -> bool:
        """Return whether the open file is the one in the folder."""
        try:
            return os.path.samestat(os.stat(self.path, follow_symlinks=False), os.fstat(self._descriptor))
        except FileNotFoundError:
            return False

    def _read(self) -> str:
        # With this descriptor: closing another one of the same file would release the POSIX lock.
        return os.pread(self._descriptor, 1 << 16, 0).decode(errors='replace')

    def _read_holder(self) -> Holder | None:
        deadline = time.monotonic() + _WRITE_SECONDS
        while (holder := Holder.parse(self._read())) is None and time.monotonic() < deadline:
            time.sleep(0.05)
        return holder

    def _write(self) -> None:
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, json.dumps(asdict(self._holder)).encode(), 0)

    def _may_take_over(self, previous: Holder) -> bool:
        if previous.host == self._holder.host:
            return not previous.runs()
        return self._restarted and self._holder.job != '' and previous.job == self._holder.job

    def _refusal(self, previous: Holder) -> str:
        if previous.host == self._holder.host:
            return self._in_use(previous)
        return (
            f'work directory {str(self.path.parent)!r} is locked by {previous}, and this host, '
            f'{self._holder.host!r}, cannot check whether that process still runs: if it has ended, delete '
            f'{str(self.path)!r}; otherwise choose another --work-dir'
        )

    def _in_use(self, holder: Holder | None) -> str:
        who = 'another training run' if holder is None else f'the training run of {holder}'
        return (
            f'work directory {str(self.path.parent)!r} is in use by {who}: wait for it, stop it, or choose '
            'another --work-dir'
        )


def _job() -> str:
    """Return the job that a launcher may start again on another host."""
    if 'SLURM_JOB_ID' in os.environ:
        return f'slurm {os.environ["SLURM_JOB_ID"]}'
    rendezvous = os.environ.get('TORCHELASTIC_RUN_ID', 'none')
    # torchrun's default name for all runs.
    return '' if rendezvous == 'none' else f'torchrun {rendezvous}'
