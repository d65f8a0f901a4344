"""Virtual environments that hold the built wheel and packages of this one, but not the repository.

Nothing is downloaded or compiled: the packages are those of the environment that runs the tests.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

from tests.conftest import ROOT

SITE_PACKAGES = Path(sysconfig.get_path('purelib'))
# All that the build reads.
SOURCES = ('inline', 'configs', 'tools', 'results', 'LICENSE', 'MANIFEST.in', 'README.md',
           'model-index.yml', 'pyproject.toml', 'setup.cfg', 'setup.py')  # fmt: skip


def build_wheel(folder: Path) -> None:
    """Build the wheel from a copy, so that no build files appear in the repository."""
    source = folder / 'source'
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns('__pycache__'))
        else:
            shutil.copy(ROOT / name, source / name)
    _pip('wheel', '--no-build-isolation', '--no-deps', '--no-index', '--wheel-dir', folder, source)


class Environment:
    """A virtual environment with the wheel, and with the packages of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(self, wheel: Path, packages: Path) -> None:
        """Create the environment."""
        venv.create(self.folder / 'venv', with_pip=False, symlinks=True)
        # A plain path in a .pth file: .pth files in that folder, such as the editable install, are not read.
        (self.site / 'packages.pth').write_text(f'{packages}\n')
        _pip('--python', self.bin('python'), 'install', '--no-deps', '--no-index', '--no-compile', wheel)

    @property
    def site(self) -> Path:
        (site,) = (self.folder / 'venv' / 'lib').glob('python*/site-packages')
        return site

    @property
    def package(self) -> Path:
        return self.site / 'inline'

    def bin(self, name: str) -> Path:
        return self.folder / 'venv' / 'bin' / name

    def run(self, *words: str | Path, code: int = 0) -> str:
        """Run a program of the environment in an empty folder; return its output, or its error."""
        work = self.folder / 'work'
        work.mkdir(exist_ok=True)
        env = {key: value for key, value in os.environ.items() if not key.startswith('PYTHON')}
        command = [str(self.bin(str(words[0]))), *map(str, words[1:])]
        done = subprocess.run(
            command, cwd=work, env=env, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == code, f'{command}: {done.returncode}\n{done.stdout}{done.stderr}'[-3000:]
        return done.stderr if code else done.stdout


def link_requirements(folder: Path, name: str) -> Path:
    """Fill a folder with links to a distribution and all that it requires, and return it."""
    folder.mkdir()
    waiting, seen = [name], set()
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        try:
            found = distribution(current)
        except PackageNotFoundError:  # for another platform
            continue
        requirements = [Requirement(text) for text in found.requires or ()]
        waiting += [
            need.name for need in requirements if not need.marker or need.marker.evaluate({'extra': ''})
        ]
        for top in {file.parts[0] for file in found.files or ()} - {'..', '__pycache__'}:
            if not (folder / top).exists():
                (folder / top).symlink_to(SITE_PACKAGES / top)
    return folder


def _pip(*words: str | Path) -> None:
    command = [sys.executable, '-m', 'pip', '--quiet', '--disable-pip-version-check', *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
