"""Text tables for the terminal, CSV files, and the number format that both use."""

import csv
import statistics
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path

from inline.utils.atomic import atomic_file

Cell = str | int | float | None


def align(rows: Sequence[Sequence[str]], right: Container[int] = ()) -> list[str]:
    """Pad the cells of each column to the same width and return one line per row.

    Args:
        rows: Rows with the same number of cells.
        right: Indices of the columns to align to the right, as usual for numbers.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        '  '.join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def format_table(header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Return a table with a header; columns that hold a number are aligned to the right."""
    numeric = [
        index
        for index, column in enumerate(zip(*rows, strict=True))
        if not all(isinstance(cell, str) for cell in column)
    ]
    return '\n'.join(align([header, *([format_cell(cell) for cell in row] for row in rows)], right=numeric))


def format_cell(cell: Cell) -> str:
    """Format a number with a thousands separator and two decimals, or four digits if it is tiny."""
    if cell is None:
        return '–'
    if isinstance(cell, float):
        return f'{cell:.4g}' if 0 < abs(cell) < 0.01 else f'{cell:,.2f}'
    return f'{cell:,}' if isinstance(cell, int) else cell


def format_mean_std(mean: float, std: float | None) -> str:
    """Format a mean with its standard deviation, if known: ``'52.0 ± 2.8'``."""
    return f'{mean:,.1f}' if std is None else f'{mean:,.1f} ± {std:,.1f}'


def format_seeds(values: Sequence[float]) -> str:
    """Format mean ± standard deviation over seeds, only the value for one seed, a dash for none."""
    if not values:
        return '–'
    return format_mean_std(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """Return header and rows as a Markdown table."""
    header, *body = rows
    lines = [header, ['---'] * len(header), *body]
    return ''.join(f'| {" | ".join(line)} |\n' for line in lines)


def read_csv(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file by column name."""
    with path.open(newline='') as file:
        return list(csv.DictReader(file))


def write_csv(
    path: Path, columns: Sequence[str], rows: Iterable[Sequence[Cell] | Mapping[str, Cell]]
) -> None:
    """Write a CSV file atomically. Rows are sequences, or mappings whose missing columns stay empty."""
    with atomic_file(path) as temporary, temporary.open('w', newline='') as file:
        writer = csv.DictWriter(file, columns, restval='', lineterminator='\n')
        writer.writeheader()
        writer.writerows(
            row if isinstance(row, Mapping) else dict(zip(columns, row, strict=True)) for row in rows
        )


def replace_rows(
    path: Path, columns: Sequence[str], key: Sequence[str], rows: Sequence[Mapping[str, str]]
) -> None:
    """Add rows to a CSV file, in place of earlier ones with the same values in the columns `key`."""
    replaced = {tuple(row[name] for name in key) for row in rows}
    lines = read_csv(path) if path.is_file() else []
    kept = [line for line in lines if tuple(line[name] for name in key) not in replaced]
    write_csv(path, columns, [*kept, *rows])
