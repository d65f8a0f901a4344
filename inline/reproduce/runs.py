"""Training and test runs as subprocesses of the tools, in work directories that can be resumed."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mmengine.config import Config

from inline.engine.config import load_config, set_data_root, starting_checkpoints
from inline.engine.flags import add_cfg_options
from inline.engine.logs import read_scalars, training_records
from inline.reproduce.provenance import (
    ROOT,
    Inputs,
    data_digest,
    path_digest,
    provenance_columns,
    text_digest,
)
from inline.utils.atomic import atomic_write, make_folder, remove_temporary_files
from inline.utils.environment import describe_environment
from inline.utils.errors import OneLineParser, UserError

PROGRESS_SECONDS = 10
RECORD = 'run.json'
# Marker of a work directory of an earlier version, without a record of the inputs.
OLD_MARKER = 'begun'
# Value of --pretrained that removes the pretrained weights of the config.
NO_WEIGHTS = 'none'


@dataclass(frozen=True)
class RunRecord:
    """Content of run.json, written before a run starts.

    Args:
        inputs: Inputs of the run.
        sessions: Code version, hardware, package versions and date of each start, without repetitions.
        finished: Whether training and testing are complete.
    """

    inputs: Inputs
    sessions: list[dict[str, str]]
    finished: bool = False


@dataclass(frozen=True)
class Run:
    """A training run, optionally followed by a test, in its own work directory.

    An interrupted run is resumed, and a finished run is not repeated, as long as its inputs (config with
    options and flags, starting weights, data) match those in run.json. If an input changed, the old files are
    moved aside and the run starts over, because resuming would mix two experiments. The version of the code
    may change in between; see :class:`Inputs`.

    Args:
        config: The config file.
        folder: Work directory for logs, checkpoints and test results.
        pretrained: Pretrained weights of the backbone, or :data:`NO_WEIGHTS`; None for those of the config.
        processes: Number of processes.
        data_root: Folder that contains the datasets; None for the default of the tools.
        options: ``key=value`` overrides of the config.
        flags: Further flags of tools/train.py.
        test: Whether to test after training. If not, the last validation is the result.
        keep_predictions: Whether the test saves all predictions in test/predictions.pkl.
    """

    config: Path
    folder: Path
    pretrained: Path | str | None = None
    processes: int = 1
    data_root: str | None = None
    options: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    test: bool = True
    keep_predictions: bool = False

    @property
    def name(self) -> str:
        return self.folder.name

    def inputs(self, tested: Path | None = None) -> Inputs:
        """Return the inputs of training, or of a test of the checkpoint `tested`.

        Digests are those of the current files.
        """
        cfg = effective_config(self.config, self.options)
        settings = json.dumps(cfg.to_dict(), sort_keys=True, default=repr)
        if self.data_root:
            set_data_root(cfg, self.data_root)
        if tested is not None:
            return Inputs(
                text_digest(settings), {str(tested): path_digest(tested)}, data_digest(cfg, ['test'])
            )
        checkpoints = dict(starting_checkpoints(cfg))
        if self.pretrained is not None:
            # --pretrained replaces load_from and the weights in the backbone's init_cfg.
            replaced = ('load_from', 'model.backbone.init_cfg')
            checkpoints = {key: path for key, path in checkpoints.items() if not key.startswith(replaced)}
            if self.pretrained != NO_WEIGHTS:
                checkpoints['--pretrained'] = str(self.pretrained)
        return Inputs(
            text_digest('\n'.join([settings, *self.flags])),
            {path: path_digest(path) for path in checkpoints.values()},
            data_digest(cfg, ['train', 'val', 'test']),
        )

    def record(self) -> RunRecord | None:
        """Return the content of run.json, or None if the file does not exist."""
        path = self.folder / RECORD
        if not path.is_file():
            return None
        content = json.loads(path.read_text())
        return RunRecord(Inputs(**content['inputs']), content['sessions'], content['finished'])

    def is_done(self) -> bool:
        record = self.record()
        return record is not None and record.finished and record.inputs.digest == self.inputs().digest

    def begin(self, inputs: Inputs | None = None) -> None:
        """Create or reopen the work directory and record the inputs (by default the current ones)."""
        inputs = inputs or self.inputs()
        make_folder('work directory', self.folder)
        remove_temporary_files(self.folder)
        record, changed = self.record(), []
        if record is not None:
            changed = inputs.changed_from(record.inputs)
        elif (self.folder / OLD_MARKER).is_file():
            changed = ['format of the record']
        elif any(self.folder.iterdir()):
            raise UserError(
                f'work directory {str(self.folder)!r} is not empty and does not contain a run: '
                'choose another one, or move its content'
            )
        if changed:
            self._move_aside(changed)
        sessions = record.sessions if record and not changed else []
        session = describe_environment(self.processes)
        self._write(RunRecord(inputs, sessions if session in sessions[-1:] else [*sessions, session]))

    def finish(self) -> None:
        """Mark the run as complete."""
        record = self.record()
        assert record is not None, 'begin() comes first'
        self._write(replace(record, finished=True))

    def delete(self) -> None:
        """Delete the work directory if it belongs to a run.

        It is renamed first: a process killed during deletion must not leave a directory without a record.
        """
        if any((self.folder / name).is_file() for name in (RECORD, OLD_MARKER)):
            trash = self.folder.with_name(f'{self.name}_deleted')
            shutil.rmtree(trash, ignore_errors=True)
            self.folder.rename(trash)
            shutil.rmtree(trash)

    def provenance(self) -> dict[str, str]:
        """Return the provenance columns of the recorded run."""
        record = self.record()
        assert record is not None, 'begin() comes first'
        return provenance_columns(self.config, record.inputs, record.sessions)

    def _write(self, record: RunRecord) -> None:
        atomic_write(self.folder / RECORD, json.dumps(asdict(record), indent=1).encode())

    def _move_aside(self, changed: Sequence[str]) -> None:
        number = 1
        while (target := self.folder.with_name(f'{self.name}_old{number}')).exists():
            number += 1
        self.folder.rename(target)
        make_folder('work directory', self.folder)
        print(f'{self.name}: starting over, changed: {", ".join(changed)}; old files: {target}', flush=True)

    def train_command(self) -> list[str]:
        words = ['--work-dir', self.folder, '--resume', *self.flags]
        if self.pretrained is not None:
            words += ['--pretrained', self.pretrained]
        return self._command('train', [self.config], words)

    def test_command(self, checkpoint: Path | None = None) -> list[str]:
        """Return the command that tests `checkpoint`, by default the last one of the run."""
        words = ['--work-dir', self.folder / 'test']
        if self.keep_predictions:
            words += ['--out', self.folder / 'test' / 'predictions.pkl']
        return self._command('test', [self.config, checkpoint or self.last_checkpoint()], words)

    def last_checkpoint(self) -> Path:
        return last_checkpoint(self.folder)

    def _command(self, tool: str, positional: Sequence[Any], words: Sequence[Any]) -> list[str]:
        data_root = ['--data-root', self.data_root] if self.data_root is not None else []
        options = ['--cfg-options', *self.options] if self.options else []
        return tool_command(tool, positional, self.processes, [*words, *data_root, *options])


def last_checkpoint(folder: Path) -> Path:
    """Return the last checkpoint in a work directory."""
    return Path((folder / 'last_checkpoint').read_text().strip())


def effective_config(config: Path, options: Sequence[str] = ()) -> Config:
    """Load a config with ``key=value`` overrides, as tools/train.py does."""
    return load_config(config, parse_options(options))


def parse_options(options: Sequence[str]) -> dict[str, Any]:
    """Parse ``key=value`` overrides, as tools/train.py does."""
    parser = OneLineParser()
    add_cfg_options(parser)
    words = ['--cfg-options', *options] if options else []
    return dict(parser.parse_args(words).cfg_options)


def tool_command(tool: str, positional: Sequence[Any], processes: int, words: Sequence[Any]) -> list[str]:
    """Return the command for tools/TOOL.py, or for tools/dist_TOOL.sh if there are several processes."""
    if processes > 1:
        command = ['bash', ROOT / 'tools' / f'dist_{tool}.sh', *positional, processes, *words]
    else:
        command = [sys.executable, ROOT / 'tools' / f'{tool}.py', *positional, *words]
    return [str(word) for word in command]


def tool_environment() -> dict[str, str]:
    """Return the environment variables of the tools: this interpreter, one thread by default."""
    return {'OMP_NUM_THREADS': '1', **os.environ, 'PYTHON': sys.executable}


def call(command: Sequence[str], title: str) -> None:
    """Run a command that prints to the terminal; raise a UserError if it fails."""
    code = subprocess.run(command, env=tool_environment(), check=False).returncode
    if code:
        raise UserError(f'{title} failed with exit code {code}; see the output above')


def run_all(runs: Sequence[Run], max_parallel: int, on_finish: Callable[[Run], None] | None = None) -> None:
    """Train and test all runs, `max_parallel` at a time; log to files and print the progress.

    `on_finish` is called for each run as soon as it is complete, or at once if it already was.
    """
    finished = on_finish or (lambda _: None)
    waiting = []
    for run in runs:
        if run.is_done():
            print(f'{run.name}: already done', flush=True)
            finished(run)
        else:
            waiting.append(run)
    active: dict[Run, _Step] = {}
    next_report = time.monotonic() + PROGRESS_SECONDS
    try:
        while waiting or active:
            while waiting and len(active) < max_parallel:
                run = waiting.pop(0)
                run.begin()
                active[run] = _Step(run, 'train')
            time.sleep(0.2)
            for run, step in list(active.items()):
                next_step = step.poll()
                if next_step is None:
                    run.finish()
                    del active[run]
                    finished(run)
                else:
                    active[run] = next_step
            if time.monotonic() > next_report:
                for step in active.values():
                    if line := step.progress():
                        print(line, flush=True)
                next_report = time.monotonic() + PROGRESS_SECONDS
    finally:
        for step in active.values():
            step.process.terminate()


def format_minutes(seconds: float) -> str:
    """Format a duration as minutes:seconds."""
    return f'{int(seconds) // 60}:{int(seconds) % 60:02d}'


class _Step:
    """The training or test process of a run, with its log file."""

    def __init__(self, run: Run, tool: str) -> None:
        self.run, self.tool = run, tool
        self.log = run.folder / f'{tool}.log'
        train_cfg = effective_config(run.config, run.options).train_cfg
        self.max_iters, self.max_epochs = train_cfg.get('max_iters'), train_cfg.get('max_epochs')
        command = run.train_command() if tool == 'train' else run.test_command()
        with self.log.open('wb') as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=tool_environment())
        print(f'{run.name}: {tool}ing, log in {self.log}', flush=True)

    def poll(self) -> '_Step | None':
        """Return this step while it runs, afterwards the next step, or None. Raise a UserError on failure."""
        code = self.process.poll()
        if code is None:
            return self
        if code:
            print('\n'.join(self.log.read_text(errors='replace').splitlines()[-20:]), file=sys.stderr)
            raise UserError(f'{self.run.name}: {self.tool}ing failed with exit code {code}, see {self.log}')
        return _Step(self.run, 'test') if self.tool == 'train' and self.run.test else None

    def progress(self) -> str | None:
        """Return a line with step, loss and remaining time, or None before the first log and in tests."""
        records = training_records(read_scalars(self.run.folder)) if self.tool == 'train' else []
        if not records:
            return None
        step, loss = records[-1]['step'], records[-1]['loss']
        if not self.max_iters:
            epoch = records[-1].get('epoch', '?')
            return f'  {self.run.name:<18} epoch {epoch}/{self.max_epochs}  step {step}  loss {loss:.3f}'
        left = format_minutes((self.max_iters - step) * records[-1]['time'])
        return f'  {self.run.name:<18} {step:>5}/{self.max_iters}  loss {loss:.3f}  eta {left}'
