"""What a measurement was made on, in one line."""

import os
import platform
from pathlib import Path

import torch


def describe_machine() -> str:
    """For example 'AMD EPYC, 2 cores, torch 2.13.0'."""
    if torch.cuda.is_available():
        return f'{torch.cuda.get_device_name()}, torch {torch.__version__}'
    return f'{_processor()}, {os.cpu_count()} cores, torch {torch.__version__}'


def _processor() -> str:
    info = Path('/proc/cpuinfo')
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(':', 1)[1].strip() for line in lines if line.startswith('model name')]
    return names[0] if names else platform.machine()
