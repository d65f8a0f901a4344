"""The rows of results/measured/speed.csv, and the memory ratio."""

import csv
import io
import sys

import pytest

from benchmarks import speed
from inline.benchmark import CPU
from tests.conftest import ROOT


def measured(
    words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> list[dict[str, str]]:
    monkeypatch.setattr(sys, 'argv', ['speed', *words.split()])
    speed.main()
    return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))


@pytest.mark.slow
def test_training_step_uses_less_memory_than_the_plain_formulation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At 512; at 224 weights and optimizer state dominate, and the two are equal."""
    (row,) = measured('memory --device cpu', monkeypatch, capsys)
    assert tuple(row) == speed.COLUMNS
    assert 0.5 < float(row['ratio']) <= 0.9
    assert (row['spread'], row['repetitions'], row['batch']) == ('0.00', '1', '1')
    assert (row['bound'], row['required']) == ('at most', '0.9')


def test_machine_has_two_rates_without_a_bound(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(speed, 'MATRIX', 64)
    monkeypatch.setattr(speed, 'BLOCK', 2**20)
    rows = measured('machine --device cpu --repetitions 3', monkeypatch, capsys)
    assert [('GFLOP/s' in row['what'], 'GB/s' in row['what']) for row in rows] == [
        (True, False),
        (False, True),
    ]
    for row in rows:
        assert float(row['ratio']) > 0
        assert row['repetitions'] == '3'
        assert row['bound'] == row['required'] == row['batch'] == ''


def test_rates_are_work_per_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, 'MATRIX', 10)
    monkeypatch.setattr(speed, 'BLOCK', 4000)
    # Every clock reading is a microsecond after the previous one.
    bench = speed.Bench(CPU, 2, iter(i * 1e-6 for i in range(100)).__next__)
    product, copy = speed.machine(bench)
    assert product.values == pytest.approx([2.0] * 2)
    assert copy.values == pytest.approx([8.0] * 2)


def test_row_has_median_and_interquartile_range() -> None:
    row = speed.Row('this against that', [1.0, 3.0, 2.0, 5.0, 4.0], 'at least', 1.5)
    assert row.cells() == ['this against that', '3.00', '2.00', 'at least', 1.5, 5, 1]


def test_mean_over_shapes_is_taken_per_round() -> None:
    # The second shape was timed twice as often.
    assert speed._mean_by_round([[1.0, 4.0], [1.0, 9.0, 1.0, 9.0]], 2) == pytest.approx([1.0, 6.0])


def test_results_file_has_the_columns() -> None:
    with (ROOT / 'results' / 'measured' / 'speed.csv').open(newline='') as file:
        assert tuple(next(csv.reader(file))) == speed.COLUMNS
