"""Detection of reads that hang: a stalled network drive, or a file that never delivers data.

A process that waits for a network drive often cannot be interrupted, so a data worker cannot report it. Every
process therefore records in shared memory which file it reads. A thread of the training process watches these
records, stops the run with an error that names the file, and ends the process as a last resort. It counts its
own wake-ups instead of comparing times, so that suspending the whole job is not an error.
"""

import mmap
import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from mmengine.config import Config

from inline.utils.errors import BadDataError
from inline.utils.processes import find_process

# Seconds. Below NCCL's timeout of ten minutes, after which the other ranks would fail with a different error.
DEFAULT_READ_TIMEOUT = 300
# Time for the run to end after the error was raised.
_END_SECONDS = 30
_SIGNAL = signal.SIGALRM
# One slot per process, used in turn by forked processes: number of the read (0 if none), process, path.
_HEADER = struct.Struct('<qqi')
_SLOT_BYTES, _SLOTS = 4096, 1024


class ReadNotes:
    """Which file each process reads, in memory shared with forked processes. Empty until it is opened."""

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self._slot, self._next_slot, self._count, self._pid = 0, 1, 0, 0
        os.register_at_fork(before=self._before_fork, after_in_child=self._after_fork)

    def open(self) -> None:
        """Start recording in this process and in those that it forks from now on."""
        self._memory = mmap.mmap(-1, _SLOT_BYTES * _SLOTS)
        self._slot, self._next_slot, self._pid = 0, 1, os.getpid()

    def close(self) -> None:
        self._memory = None

    def begin(self, path: str) -> None:
        """Record that this process starts to read a file."""
        if self._memory is None:
            return
        self._count += 1
        name = os.fsencode(path)[: _SLOT_BYTES - _HEADER.size]
        start = self._slot * _SLOT_BYTES
        self._memory[start + _HEADER.size : start + _HEADER.size + len(name)] = name
        _HEADER.pack_into(self._memory, start, self._count, self._pid, len(name))

    def end(self) -> None:
        """Record that this process has read the file."""
        if self._memory is not None:
            _HEADER.pack_into(self._memory, self._slot * _SLOT_BYTES, 0, self._pid, 0)

    def current(self) -> dict[tuple[int, int], str]:
        """Return the files that are being read, by process id and number of the read."""
        found: dict[tuple[int, int], str] = {}
        if self._memory is None:
            return found
        for start in range(0, min(self._next_slot, _SLOTS) * _SLOT_BYTES, _SLOT_BYTES):
            count, pid, length = _HEADER.unpack_from(self._memory, start)
            if count:
                name = self._memory[start + _HEADER.size : start + _HEADER.size + length]
                found[pid, count] = os.fsdecode(name)
        return found

    def _before_fork(self) -> None:
        # The parent uses slot 0.
        self._slot_of_child = 1 + (self._next_slot - 1) % (_SLOTS - 1)
        self._next_slot += 1

    def _after_fork(self) -> None:
        self._slot, self._pid = self._slot_of_child, os.getpid()


notes = ReadNotes()


@contextmanager
def watch_reads(cfg: Config) -> Iterator[None]:
    """Raise a :class:`BadDataError` if this process or one of its data workers takes too long to read a file.

    Call it from the main thread. ``data_validation.read_timeout`` of the config is the limit in seconds, 0
    for none.
    """
    timeout = float((cfg.get('data_validation') or {}).get('read_timeout', DEFAULT_READ_TIMEOUT))
    if timeout <= 0 or threading.current_thread() is not threading.main_thread():
        yield
        return
    notes.open()
    watch = _Watch(timeout)
    handler = signal.signal(_SIGNAL, watch.raise_error)
    thread = threading.Thread(target=watch.run, daemon=True, name='read-watch')
    thread.start()
    try:
        yield
    finally:
        watch.stop()
        signal.signal(_SIGNAL, handler)
        notes.close()


class _Watch:
    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._message = ''

    def stop(self) -> None:
        with self._lock:
            self._stopped.set()

    def run(self) -> None:
        interval = min(self.timeout / 4, 5.0)
        wake_ups: dict[tuple[int, int], int] = {}
        while not self._stopped.wait(interval):
            files = notes.current()
            wake_ups = {read: wake_ups.get(read, 0) + 1 for read in files}
            for read, count in wake_ups.items():
                # The first wake-up may come right after the read began.
                if (count - 1) * interval >= self.timeout and _is_of_this_run(read[0]):
                    self._report(files[read])
                    return

    def raise_error(self, *_: object) -> None:
        """Handle the signal of the thread in the main thread."""
        raise BadDataError(self._message)

    def _report(self, path: str) -> None:
        self._message = (
            f'{path!r} cannot be read: no answer within {self.timeout:g} s (data_validation.read_timeout); '
            'check the file and its drive, then continue with --resume'
        )
        with self._lock:
            if self._stopped.is_set():
                return
            # The main thread waits for data workers, or for the file: the signal interrupts both.
            signal.pthread_kill(threading.main_thread().ident or 0, _SIGNAL)
        if not self._stopped.wait(_END_SECONDS):
            print(f'error: {self._message}', file=sys.stderr, flush=True)
            os._exit(2)
        # The interpreter waits for data workers when it exits, but this one may never end.
        threading.main_thread().join()
        time.sleep(_END_SECONDS)
        os._exit(2)


def _is_of_this_run(pid: int) -> bool:
    """Return whether a process is this one or one of its children. A killed data worker leaves its record."""
    process = find_process(pid)
    return pid == os.getpid() or (process is not None and process.parent in (0, os.getpid()))
