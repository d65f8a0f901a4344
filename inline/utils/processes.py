"""Processes: whether one is still running, how to end together with the parent, and memory of this one."""

import ctypes
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

_PR_SET_PDEATHSIG = 1
# Parameters of glibc's mallopt, and the largest value that it accepts for the second one.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MAX_MMAP_THRESHOLD = -1, -3, 2**25
# Loaded here, because a forked child should not load libraries.
_libc = ctypes.CDLL(None) if sys.platform == 'linux' else None


@dataclass(frozen=True)
class Process:
    """A running process.

    Attributes:
        parent: Process id of its parent, 0 if unknown.
        start: When it was started: boot of the machine and clock ticks since then. A later process with the
            same id has a different value. Empty without /proc.
    """

    parent: int
    start: str


def find_process(pid: int) -> Process | None:
    """Return the running process with an id, None if there is none or it has ended (a zombie)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass  # It exists and belongs to another user.
    except OverflowError:
        return None
    try:
        # The name, in parentheses, may contain spaces.
        fields = Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()
        boot = Path('/proc/sys/kernel/random/boot_id').read_text().strip()
    except FileNotFoundError:
        return None if Path('/proc/self').exists() else Process(0, '')
    except (ProcessLookupError, PermissionError):
        return None
    return None if fields[0] in 'ZX' else Process(int(fields[1]), f'{boot} {fields[19]}')


def end_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent ends in any way, and kill it if it already has.

    The parent must have started this process from its main thread: the kernel acts when that thread ends.
    Linux only; elsewhere this does nothing.
    """
    if _libc is None:
        return
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have ended before this call.
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def keep_freed_memory() -> None:
    """Let glibc keep freed memory for the next allocation; without glibc this does nothing.

    By default it returns large blocks to the system and requests them again for the next operator. Each of
    their pages then costs a page fault.
    """
    mallopt = getattr(_libc, 'mallopt', None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_MMAP_THRESHOLD, _MAX_MMAP_THRESHOLD)
