"""Rows of text in columns, and what stands in them."""

from collections.abc import Container, Sequence


def align(rows: Sequence[Sequence[str]], right: Container[int] = ()) -> list[str]:
    """A line for each row; the columns in `right` are set to the right, as numbers are."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        '  '.join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def with_spread(mean: float, spread: float | None) -> str:
    """A mean and, where it is known, its standard deviation: '52.0 ± 2.8'."""
    return f'{mean:,.1f}' if spread is None else f'{mean:,.1f} ± {spread:,.1f}'
