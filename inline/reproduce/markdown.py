"""A table of the paper as Markdown: what is expected beside what was measured here."""

from pathlib import Path

from inline.reproduce.measured import find_measured
from inline.reproduce.tables import Metric, Row, Table


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


def _config(row: Row) -> str:
    return f'configs/{row.config.parent.name}/{row.config.name}'


def _figure(row: Row, metric: Metric) -> str:
    return f'{row.expected[metric.column]:g}' if metric.column in row.expected else ''
