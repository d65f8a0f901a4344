"""What a measurement is made on: getting it ready, and telling it in one line."""

import ctypes
import os
import platform
from pathlib import Path

import torch

from inline.errors import UserError

CPU = torch.device('cpu')
# Parameters of glibc's mallopt.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


def prepare_for_timing(threads: int) -> None:
    """Use so many threads, and let glibc keep freed memory.

    It would hand large blocks back to the system and ask for them anew at the next operator; what is then
    timed is the system clearing pages, differently from one process to the next.
    """
    torch.set_num_threads(threads)
    mallopt = getattr(ctypes.CDLL(None), 'mallopt', None) if os.name == 'posix' else None
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_MMAP_THRESHOLD, 2**25)


def choose_device(name: str | None) -> torch.device:
    """The device of this name, cpu or cuda; of None a GPU if there is one."""
    if name == 'cuda' and not torch.cuda.is_available():
        raise UserError('--device cuda: torch finds no GPU here, give cpu')
    return torch.device(name or ('cuda' if torch.cuda.is_available() else 'cpu'))


def describe_machine(device: torch.device) -> str:
    """What the device is, for example 'AMD EPYC, 2 cores, torch 2.13.0'."""
    if device.type == 'cuda':
        return f'{torch.cuda.get_device_name(device)}, torch {torch.__version__}'
    return f'{_processor()}, {os.cpu_count()} cores, torch {torch.__version__}'


def _processor() -> str:
    info = Path('/proc/cpuinfo')
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(':', 1)[1].strip() for line in lines if line.startswith('model name')]
    return names[0] if names else platform.machine()
