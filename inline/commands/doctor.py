"""Check the installation and print one line per check, with what to do if one fails.

Exit code 0: everything that is installed works; extras that are not installed are listed. 1: something does
not work.
"""

import argparse
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

import inline
from inline.utils.errors import OneLineParser
from inline.utils.extras import DISTRIBUTION, EXTRAS, install_command, missing_modules
from inline.utils.resources import CONFIGS, IS_CLONE, ROOT

MIN_PYTHON = (3, 11)
MIN_TORCH = (2, 12)


class Check(NamedTuple):
    """The outcome of a check.

    Args:
        status: 'ok', 'missing' for an optional part that is not there, or 'error'.
        subject: What was checked.
        message: What was found, and what to do about it.
    """

    status: str
    subject: str
    message: str


def main() -> int:
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    checks = []
    for check in run_checks():
        print(f'{check.status:<8} {check.subject:<12} {check.message}', flush=True)
        checks.append(check)
    return int(any(check.status == 'error' for check in checks))


def run_checks() -> Iterator[Check]:
    """Yield the outcome of every check. A check that needs a missing package is left out."""
    yield check_python()
    yield check_package()
    torch_check = check_torch()
    yield torch_check
    if torch_check.status == 'ok':
        yield check_gpu()
    for extra in EXTRAS:
        yield check_extra(extra)
    if torch_check.status == 'ok' and not missing_modules('openmmlab'):
        yield run_check('mmcv ops', check_operators)
        yield run_check('model hub', check_model_hub)


def check_python() -> Check:
    found = '.'.join(map(str, sys.version_info[:3]))
    if sys.version_info < MIN_PYTHON:
        minimum = '.'.join(map(str, MIN_PYTHON))
        return Check('error', 'Python', f'{found}: install {minimum} or newer')
    return Check('ok', 'Python', f'{found}, {sys.executable}')


def check_package() -> Check:
    configs = sum('_base_' not in path.parts for path in CONFIGS.rglob('*.py'))
    if not configs:
        return Check('error', 'inline', f'{ROOT} has no configs: {reinstall_command()}')
    kind = 'repository' if IS_CLONE else 'installed package'
    return Check('ok', 'inline', f'{inline.__version__}, {kind}, {configs} configs in {CONFIGS}')


def reinstall_command() -> str:
    return f"pip install --force-reinstall --no-deps '{DISTRIBUTION}'"


def check_torch() -> Check:
    minimum = '.'.join(map(str, MIN_TORCH))
    try:
        import torch
    except (ImportError, OSError) as error:
        return Check('error', 'torch', f"{_first_line(error)}: pip install 'torch>={minimum}'")
    found = str(torch.__version__)
    if tuple(int(part) for part in found.split('.')[:2]) < MIN_TORCH:
        return Check('error', 'torch', f"{found} is too old: pip install 'torch>={minimum}'")
    build = f'CUDA {torch.version.cuda}' if torch.version.cuda else 'CPU build'
    return Check('ok', 'torch', f'{found}, {build}')


def check_gpu() -> Check:
    import torch

    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        return Check('ok', 'GPU', ', '.join(names))
    if shutil.which('nvidia-smi') is None:
        return Check('missing', 'GPU', 'none found: everything runs on the CPU, only slower')
    advice = 'update the driver' if torch.version.cuda else 'install the CUDA build of torch'
    return Check('missing', 'GPU', f'torch does not see the GPU of this machine: {advice} to use it')


def check_extra(extra: str) -> Check:
    """Report the versions of an extra's packages, or how to install those that are missing."""
    subject = f'[{extra}]'
    missing = missing_modules(extra)
    if missing:
        advice = f'{install_command(extra)} for {EXTRAS[extra].purpose}'
        return Check('missing', subject, f'{", ".join(missing)}: {advice}')
    found = [f'{name} {_version(name, package)}' for name, package in EXTRAS[extra].packages.items()]
    return Check('ok', subject, ', '.join(found))


def run_check(subject: str, check: Callable[[], str]) -> Check:
    """Run a check that imports toolboxes, whose failures may be of any type."""
    try:
        return Check('ok', subject, check())
    except Exception as error:
        return Check('error', subject, f'{_first_line(error)}; see docs/installation.md')


def check_operators() -> str:
    from inline.openmmlab import patches

    patches.apply_patches()
    patches.check_operators()
    return 'compiled operators run'


def check_model_hub() -> str:
    import mmpretrain

    names: Iterable[str] = mmpretrain.list_models('*inline*')
    count = len(list(names))
    if not count:
        raise RuntimeError("mmpretrain.list_models('*inline*') is empty")
    return f"mmpretrain.list_models('*inline*') has {count} models"


def _version(module: str, package: str) -> str:
    """Return the version of a distribution, or that of its module if another distribution provides it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return str(getattr(__import__(module), '__version__', 'of unknown version'))


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), '') or type(error).__name__
