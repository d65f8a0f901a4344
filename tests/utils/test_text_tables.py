"""Text tables and CSV files, compared with expected text."""

from pathlib import Path

import pytest

from inline.utils.tables import align, format_mean_std, format_table, write_csv


def test_cells_are_aligned_in_columns() -> None:
    rows = [['part', 'M', 'note'], ['backbone', '12.5', 'ä'], ['all', '3', '']]
    assert align(rows) == ['part      M     note', 'backbone  12.5  ä', 'all       3']
    assert align(rows, right=[1]) == ['part         M  note', 'backbone  12.5  ä', 'all          3']


def test_rows_of_different_length_raise() -> None:
    with pytest.raises(ValueError, match='zip'):
        align([['a', 'b'], ['c']])


def test_numbers_are_formatted_and_aligned_to_the_right() -> None:
    table = format_table(['name', 'value'], [['a', 1234], ['b', 0.00123456], ['c', None], ['d', 2.5]])
    assert table.splitlines() == [
        'name     value',
        'a        1,234',
        'b     0.001235',
        'c            –',
        'd         2.50',
    ]


def test_standard_deviation_is_optional() -> None:
    assert format_mean_std(1052.04, 2.81) == '1,052.0 ± 2.8'
    assert format_mean_std(52, None) == '52.0'


def test_csv_rows_are_sequences_or_mappings(tmp_path: Path) -> None:
    path = tmp_path / 'new' / 'x.csv'
    write_csv(path, ['a', 'b'], [[1, 'x,y'], {'b': 2}])
    assert path.read_text() == 'a,b\n1,"x,y"\n,2\n'
    with pytest.raises(ValueError, match='c'):
        write_csv(path, ['a', 'b'], [{'c': 3}])
    assert path.read_text() == 'a,b\n1,"x,y"\n,2\n', 'a failed write keeps the old file'
