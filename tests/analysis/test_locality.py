"""Local shares: computed by hand, of uniform weights, and with local terms against explicit weights."""

import pytest
import torch
from torch import Tensor

from inline.analysis.layers import NO_POSITION, map_positions, valid_queries
from inline.analysis.locality import compute_locality, layer_locality, local_kernels
from inline.models.layers import swin_windows
from inline.models.mixers import AttentionMixer, InLineMixer, SoftmaxMixer
from inline.models.mixers.base import AttentionInputs
from tests.analysis.fixed_weights import make_fixed, random_tokens, rows

CHANCE_3X3 = (4 * 4 / 9 + 4 * 6 / 9 + 1) / 9


def test_uniform_weights_have_the_share_of_chance() -> None:
    mixer, inputs = make_fixed(torch.full((2, 3, 9, 9), 1 / 9, dtype=torch.float64), (3, 3))
    found = compute_locality(mixer, inputs)
    assert found.attention.tolist() == pytest.approx([CHANCE_3X3] * 2, abs=1e-12)
    assert found.chance.tolist() == pytest.approx([CHANCE_3X3] * 2, abs=1e-12)
    assert found.with_local_terms is None


def test_share_of_signed_weights_uses_absolute_values() -> None:
    mixer, inputs = make_fixed(rows([0.5, 0.7, -0.2], [0.2, 0.3, 0.5], [-1.0, 1.0, 1.0]), (1, 3))
    found = compute_locality(mixer, inputs)
    assert found.attention.item() == pytest.approx((1.2 / 1.4 + 1 + 2 / 3) / 3)
    assert found.chance.item() == pytest.approx((2 / 3 + 1 + 2 / 3) / 3)


def test_class_token_is_a_key_but_not_a_query() -> None:
    mixer, inputs = make_fixed(
        rows([1.0, 0, 0, 0], [0.5, 0.2, 0.2, 0.1], [0.1, 0.3, 0.3, 0.3], [0, 0.6, 0.2, 0.2]), (1, 3), prefix=1
    )
    found = compute_locality(mixer, inputs)
    assert found.attention.item() == pytest.approx((0.4 + 0.9 + 0.4) / 3)
    assert found.chance.item() == pytest.approx((2 / 4 + 3 / 4 + 2 / 4) / 3)


def test_chance_level_of_windows() -> None:
    """A 3×3 map has 2×2 windows with 4, 2, 2 and 1 tokens, in which all tokens are neighbours."""
    windows = swin_windows((3, 3), 2, shifted=False)
    weights = torch.full((4, 1, 4, 4), 0.25, dtype=torch.float64)
    mixer, inputs = make_fixed(weights, (3, 3), windows)
    assert inputs.key_mask is not None
    mixer.fixed = weights * inputs.key_mask[:, None, None, :]
    found = compute_locality(mixer, inputs)
    assert found.chance.item() == pytest.approx(1)
    assert found.attention.item() == pytest.approx(1)


MIXERS = {
    'inline': lambda: InLineMixer(8, 2),
    'inline without residual': lambda: InLineMixer(8, 2, residual=False),
    'inline windows': lambda: InLineMixer(8, 2, window_size=3),
    'inline shifted': lambda: InLineMixer(8, 2, window_size=3, shift=True),
    'inline shifted without wrapping': lambda: InLineMixer(8, 2, window_size=3, shift=True, wrap=False),
    'inline lepe': lambda: InLineMixer(8, 2, lepe=True, mean_before_norm=True),
    'softmax shifted': lambda: SoftmaxMixer(8, 2, window_size=3, shift=True, relative_position=True),
    'softmax stripes': lambda: SoftmaxMixer(8, 2, split_size=2, lepe=True),
}


def naive_shares(mixer: AttentionMixer, inputs: AttentionInputs) -> list[float]:
    """Compute the share per image from an explicit weight matrix per channel that includes local terms."""
    kernels, weights = local_kernels(mixer, inputs), mixer.weights(inputs)
    windows, channels, tokens = inputs.q.shape[0], inputs.q.shape[-1], inputs.q.shape[1]
    matrices = weights.repeat_interleave(channels // inputs.num_heads, dim=1)
    (height, width), valid = inputs.windows.window, valid_queries(inputs)
    for i in range(tokens if kernels is not None else 0):
        for t in range(9):
            y, x = i // width + t // 3 - 1, i % width + t % 3 - 1
            if 0 <= y < height and 0 <= x < width:
                is_token = valid[:, y * width + x].to(weights.dtype)
                matrices[:, :, i, y * width + x] += kernels[:, :, t] * is_token[:, None]
    positions = map_positions(inputs)
    sums: list[list[float]] = [[] for _ in range(windows // inputs.windows.num_windows)]
    for window in range(windows):
        in_window = positions[window % inputs.windows.num_windows].tolist()
        for i, position in enumerate(in_window):
            if position != NO_POSITION:
                near = [
                    j for j, other in enumerate(in_window) if _is_near(position, other, inputs.windows.hw[1])
                ]
                sizes = matrices[window, :, i].abs()
                share = (sizes[:, near].sum(dim=-1) / sizes.sum(dim=-1)).mean().item()
                sums[window // inputs.windows.num_windows].append(share)
    return [sum(shares) / len(shares) for shares in sums]


def _is_near(position: int, other: int, width: int) -> bool:
    return (
        other != NO_POSITION
        and abs(position // width - other // width) <= 1
        and abs(position % width - other % width) <= 1
    )


def make_inputs(name: str) -> tuple[AttentionMixer, list[AttentionInputs], Tensor]:
    torch.manual_seed(0)
    mixer, x = MIXERS[name]().double(), random_tokens((5, 7))
    return mixer, list(mixer.partition_inputs(x, (5, 7), 2 * x)), x


@pytest.mark.parametrize('name', MIXERS)
def test_shares_equal_those_of_explicit_weights(name: str) -> None:
    mixer, inputs_list, _ = make_inputs(name)
    for inputs in inputs_list:
        found = compute_locality(mixer, inputs)
        share = found.attention if found.with_local_terms is None else found.with_local_terms
        assert (found.with_local_terms is None) == (name in ('inline without residual', 'softmax shifted'))
        assert share.tolist() == pytest.approx(naive_shares(mixer, inputs), abs=1e-12)


@pytest.mark.parametrize('max_weights', [1, 3000])
@pytest.mark.parametrize('name', MIXERS)
def test_shares_do_not_depend_on_the_chunk_size(name: str, max_weights: int) -> None:
    mixer, inputs_list, _ = make_inputs(name)
    expected, chunked = layer_locality(mixer, inputs_list), layer_locality(mixer, inputs_list, max_weights)
    assert expected is not None
    assert chunked is not None
    torch.testing.assert_close(
        [chunked.attention, chunked.with_local_terms, chunked.chance],
        [expected.attention, expected.with_local_terms, expected.chance],
        rtol=0,
        atol=1e-12,
    )


def test_local_kernels_are_those_of_the_mixer() -> None:
    """Weights times values plus kernels times neighbours equals the output of the mixer."""
    mixer, (inputs,), x = make_inputs('inline')
    kernels = local_kernels(mixer, inputs)
    assert kernels is not None
    attended = (mixer.weights(inputs) @ inputs.heads()[2]).transpose(1, 2).flatten(2)
    at_center = sum(kernels[:, :, t] * inputs.v[:, (2 + t // 3 - 1) * 7 + 3 + t % 3 - 1] for t in range(9))
    given = mixer.attend(inputs) + mixer.local(inputs)
    torch.testing.assert_close(given[:, 2 * 7 + 3], attended[:, 2 * 7 + 3] + at_center)
    assert x.shape[1] == 35


def test_locality_is_undefined_with_spatial_reduction() -> None:
    mixer = SoftmaxMixer(8, 2, sr_ratio=2).double()
    assert layer_locality(mixer, list(mixer.partition_inputs(random_tokens((4, 4)), (4, 4)))) is None
