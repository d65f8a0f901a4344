"""Description of the environment of a measurement: commit, hardware, versions, date."""

import hashlib
import os
import platform
import subprocess
from datetime import date
from importlib.metadata import version
from pathlib import Path

import torch

PACKAGES = (
    'torch',
    'onedl-mmengine',
    'onedl-mmcv',
    'onedl-mmpretrain',
    'onedl-mmdetection',
    'onedl-mmsegmentation',
)
_ROOT = Path(__file__).resolve().parents[2]


def describe_environment(processes: int = 1) -> dict[str, str]:
    """Return commit, hardware, package versions and date for the record of a measurement."""
    return {
        'commit': describe_commit(),
        'hardware': _describe_processes(processes),
        'versions': ', '.join(f'{package} {version(package)}' for package in PACKAGES),
        'date': date.today().isoformat(),
    }


def describe_commit() -> str:
    """Return the short commit hash.

    If tracked files differ from it (marked with a plus) or there is no checkout, a digest of the package's
    source is added to identify the code.
    """
    commit = _git('rev-parse', '--short', 'HEAD')
    if commit and not _git('status', '--porcelain', '--untracked-files=no'):
        return commit
    digest = hashlib.sha256()
    for path in sorted((_ROOT / 'inline').rglob('*.py')):
        digest.update(f'{path.relative_to(_ROOT)}\n'.encode() + path.read_bytes())
    return f'{f"{commit}+" if commit else "not a git checkout"} (source {digest.hexdigest()[:12]})'


def describe_hardware(device: torch.device) -> str:
    """Return the model of a GPU, or of the CPU with its number of cores: 'AMD EPYC, 2 cores'."""
    if device.type == 'cuda':
        return torch.cuda.get_device_name(device)
    return f'{cpu_name()}, {os.cpu_count()} cores'


def cpu_name() -> str:
    """Return the model of the CPU, 'AMD EPYC' for example, or its architecture if Linux does not tell."""
    info = Path('/proc/cpuinfo')
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(':', 1)[1].strip() for line in lines if line.startswith('model name')]
    return names[0] if names else platform.machine()


def _describe_processes(processes: int) -> str:
    if torch.cuda.is_available():
        return f'{processes} × {describe_hardware(torch.device("cuda"))}'
    return f'{describe_hardware(torch.device("cpu"))}, no GPU, {processes} process{"es" * (processes != 1)}'


def _git(*arguments: str) -> str:
    done = subprocess.run(['git', *arguments], cwd=_ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ''
