"""Numbers as CSV, and as a small table on the screen."""

import csv
from collections.abc import Sequence
from pathlib import Path

from inline.errors import UserError

Cell = str | int | float | None


def make_folder(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f'--out {str(path)!r} cannot be written: {error.strerror}') from error
    return path


def write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    with path.open('w', newline='') as file:
        writer = csv.writer(file, lineterminator='\n')
        writer.writerow(header)
        writer.writerows(rows)


def format_table(header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Columns of text to the left, of numbers to the right."""
    cells = [[_format(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    is_text = [all(isinstance(cell, str) for cell in column) for column in zip(*rows, strict=True)]
    lines = [
        '  '.join(
            cell.ljust(width) if text else cell.rjust(width)
            for cell, width, text in zip(line, widths, is_text, strict=True)
        ).rstrip()
        for line in [list(header), *cells]
    ]
    return '\n'.join(lines)


def _format(cell: Cell) -> str:
    if cell is None:
        return '–'
    if isinstance(cell, float):
        return f'{cell:.4g}' if 0 < abs(cell) < 0.01 else f'{cell:,.2f}'
    return f'{cell:,}' if isinstance(cell, int) else cell
