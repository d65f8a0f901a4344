"""Measurement of table rows with the tools, and the CSV files of measured results."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from inline.checkpoints import check_checkpoint
from inline.engine.logs import curve, read_scalars, read_test_metrics, scaled, training_minutes
from inline.reproduce.provenance import PROVENANCE, SHORT, provenance_columns
from inline.reproduce.runs import Run, call
from inline.reproduce.tables import Metric, Row, Table
from inline.utils.environment import describe_environment
from inline.utils.errors import UserError
from inline.utils.resources import format_tool
from inline.utils.tables import write_csv


@dataclass(frozen=True)
class Request:
    """Settings of a measurement.

    Args:
        train: Whether to train before the test.
        weights: The checkpoint to test; with `train`, pretrained weights of the backbone.
        data_root: Folder that contains the datasets.
        processes: Number of processes.
        flags: Further flags of tools/train.py.
        options: ``key=value`` overrides of the config.
        again: Whether to repeat measurements that are already recorded.
        work_dir: Folder for the work directories.
        results: Folder for the CSV files of measured results.
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
    """Measure a row and record the metrics, unless this measurement is already recorded; return its line."""
    _check_weights(row, request)
    tested = None if request.train else request.weights
    run = Run(
        row.config,
        request.work_dir / row.table.name / (row.name if request.train else f'{row.name}_test'),
        pretrained=request.weights if request.train else None,
        processes=request.processes,
        data_root=request.data_root,
        options=request.options,
        flags=request.flags,
    )
    inputs = run.inputs(tested)
    known = find_measured(row, request.results, inputs.digest)
    if known is not None and not request.again:
        print(f'{row.name}: already {known["how"]} on {known["date"]}; --again repeats it', flush=True)
        return known
    # The provenance is recorded before the run: files and commit may change while it runs.
    if request.train:
        if request.again and run.is_done():
            run.delete()
        run.begin(inputs)
        provenance = run.provenance()
        call(run.train_command(), f'training {row.name}')
    else:
        provenance = provenance_columns(row.config, inputs, [describe_environment(request.processes)])
    call(run.test_command(tested), f'testing {row.name}')
    if request.train:
        run.finish()
    metrics = _read_metrics(row, run.folder / 'test')
    line = {'row': row.name, **metrics, 'how': 'trained' if request.train else 'tested', **provenance}
    append_measured(row.table, request.results, line)
    return line


def _check_weights(row: Row, request: Request) -> None:
    """Raise a UserError if the weights to test or to start from are missing."""
    if request.weights is not None:
        check_checkpoint(str(request.weights), '--weights')
    elif not request.train:
        hint = ', or train it with --train'
        if row.released:
            path = f'checkpoints/{row.released}.pth'
            convert = format_tool('convert_checkpoint', 'convert')
            hint = f'; `{convert} {row.released} {path}` downloads them'
        raise UserError(f'testing {row.name} needs trained weights: pass them with --weights{hint}')
    elif row.starts_from is not None:
        check_checkpoint(row.starts_from, 'starting weights (name others with --weights)')


def _read_metrics(row: Row, test_dir: Path) -> dict[str, str]:
    tested = read_test_metrics(test_dir)
    metrics = {}
    for metric in row.metrics:
        value = scaled(tested, metric.key, metric.scale)
        if value is None:
            raise UserError(f'the test of {row.name} wrote no {metric.title}: see {test_dir}')
        metrics[metric.column] = f'{value:.2f}'
    return metrics


def last_validation(run: Run, metric: Metric) -> dict[str, str]:
    """Return metric, value of the last validation, minutes of training and provenance of a finished run."""
    records = read_scalars(run.folder)
    values = curve(records, metric.key, metric.scale).values
    if not values:
        raise UserError(f'{run.name} logged no {metric.title}: see {run.folder}')
    return {
        'metric': metric.title,
        'value': f'{values[-1]:.2f}',
        'minutes': f'{training_minutes(records) or 0:.2f}',
        **run.provenance(),
    }


def columns(table: Table) -> list[str]:
    return ['row', *(metric.column for metric in table.metrics), 'how', *PROVENANCE]


def find_measured(row: Row, folder: Path, digest: str | None = None) -> dict[str, str] | None:
    """Return the newest measurement of a row, or None. If `digest` is given, its inputs must have it."""
    short = digest[:SHORT] if digest else None
    found = [
        line
        for line in read_measured(row.table, folder)
        if line['row'] == row.name and short in (None, line['digest'])
    ]
    return found[-1] if found else None


def append_measured(table: Table, folder: Path, line: Mapping[str, str]) -> None:
    """Add a measurement to the CSV file of a table; the file is replaced atomically."""
    write_csv(folder / f'{table.name}.csv', columns(table), [*read_measured(table, folder), line])


def read_measured(table: Table, folder: Path) -> list[dict[str, str]]:
    """Return all measurements of a table, oldest first.

    Columns that an earlier version did not write are empty.
    """
    path, names = folder / f'{table.name}.csv', columns(table)
    if not path.is_file():
        return []
    with path.open(newline='') as file:
        reader = csv.DictReader(file)
        lines = list(reader)
    found = set(reader.fieldnames or ())
    if 'digest' not in found or not found <= set(names):
        raise UserError(f'{str(path)!r} has unexpected columns: expected {", ".join(names)}')
    return [{name: line.get(name) or '' for name in names} for line in lines]
