"""Tables of the paper as Markdown: what is expected beside what was measured; short ones for the README."""

import csv
from collections.abc import Mapping
from pathlib import Path

from inline.reproduce.measured import find_measured
from inline.reproduce.tables import TABLES, Metric, Row, Table

TRANSFER = ('coco', 'ade20k')


def table_rows(table: Table, measured: Path) -> list[list[str]]:
    """Header and rows: of every metric the expected figure and ours, empty where there is none."""
    header = ['row', 'config']
    for metric in table.metrics:
        header += [f'{metric.title}, expected', f'{metric.title}, measured here']
    lines = [[*header, 'source of the expected']]
    for row in table.rows.values():
        ours = find_measured(row, measured) or {}
        cells = [row.name, f'[config](../{_config(row)})']
        for metric in table.metrics:
            cells += [_figure(row, metric), ours.get(metric.column, '')]
        lines.append([*cells, row.source])
    return lines


def model_rows(counted: Path) -> list[list[str]]:
    """Header and rows: the models that were counted, with the accuracy that was reported of them."""
    rows = TABLES['imagenet'].rows
    lines = [['model', 'image size', 'params (M)', 'FLOPs (G)', 'top-1, reported', 'with softmax, reported']]
    with counted.open(newline='') as file:
        for model in csv.DictReader(file):
            reported = _reported(rows[model['model']], rows)
            lines.append([model[key] for key in ('model', *lines[0][1:4])] + list(reported))
    return lines


def transfer_rows() -> list[list[str]]:
    """Header and rows: the detectors and segmentors of which a figure was reported."""
    lines = [['model', 'metric', 'reported', 'with softmax, reported']]
    for table in map(TABLES.__getitem__, TRANSFER):
        for row in table.rows.values():
            ours, softmax = _reported(row, table.rows)
            if row.name.startswith('inline-') and ours:
                lines.append([row.name, table.metrics[0].title, ours, softmax])
    return lines


def _reported(row: Row, rows: Mapping[str, Row]) -> tuple[str, str]:
    """The first metric of a row, and of the same model with softmax attention."""
    metric, softmax = row.table.metrics[0], rows.get(row.name.removeprefix('inline-'))
    return _figure(row, metric), '' if softmax is None else _figure(softmax, metric)


def _config(row: Row) -> str:
    return f'configs/{row.config.parent.name}/{row.config.name}'


def _figure(row: Row, metric: Metric) -> str:
    return f'{row.expected[metric.column]:g}' if metric.column in row.expected else ''
