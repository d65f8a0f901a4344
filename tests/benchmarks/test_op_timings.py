"""The benchmark of attention modules: which shapes, which peers, and what it writes."""

import csv
import io
import sys

import pytest

from benchmarks import ops
from inline.errors import UserError

SHAPE = ops.Shape('PVT', (36, 52), 0, 8, 2, (9, 13))


def test_shapes_are_those_of_the_families() -> None:
    found = list(ops.shapes(((224, 224), (800, 1280))))
    assert {shape.family for shape in found} == {'DeiT', 'PVT', 'Swin', 'CSwin'}
    assert ops.Shape('DeiT', (800, 1280), 0, 192, 6, (50, 80), 1) in found
    assert ops.Shape('PVT', (224, 224), 3, 512, 16, (7, 7)) in found
    # Softmax has the last stage of Swin-T and the last two of CSwin-T.
    assert max(shape.stage for shape in found if shape.family == 'Swin') == 2
    assert max(shape.stage for shape in found if shape.family == 'CSwin') == 1


def test_softmax_is_left_out_where_it_would_take_too_long() -> None:
    assert set(ops.build_peers(SHAPE, ('InLine', 'SDPA', 'Naive softmax'), max_scores=100)) == {'InLine'}


def test_the_command_writes_a_row_for_each_peer_and_pass(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = '--sizes 36x52 --families CSwin --peers Plain Linear --repetitions 1 --threads 1'
    monkeypatch.setattr(sys, 'argv', ['ops', *words.split()])
    ops.main()
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(rows) == 2 * 2 * 3
    assert {row['peer'] for row in rows} == {'InLine', 'Plain', 'Linear'}
    for row in rows:
        assert float(row['median ms']) > 0
        assert float(row['peak MB']) > 0


@pytest.mark.parametrize('text', ['abc', '10', '64x64x64', '64x8'])
def test_a_size_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=text):
        ops.parse_size(text)
