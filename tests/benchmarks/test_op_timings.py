"""The benchmark of attention modules: which shapes, which peers, and what it writes."""

import csv
import io
import sys

import pytest
import torch

from benchmarks import ops, speed
from inline.errors import UserError, exit_on_user_error
from inline.measure import CPU

SHAPE = ops.Shape('PVT', (36, 52), 0, 8, 2, 1, (9, 13))


def test_shapes_are_those_of_the_families() -> None:
    found = list(ops.shapes(((224, 224), (800, 1280))))
    assert {shape.family for shape in found} == {'DeiT', 'PVT', 'Swin', 'CSwin'}
    assert ops.Shape('DeiT', (800, 1280), 0, 192, 6, 3, (50, 80), 1) in found
    assert ops.Shape('PVT', (224, 224), 3, 512, 16, 8, (7, 7)) in found
    # Softmax has the last stage of Swin-T and the last two of CSwin-T.
    assert max(shape.stage for shape in found if shape.family == 'Swin') == 2
    assert max(shape.stage for shape in found if shape.family == 'CSwin') == 1


def test_softmax_has_the_heads_of_its_own_models() -> None:
    found = {(shape.family, shape.stage): shape for shape in ops.shapes(((224, 224),))}
    assert found['DeiT', 0].heads('SDPA') == 3
    assert [found['PVT', stage].heads('Naive softmax') for stage in range(4)] == [1, 2, 5, 8]
    assert [found['PVT', stage].heads('InLine') for stage in range(4)] == [2, 4, 10, 16]
    assert found['Swin', 1].heads('SDPA') == found['Swin', 1].heads('InLine') == 6
    x = torch.zeros(1, 197, 192)
    peers = ops.build_peers(found['DeiT', 0], ('InLine', 'SDPA', 'Naive softmax', 'Linear'), x)
    assert [peer.num_heads for peer in peers.values()] == [6, 3, 3, 6]


def test_naive_softmax_is_left_out_where_it_would_take_too_much_memory_and_that_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    timed = list(
        ops.time_shape(
            SHAPE,
            ('InLine', 'SDPA', 'Naive softmax'),
            device=CPU,
            dtype='float32',
            batch=1,
            repetitions=5,
            max_scores=100,
        )
    )
    assert [name for _, name, *_ in timed] == ['InLine', 'SDPA'] * 2
    assert all(len(timing.seconds) == 3 for _, _, timing, *_ in timed)
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2
    assert told[0] == 'PVT, stage 0, 36x52: more weights than --max-scores, Naive softmax is left out'
    assert told[1].endswith('3 repetitions because of SDPA')


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
        assert row['repetitions'] == '1'


@pytest.mark.parametrize('text', ['abc', '10', '64x64x64', '64x8'])
def test_a_size_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=text):
        ops.parse_size(text)


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        ('ops --threads 0', '--threads 0: must be at least 1'),
        ('ops --repetitions 0', '--repetitions 0: must be at least 1'),
        ('ops --batch 0', '--batch 0: must be at least 1'),
        ('ops --families Foo', "argument --families: invalid choice: 'Foo'"),
        ('speed --threads 0', '--threads 0: must be at least 1'),
        ('speed --repetitions -1', '--repetitions -1: must be at least 1'),
    ],
)
def test_a_mistake_is_answered_in_one_line(
    words: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command, *rest = words.split()
    monkeypatch.setattr(sys, 'argv', [command, *rest])
    with pytest.raises(SystemExit) as left, exit_on_user_error():
        {'ops': ops.main, 'speed': speed.main}[command]()
    assert left.value.code == 2
    told = capsys.readouterr()
    assert told.err.startswith(f'error: {message}')
    assert told.err.count('\n') == 1
    assert not told.out
