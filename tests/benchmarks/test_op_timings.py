"""The benchmark of attention modules: shapes, peers and output."""

import csv
import io
import sys

import pytest
import torch

from benchmarks import ops, speed
from inline.benchmark import CPU
from inline.utils.errors import exit_on_user_error

SHAPE = ops.Shape('PVT', (36, 52), 0, 8, 2, 1, (9, 13))


def test_shapes_match_the_families() -> None:
    found = list(ops.shapes(((224, 224), (800, 1280))))
    assert {shape.family for shape in found} == {'DeiT', 'PVT', 'Swin', 'CSwin'}
    assert ops.Shape('DeiT', (800, 1280), 0, 192, 6, 3, (50, 80), 1) in found
    assert ops.Shape('PVT', (224, 224), 3, 512, 16, 8, (7, 7)) in found
    # The last stage of Swin-T and the last two of CSwin-T have softmax.
    assert max(shape.stage for shape in found if shape.family == 'Swin') == 2
    assert max(shape.stage for shape in found if shape.family == 'CSwin') == 1


def test_softmax_has_the_heads_of_the_published_models() -> None:
    found = {(shape.family, shape.stage): shape for shape in ops.shapes(((224, 224),))}
    assert found['DeiT', 0].heads('SDPA') == 3
    assert [found['PVT', stage].heads('Naive softmax') for stage in range(4)] == [1, 2, 5, 8]
    assert [found['PVT', stage].heads('InLine') for stage in range(4)] == [2, 4, 10, 16]
    assert found['Swin', 1].heads('SDPA') == found['Swin', 1].heads('InLine') == 6
    x = torch.zeros(1, 197, 192)
    peers = ops.build_peers(found['DeiT', 0], ('InLine', 'SDPA', 'Naive softmax', 'Linear'), x)
    assert [peer.num_heads for peer in peers.values()] == [6, 3, 3, 6]


def test_naive_softmax_is_skipped_with_a_message_if_it_needs_too_much_memory(
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
    captured = capsys.readouterr().err.splitlines()
    assert len(captured) == 2
    assert captured[0] == 'PVT, stage 0, 36x52: more weights than --max-scores, Naive softmax is skipped'
    assert captured[1].endswith('3 repetitions because of SDPA')


def test_command_writes_a_row_per_peer_and_pass(
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
def test_invalid_arguments_give_a_one_line_error(
    words: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command, *rest = words.split()
    monkeypatch.setattr(sys, 'argv', [command, *rest])
    with pytest.raises(SystemExit) as left, exit_on_user_error():
        {'ops': ops.main, 'speed': speed.main}[command]()
    assert left.value.code == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f'error: {message}')
    assert captured.err.count('\n') == 1
    assert not captured.out
