"""What a measurement was made with: commit, hardware, versions, date."""

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


def describe_commit() -> str:
    """The short commit, with a plus where files differ from it."""
    commit = _git('rev-parse', '--short', 'HEAD')
    if not commit:
        return 'not a git checkout'
    return f'{commit}+' if _git('status', '--porcelain', '--untracked-files=no') else commit


def describe_hardware(processes: int = 1) -> str:
    """The GPUs in use, or the kind and number of cores."""
    if torch.cuda.is_available():
        return f'{processes} × {torch.cuda.get_device_name()}'
    return f'{platform.machine()}, {os.cpu_count()} cores, no GPU, {processes} processes'


def describe_versions() -> str:
    return ', '.join(f'{package} {version(package)}' for package in PACKAGES)


def today() -> str:
    return date.today().isoformat()


def _git(*words: str) -> str:
    done = subprocess.run(['git', *words], cwd=_ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ''
