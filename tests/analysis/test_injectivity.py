"""Collisions counted by hand, and fast distances against explicit differences."""

from collections.abc import Callable

import pytest
import torch

from inline.analysis.injectivity import (
    close_pairs,
    count_collisions,
    count_pairs,
    layer_collisions,
)
from inline.models.layers import swin_windows
from inline.models.mixers import AttentionMixer, InLineMixer, SoftmaxMixer
from tests.analysis.fixed_weights import make_fixed, random_tokens, rows


def test_two_equal_rows_are_one_collision() -> None:
    mixer, inputs = make_fixed(
        rows([0.7, 0.1, 0.1, 0.1], [0.1, 0.7, 0.1, 0.1], [0.7, 0.1, 0.1, 0.1], [0.4, 0.4, 0.1, 0.1]), (2, 2)
    )
    collisions, pairs = layer_collisions(mixer, [inputs])
    assert collisions.tolist() == [[1]]
    assert pairs.tolist() == [[6]]


@pytest.mark.parametrize(('difference', 'expected'), [(0.99e-3, 1), (1.01e-3, 0)])
def test_rows_collide_below_the_tolerance_in_l2_norm(difference: float, expected: int) -> None:
    step = difference / 2**0.5
    mixer, inputs = make_fixed(rows([0.5, 0.5], [0.5 + step, 0.5 - step]), (1, 2))
    assert count_collisions(mixer, inputs).tolist() == [[expected]]


def test_images_and_heads_are_counted_separately() -> None:
    same, different = [[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]
    weights = torch.tensor([[same, different, same], [different, different, same]], dtype=torch.float64)
    mixer, inputs = make_fixed(weights, (1, 2))
    assert count_collisions(mixer, inputs).tolist() == [[1, 0, 1], [0, 0, 1]]


def test_pairs_are_within_a_window_and_exclude_padding() -> None:
    """A 3×3 map has 2×2 windows with 4, 2, 2 and 1 tokens; the rest is padding."""
    windows = swin_windows((3, 3), 2, shifted=False)
    weights = torch.full((4, 1, 4, 4), 0.25, dtype=torch.float64)
    mixer, inputs = make_fixed(weights, (3, 3), windows)
    assert count_pairs(inputs).tolist() == [6 + 1 + 1]
    assert count_collisions(mixer, inputs).tolist() == [[8]]


@pytest.mark.parametrize('max_weights', [1, 500, 3000])
@pytest.mark.parametrize(
    'make',
    [
        lambda: InLineMixer(8, 2),
        lambda: SoftmaxMixer(8, 2, window_size=3, shift=True),
        lambda: SoftmaxMixer(8, 2, split_size=2),
    ],
)
def test_count_does_not_depend_on_the_chunk_size(
    make: Callable[[], AttentionMixer], max_weights: int
) -> None:
    """With this tolerance, some but not all pairs of the untrained layer collide."""
    torch.manual_seed(0)
    mixer = make().double()
    inputs_list = list(mixer.partition_inputs(random_tokens((5, 7)), (5, 7)))
    expected, pairs = layer_collisions(mixer, inputs_list, tolerance=0.02)
    assert 0 < expected.sum() < pairs.sum()
    chunked, _ = layer_collisions(mixer, inputs_list, tolerance=0.02, max_weights=max_weights)
    assert torch.equal(chunked, expected)


@pytest.mark.parametrize('size', [1.0, 1e4, 1e8])
def test_small_differences_of_large_weights_are_exact(size: float) -> None:
    """Normalisation by division allows weights of any size, for which a matrix product is too inexact."""
    generator = torch.Generator().manual_seed(0)
    base = size * torch.randn(1, 6, 50, dtype=torch.float64, generator=generator)
    steps = torch.randn(1, 6, 50, dtype=torch.float64, generator=generator)
    lengths = torch.tensor([0.5e-3, 0.9e-3, 0.99e-3, 1.01e-3, 1.1e-3, 2e-3], dtype=torch.float64)
    other = base + steps / steps.norm(dim=-1, keepdim=True) * lengths[:, None]
    close = close_pairs(base, other, 1e-3)
    assert close[0].diagonal().tolist() == [True, True, True, False, False, False]
    assert close.sum() == 3


def test_fast_distances_equal_explicit_differences() -> None:
    a, b = torch.rand(2, 2, 30, 11, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).unbind()
    for tolerance in (0.5, 1.0, 1.5):
        expected = (a[:, :, None] - b[:, None]).norm(dim=-1) < tolerance
        assert torch.equal(close_pairs(a, b, tolerance), expected)
