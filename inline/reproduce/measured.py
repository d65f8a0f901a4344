"""What was measured, a line a run, with all that it was measured with."""

import csv
from collections.abc import Mapping
from pathlib import Path

from inline.errors import UserError
from inline.records import write_lines
from inline.reproduce.tables import Row, Table

PROVENANCE = ('how', 'weights', 'config', 'commit', 'hardware', 'versions', 'date', 'digest')


def read_measured(table: Table, folder: Path) -> list[dict[str, str]]:
    """All runs of a table, the oldest first."""
    path = folder / f'{table.name}.csv'
    if not path.is_file():
        return []
    with path.open(newline='') as file:
        reader = csv.DictReader(file)
        lines = list(reader)
    if list(reader.fieldnames or ()) != columns(table):
        raise UserError(f'{str(path)!r} has other columns than expected: {", ".join(columns(table))}')
    return lines


def find_measured(row: Row, folder: Path, digest: str | None = None) -> dict[str, str] | None:
    """The newest run of a row, of the settings with this digest if one is given."""
    found = [
        line
        for line in read_measured(row.table, folder)
        if line['row'] == row.name and digest in (None, line['digest'])
    ]
    return found[-1] if found else None


def append_measured(
    row: Row, folder: Path, values: Mapping[str, float], provenance: Mapping[str, str]
) -> None:
    """Add a run; the file is replaced as a whole, so that a crash cannot leave half of it."""
    lines = read_measured(row.table, folder)
    figures = {column: f'{value:.2f}' for column, value in values.items()}
    lines.append({'row': row.name, **figures, **provenance})
    folder.mkdir(parents=True, exist_ok=True)
    write_lines(folder / f'{row.table.name}.csv', columns(row.table), lines)


def columns(table: Table) -> list[str]:
    return ['row', *(metric.column for metric in table.metrics), *PROVENANCE]
