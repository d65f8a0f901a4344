"""Columns by hand."""

import pytest

from inline.columns import align


def test_cells_stand_in_columns() -> None:
    rows = [['part', 'M', 'note'], ['backbone', '12.5', 'ä'], ['all', '3', '']]
    assert align(rows) == ['part      M     note', 'backbone  12.5  ä', 'all       3']
    assert align(rows, right=[1]) == ['part         M  note', 'backbone  12.5  ä', 'all          3']


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match='zip'):
        align([['a', 'b'], ['c']])
