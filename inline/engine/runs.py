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
from inline.errors import UserError

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
    keep_predictions: bool = False
    depends_on: str = ''

    @property
    def name(self) -> str:
        return self.folder.name

    def identity(self) -> str:
        """A digest of what the outcome depends on: settings, starting weights, and what was named."""
        parts = [load_config(self.config).dump(), *self.options, *self.flags, self.depends_on]
        if self.pretrained is not None:
            parts.append(file_digest(self.pretrained))
        return hashlib.sha256('\n'.join(parts).encode()).hexdigest()

    def is_done(self) -> bool:
        return _read(self.folder / 'done') == self.identity()

    def begin(self) -> None:
        """Make the folder; what another version of the run left in it is removed."""
        identity = self.identity()
        if _read(self.folder / 'begun') != identity:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
            (self.folder / 'begun').write_text(identity)

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


def run_side_by_side(runs: Sequence[Run]) -> None:
    """Train all, then test all, with their output in logs and their progress on the terminal."""
    waiting = []
    for run in runs:
        if run.is_done():
            print(f'{run.name}: done already', flush=True)
        else:
            run.begin()
            waiting.append(run)
    for step in ('train', 'test'):
        processes = {run: _start(run, step) for run in waiting}
        try:
            _watch(processes, step)
        finally:
            for process in processes.values():
                process.terminate()
    for run in waiting:
        run.mark_done()


def clock(seconds: float) -> str:
    return f'{int(seconds) // 60}:{int(seconds) % 60:02d}'


def file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _read(path: Path) -> str | None:
    return path.read_text() if path.is_file() else None


def _start(run: Run, step: str) -> subprocess.Popen[bytes]:
    command = run.train_command() if step == 'train' else run.test_command()
    with (run.folder / f'{step}.log').open('wb') as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment())


def _watch(processes: dict[Run, subprocess.Popen[bytes]], step: str) -> None:
    """Tell how far each run is until all have ended; a run that failed ends all with its last lines."""
    totals = {run: load_config(run.config).train_cfg.max_iters for run in processes}
    for run in processes:
        print(f'{run.name}: {step}ing, log in {run.folder / f"{step}.log"}', flush=True)
    while any(process.poll() is None for process in processes.values()):
        next_report = time.monotonic() + POLL_SECONDS
        while time.monotonic() < next_report and any(
            process.poll() is None for process in processes.values()
        ):
            time.sleep(0.2)
        for run, process in processes.items():
            if step == 'train' and process.poll() is None:
                _tell_progress(run, totals[run])
    for run, process in processes.items():
        if process.returncode:
            log = run.folder / f'{step}.log'
            print('\n'.join(log.read_text(errors='replace').splitlines()[-20:]), file=sys.stderr)
            raise UserError(f'{run.name}: {step}ing ended with exit code {process.returncode}, see {log}')


def _tell_progress(run: Run, total: int) -> None:
    logs = sorted(run.folder.glob('*/vis_data/scalars.json'))
    lines = logs[-1].read_text().splitlines() if logs else []
    steps = [entry for entry in map(json.loads, lines) if 'loss' in entry]
    if steps:
        step = steps[-1]['step']
        left = (total - step) * steps[-1]['time']
        print(
            f'  {run.name:<18} {step:>5}/{total}  loss {steps[-1]["loss"]:.3f}  eta {clock(left)}', flush=True
        )
