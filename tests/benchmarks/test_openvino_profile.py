"""benchmarks/openvino_profile.py: times by kind of operator."""

from pathlib import Path

import pytest

from benchmarks import openvino_profile
from benchmarks.openvino_profile import COLUMNS, make_rows
from inline.apis.export.openvino_ir import has_bf16
from inline.utils.tables import read_csv

BF16 = {('FullyConnected', False): 6.0, ('Softmax', False): 0.1, ('Eltwise', False): 3.9}
INT8 = {('FullyConnected', True): 2.0, ('FullyConnected', False): 1.0, ('Eltwise', False): 4.0}
INT8 |= {('Convert', False): 0.2}


def test_rows_are_sorted_and_small_operators_summed() -> None:
    assert make_rows(BF16, INT8, smallest=0.05) == [
        ('FullyConnected', '6.00', '3.00', '2.00'),
        ('Eltwise', '3.90', '4.00', '0.00'),
        ('other', '0.10', '0.20', '0.00'),
        ('all', '10.00', '7.20', '2.00'),
    ]


@pytest.mark.exhaustive
def test_a_profile_replaces_the_earlier_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_bf16():
        pytest.skip('the CPU does not compute in bfloat16')
    out = tmp_path / 'profile.csv'
    words = ['DeiT-T', '--size', '64', '--repetitions', '2', '--output', str(out)]
    monkeypatch.setattr('sys.argv', ['openvino_profile', *words])
    for _ in range(2):
        openvino_profile.main()
    rows = read_csv(out)
    assert tuple(rows[0]) == COLUMNS
    operators = [row['operator'] for row in rows]
    assert len(operators) == len({*operators})
    assert operators[-1] == 'all'
    products = next(row for row in rows if row['operator'] == 'FullyConnected')
    assert float(products['int8, quantised (ms)']) > 0
