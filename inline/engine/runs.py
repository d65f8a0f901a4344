"""Trainings and tests by the tools, as processes of their own, in folders that can be taken up again."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inline.engine.config import load_config
from inline.engine.logs import read_scalars, training_records
from inline.errors import UserError
from inline.whole_files import make_folder, write_whole

# The tools and configs stand beside the package.
ROOT = Path(__file__).resolve().parents[2]
POLL_SECONDS = 10


@dataclass(frozen=True)
class Run:
    """One training and its test. Stopped, it goes on; finished and unchanged, it is not done again.

    Args:
        config: The config file.
        folder: Where logs, checkpoints and the test's results go.
        pretrained: Weights that the backbone starts from.
        processes: How many share the work.
        data_root: The folder that holds the data sets; None for the tools' own default.
        options: ``key=value`` settings that override the config's.
        flags: Further flags of tools/train.py.
        test: Whether a test follows the training; else its last validation stands for one.
        keep_predictions: Whether the test writes all predictions to test/predictions.pkl.
        depends_on: What else the outcome depends on, such as the version of the data.
    """

    config: Path
    folder: Path
    pretrained: Path | None = None
    processes: int = 1
    data_root: str | None = None
    options: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    test: bool = True
    keep_predictions: bool = False
    depends_on: str = ''

    @property
    def name(self) -> str:
        return self.folder.name

    def identity(self) -> str:
        """A digest of what the outcome depends on: settings, starting weights, and what was named."""
        parts = [settings_of(self.config), *self.options, *self.flags, self.depends_on]
        if self.pretrained is not None:
            parts.append(file_digest(self.pretrained))
        return hashlib.sha256('\n'.join(parts).encode()).hexdigest()

    def is_done(self) -> bool:
        return _read(self.folder / 'done') == self.identity()

    def begin(self) -> None:
        """Make the folder; what another version of the run left in it is removed, and nothing else."""
        identity, begun = self.identity(), _read(self.folder / 'begun')
        if begun is None and self.folder.exists() and not _is_empty(self.folder):
            raise UserError(
                f'{str(self.folder)!r} is to be the folder of a run and holds something else: '
                'choose another place for the runs, or move it away'
            )
        if begun != identity:
            make_folder('work directory', self.folder)
            self._clear()
            write_whole(self.folder / 'begun', identity.encode())

    def forget(self) -> None:
        """Remove the folder, if it is one of a run."""
        if (self.folder / 'begun').is_file():
            self._clear()
            shutil.rmtree(self.folder)

    def _clear(self) -> None:
        """Remove all but what tells that the folder is a run's, should this process be killed."""
        for path in self.folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != 'begun':
                path.unlink()

    def mark_done(self) -> None:
        (self.folder / 'done').write_text(self.identity())

    def train_command(self) -> list[str]:
        words = ['--work-dir', self.folder, '--resume', *self._common(), *self.flags]
        if self.pretrained is not None:
            words += ['--pretrained', self.pretrained]
        return tool_command('train', [self.config], self.processes, [*words, *self._options()])

    def test_command(self) -> list[str]:
        words = ['--work-dir', self.folder / 'test', *self._common()]
        if self.keep_predictions:
            words += ['--out', self.folder / 'test' / 'predictions.pkl']
        positional = [self.config, self.last_checkpoint()]
        return tool_command('test', positional, self.processes, [*words, *self._options()])

    def last_checkpoint(self) -> Path:
        return Path((self.folder / 'last_checkpoint').read_text().strip())

    def _common(self) -> list[str]:
        return [] if self.data_root is None else ['--data-root', self.data_root]

    def _options(self) -> list[str]:
        return ['--cfg-options', *self.options] if self.options else []


def tool_command(tool: str, positional: Sequence[Any], processes: int, words: Sequence[Any]) -> list[str]:
    """tools/train.py or tools/test.py, by its script for several processes where there are some."""
    if processes > 1:
        command = ['bash', ROOT / 'tools' / f'dist_{tool}.sh', *positional, processes, *words]
    else:
        command = [sys.executable, ROOT / 'tools' / f'{tool}.py', *positional, *words]
    return [str(word) for word in command]


def environment() -> dict[str, str]:
    """For the processes: this interpreter, and one thread each unless told otherwise."""
    return {'OMP_NUM_THREADS': '1', **os.environ, 'PYTHON': sys.executable}


def call(command: Sequence[str], what: str) -> None:
    """Run a command with its output on the terminal; an end with an error is told in one line."""
    code = subprocess.run(command, env=environment(), check=False).returncode
    if code:
        raise UserError(f'{what} ended with exit code {code}; its last lines above say why')


def run_all(runs: Sequence[Run], width: int) -> None:
    """Train and test all, `width` at a time, with output in logs and progress on the terminal."""
    waiting = []
    for run in runs:
        if run.is_done():
            print(f'{run.name}: done already', flush=True)
        else:
            waiting.append(run)
    active: dict[Run, _Step] = {}
    next_report = time.monotonic() + POLL_SECONDS
    try:
        while waiting or active:
            while waiting and len(active) < width:
                run = waiting.pop(0)
                run.begin()
                active[run] = _Step(run, 'train')
            time.sleep(0.2)
            for run, step in list(active.items()):
                following = step.following()
                if following is None:
                    run.mark_done()
                    del active[run]
                else:
                    active[run] = following
            if time.monotonic() > next_report:
                for step in active.values():
                    step.tell_progress()
                next_report = time.monotonic() + POLL_SECONDS
    finally:
        for step in active.values():
            step.process.terminate()


def clock(seconds: float) -> str:
    return f'{int(seconds) // 60}:{int(seconds) % 60:02d}'


def settings_of(config: Path) -> str:
    """All settings of a config; not its own text, which depends on the version of the formatter."""
    return json.dumps(load_config(config).to_dict(), sort_keys=True, default=repr)


def file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def _read(path: Path) -> str | None:
    return path.read_text() if path.is_file() else None


class _Step:
    """The training or the test of a run, as a process with its output in a log."""

    def __init__(self, run: Run, kind: str) -> None:
        self.run, self.kind = run, kind
        self.log = run.folder / f'{kind}.log'
        self.total = load_config(run.config).train_cfg.get('max_iters')
        command = run.train_command() if kind == 'train' else run.test_command()
        with self.log.open('wb') as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment())
        print(f'{run.name}: {kind}ing, log in {self.log}', flush=True)

    def following(self) -> '_Step | None':
        """Itself while it goes on, then the step after it, None at the end; a failure ends everything."""
        code = self.process.poll()
        if code is None:
            return self
        if code:
            print('\n'.join(self.log.read_text(errors='replace').splitlines()[-20:]), file=sys.stderr)
            raise UserError(f'{self.run.name}: {self.kind}ing ended with exit code {code}, see {self.log}')
        return _Step(self.run, 'test') if self.kind == 'train' and self.run.test else None

    def tell_progress(self) -> None:
        records = training_records(read_scalars(self.run.folder)) if self.kind == 'train' else []
        if records and self.total:
            step, loss = records[-1]['step'], records[-1]['loss']
            left = clock((self.total - step) * records[-1]['time'])
            print(f'  {self.run.name:<18} {step:>5}/{self.total}  loss {loss:.3f}  eta {left}', flush=True)
