"""Collisions counted by hand, and the fast count against differences."""

from collections.abc import Callable

import pytest
import torch

from inline.analysis.illustration import KINDS, illustrate, largest_difference
from inline.analysis.injectivity import close_pairs, count_pairs, layer_collisions, part_collisions
from inline.models.layers import square_windows
from inline.models.mixers import AttentionMixer, InLineMixer, SoftmaxMixer
from tests.analysis.stand_ins import rows, tokens, written


def test_two_equal_rows_are_one_collision() -> None:
    mixer, part = written(
        rows([0.7, 0.1, 0.1, 0.1], [0.1, 0.7, 0.1, 0.1], [0.7, 0.1, 0.1, 0.1], [0.4, 0.4, 0.1, 0.1]), (2, 2)
    )
    collisions, pairs = layer_collisions(mixer, [part])
    assert collisions.tolist() == [[1]]
    assert pairs.tolist() == [[6]]


@pytest.mark.parametrize(('difference', 'expected'), [(0.99e-3, 1), (1.01e-3, 0)])
def test_rows_collide_below_the_tolerance_in_l2_norm(difference: float, expected: int) -> None:
    step = difference / 2**0.5
    mixer, part = written(rows([0.5, 0.5], [0.5 + step, 0.5 - step]), (1, 2))
    assert part_collisions(mixer, part).tolist() == [[expected]]


def test_images_and_heads_are_counted_apart() -> None:
    same, different = [[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]
    weights = torch.tensor([[same, different, same], [different, different, same]], dtype=torch.float64)
    mixer, part = written(weights, (1, 2))
    assert part_collisions(mixer, part).tolist() == [[1, 0, 1], [0, 0, 1]]


def test_only_queries_of_one_window_are_compared_and_padding_is_no_query() -> None:
    """A row of three places in windows of 2×2: one window of two tokens, one of one, the rest padding."""
    regions = square_windows((3, 3), 2, shifted=False)
    weights = torch.full((4, 1, 4, 4), 0.25, dtype=torch.float64)
    mixer, part = written(weights, (3, 3), regions)
    # Windows of 4, 2, 2 and 1 tokens.
    assert count_pairs(part).tolist() == [6 + 1 + 1]
    assert part_collisions(mixer, part).tolist() == [[8]]


@pytest.mark.parametrize('max_weights', [1, 500, 3000])
@pytest.mark.parametrize(
    'make',
    [
        lambda: InLineMixer(8, 2),
        lambda: SoftmaxMixer(8, 2, window_size=3, shift=True),
        lambda: SoftmaxMixer(8, 2, split_size=2),
    ],
)
def test_blocks_of_any_size_count_the_same(make: Callable[[], AttentionMixer], max_weights: int) -> None:
    """Untrained rows are near each other: the tolerance is set so that some pairs collide, some do not."""
    torch.manual_seed(0)
    mixer = make().double()
    parts = list(mixer.parts(tokens((5, 7)), (5, 7)))
    whole, pairs = layer_collisions(mixer, parts, tolerance=0.02)
    assert 0 < whole.sum() < pairs.sum()
    blocks, _ = layer_collisions(mixer, parts, tolerance=0.02, max_weights=max_weights)
    assert torch.equal(blocks, whole)


@pytest.mark.parametrize('size', [1.0, 1e4, 1e8])
def test_large_weights_do_not_blur_small_differences(size: float) -> None:
    """Attention that divides can have weights of any size; a matrix product alone would be off by more."""
    generator = torch.Generator().manual_seed(0)
    base = size * torch.randn(1, 6, 50, dtype=torch.float64, generator=generator)
    steps = torch.randn(1, 6, 50, dtype=torch.float64, generator=generator)
    lengths = torch.tensor([0.5e-3, 0.9e-3, 0.99e-3, 1.01e-3, 1.1e-3, 2e-3], dtype=torch.float64)
    other = base + steps / steps.norm(dim=-1, keepdim=True) * lengths[:, None]
    close = close_pairs(base, other, 1e-3)
    assert close[0].diagonal().tolist() == [True, True, True, False, False, False]
    assert close.sum() == 3


def test_fast_distances_agree_with_differences() -> None:
    a, b = torch.rand(2, 2, 30, 11, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).unbind()
    for tolerance in (0.5, 1.0, 1.5):
        expected = (a[:, :, None] - b[:, None]).norm(dim=-1) < tolerance
        assert torch.equal(close_pairs(a, b, tolerance), expected)


def test_only_linear_attention_takes_four_queries_of_one_direction_for_one() -> None:
    shown = illustrate()
    collisions = {}
    for kind, weights in shown.weights.items():
        torch.testing.assert_close(weights.sum(dim=-1), torch.ones(4, dtype=torch.float64), rtol=0, atol=1e-5)
        collisions[kind] = int(close_pairs(weights[None], weights[None], 1e-3).triu(diagonal=1).sum())
        assert (largest_difference(weights) < 1e-3) == (kind == 'linear')
    assert set(collisions) == set(KINDS)
    assert collisions == {'linear': 6, 'softmax': 0, 'InLine': 0}
