"""The benchmark of attention modules: which shapes, and that wrong ones are refused."""

import csv
import io
import sys

import pytest
import torch

from benchmarks import ops
from inline.errors import UserError

SHAPE = ops.Shape('PVT', (36, 52), 0, 8, 2, (9, 13))


def peers(*names: str) -> dict[str, torch.nn.Module]:
    return ops.build_peers(SHAPE, names, max_scores=10**9)


def tokens(prefix: int = 0) -> torch.Tensor:
    return torch.randn(1, prefix + 9 * 13, 8, generator=torch.Generator().manual_seed(0))


def test_shapes_are_those_of_the_families() -> None:
    found = list(ops.shapes(((224, 224), (800, 1280))))
    assert {shape.family for shape in found} == {'DeiT', 'PVT', 'Swin', 'CSwin'}
    assert ops.Shape('DeiT', (800, 1280), 0, 192, 6, (50, 80), 1) in found
    assert ops.Shape('PVT', (224, 224), 3, 512, 16, (7, 7)) in found
    # Softmax has the last stage of Swin-T and the last two of CSwin-T.
    assert max(shape.stage for shape in found if shape.family == 'Swin') == 2
    assert max(shape.stage for shape in found if shape.family == 'CSwin') == 1


def test_all_peers_agree_with_what_they_are_called() -> None:
    everyone = peers(*ops.PEERS)
    assert set(everyone) == set(ops.PEERS)
    ops.check(everyone, tokens(), (9, 13), 1e-4)


@pytest.mark.parametrize('pair', [('InLine', 'Plain'), ('SDPA', 'Naive softmax')])
def test_twins_that_disagree_are_refused(pair: tuple[str, str]) -> None:
    both = peers(*pair)
    with torch.no_grad():
        both[pair[1]].proj.bias += 1
    with pytest.raises(UserError, match=f'{pair[0]} and {pair[1]} disagree'):
        ops.check(both, tokens(), (9, 13), 1e-4)


@pytest.mark.parametrize('name', ['InLine', 'Linear', 'Nystrom'])
def test_an_attention_that_is_not_its_weights_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one = peers(name)
    attend = one[name].attend
    monkeypatch.setattr(one[name], 'attend', lambda part: 1.01 * attend(part))
    with pytest.raises(UserError, match=f'{name} and its weights disagree'):
        ops.check(one, tokens(), (9, 13), 1e-4)


def test_an_output_that_is_no_number_is_refused() -> None:
    with pytest.raises(UserError, match='disagree'):
        ops.compare('these', torch.tensor([float('nan')]), torch.ones(1), 1e-4)


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
