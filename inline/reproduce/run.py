"""Measure a row of a table through the tools that a user would call."""

import hashlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from inline.engine import environment
from inline.engine.config import check_checkpoint
from inline.engine.logs import read_test_metrics, scaled
from inline.engine.runs import ROOT, Run, call, file_digest, settings_of, tool_command
from inline.errors import UserError
from inline.reproduce.measured import append_measured, find_measured
from inline.reproduce.tables import Row

SHORT = 12


@dataclass(frozen=True)
class Request:
    """How rows are to be measured.

    Args:
        train: Whether to train before the test.
        weights: A test's checkpoint; with `train`, what the backbone starts from.
        data_root: The folder that holds the data sets.
        processes: How many share the work.
        flags: Further flags of tools/train.py.
        options: ``key=value`` settings that override the config's.
        again: Whether to measure anew what has been measured.
        work_dir: Where runs keep their files.
        results: The folder of the measured figures.
    """

    train: bool
    weights: Path | None
    data_root: str | None
    processes: int
    flags: tuple[str, ...]
    options: tuple[str, ...]
    again: bool
    work_dir: Path
    results: Path


def measure(row: Row, request: Request) -> dict[str, str]:
    """The figures of a row, measured now unless they are there already."""
    if request.weights is not None:
        check_checkpoint(str(request.weights), '--weights')
    measurement = _train_and_test if request.train else _test
    return measurement(row, request)


def _train_and_test(row: Row, request: Request) -> dict[str, str]:
    if request.weights is None and row.starts_from is not None:
        check_checkpoint(row.starts_from, 'starting weights (name others with --weights)')
    run = Run(
        row.config,
        request.work_dir / row.table.name / row.name,
        pretrained=request.weights,
        processes=request.processes,
        data_root=request.data_root,
        options=request.options,
        flags=request.flags,
    )
    digest = run.identity()
    known = find_measured(row, request.results, digest[:SHORT])
    if known is not None and not request.again:
        return _tell_known(row, known)
    if request.again and run.is_done():
        shutil.rmtree(run.folder)
    run.begin()
    call(run.train_command(), f'training {row.name}')
    call(run.test_command(), f'testing {row.name}')
    run.mark_done()
    started = request.weights or row.starts_from
    return _record(row, request, run.folder / 'test', digest, 'trained', Path(started) if started else None)


def _test(row: Row, request: Request) -> dict[str, str]:
    if request.weights is None:
        hint = ', or train it first with --train'
        if row.released:
            path = f'checkpoints/{row.released}.pth'
            hint = f'; `python tools/convert_checkpoint.py {row.released} {path}` fetches them'
        raise UserError(f'testing {row.name} needs its trained weights: give them with --weights{hint}')
    parts = [settings_of(row.config), *request.options, file_digest(request.weights)]
    digest = hashlib.sha256('\n'.join(parts).encode()).hexdigest()
    known = find_measured(row, request.results, digest[:SHORT])
    if known is not None and not request.again:
        return _tell_known(row, known)
    folder = request.work_dir / row.table.name / f'{row.name}_test'
    words = ['--work-dir', folder]
    if request.data_root is not None:
        words += ['--data-root', request.data_root]
    if request.options:
        words += ['--cfg-options', *request.options]
    call(tool_command('test', [row.config, request.weights], request.processes, words), f'testing {row.name}')
    return _record(row, request, folder, digest, 'tested', request.weights)


def _record(
    row: Row, request: Request, folder: Path, digest: str, how: str, weights: Path | None
) -> dict[str, str]:
    tested = read_test_metrics(folder)
    values = {metric.column: scaled(tested, metric.key, metric.scale) for metric in row.metrics}
    missing = [metric.title for metric in row.metrics if values[metric.column] is None]
    if missing:
        raise UserError(f'the test of {row.name} wrote no {missing[0]}: see {folder}')
    found = {column: value for column, value in values.items() if value is not None}
    provenance = {
        'how': how,
        'weights': f'{weights.name} {file_digest(weights)[:SHORT]}' if weights else '',
        'config': str(row.config.relative_to(ROOT)),
        'commit': environment.describe_commit(),
        'hardware': environment.describe_hardware(request.processes),
        'versions': environment.describe_versions(),
        'date': environment.today(),
        'digest': digest[:SHORT],
    }
    append_measured(row, request.results, found, provenance)
    return {**{column: f'{value:.2f}' for column, value in found.items()}, **provenance}


def _tell_known(row: Row, known: Mapping[str, str]) -> dict[str, str]:
    print(f'{row.name}: {known["how"]} already, {known["date"]}; --again measures it anew', flush=True)
    return dict(known)
