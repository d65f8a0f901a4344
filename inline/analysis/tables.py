"""Numbers as CSV, and as a small table on the screen."""

import csv
from collections.abc import Sequence
from pathlib import Path

from inline.columns import align

Cell = str | int | float | None


def write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    with path.open('w', newline='') as file:
        writer = csv.writer(file, lineterminator='\n')
        writer.writerow(header)
        writer.writerows(rows)


def format_table(header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Columns of text to the left, of numbers to the right."""
    cells = [[_format(cell) for cell in row] for row in rows]
    columns = enumerate(zip(*rows, strict=True))
    numbers = [index for index, column in columns if not all(isinstance(cell, str) for cell in column)]
    return '\n'.join(align([header, *cells], right=numbers))


def _format(cell: Cell) -> str:
    if cell is None:
        return '–'
    if isinstance(cell, float):
        return f'{cell:.4g}' if 0 < abs(cell) < 0.01 else f'{cell:,.2f}'
    return f'{cell:,}' if isinstance(cell, int) else cell
