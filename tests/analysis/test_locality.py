"""Shares by hand, of equal weights, and with local terms against weights written out for each channel."""

import pytest
import torch
from torch import Tensor

from inline.analysis.locality import layer_locality, local_kernels, part_locality
from inline.analysis.places import NOWHERE, places, valid_queries
from inline.models.layers import square_windows
from inline.models.mixers import AttentionMixer, InLineMixer, SoftmaxMixer
from inline.models.mixers.base import Part
from tests.analysis.stand_ins import rows, tokens, written

CHANCE_3X3 = (4 * 4 / 9 + 4 * 6 / 9 + 1) / 9


def test_equal_weights_have_the_share_of_chance_borders_counted() -> None:
    mixer, part = written(torch.full((2, 3, 9, 9), 1 / 9, dtype=torch.float64), (3, 3))
    found = part_locality(mixer, part)
    assert found.attention.tolist() == pytest.approx([CHANCE_3X3] * 2, abs=1e-12)
    assert found.chance.tolist() == pytest.approx([CHANCE_3X3] * 2, abs=1e-12)
    assert found.with_local_terms is None


def test_the_share_of_signed_weights_is_of_their_sizes() -> None:
    mixer, part = written(rows([0.5, 0.7, -0.2], [0.2, 0.3, 0.5], [-1.0, 1.0, 1.0]), (1, 3))
    found = part_locality(mixer, part)
    assert found.attention.item() == pytest.approx((1.2 / 1.4 + 1 + 2 / 3) / 3)
    assert found.chance.item() == pytest.approx((2 / 3 + 1 + 2 / 3) / 3)


def test_a_class_token_is_a_key_but_no_query() -> None:
    mixer, part = written(
        rows([1.0, 0, 0, 0], [0.5, 0.2, 0.2, 0.1], [0.1, 0.3, 0.3, 0.3], [0, 0.6, 0.2, 0.2]), (1, 3), prefix=1
    )
    found = part_locality(mixer, part)
    assert found.attention.item() == pytest.approx((0.4 + 0.9 + 0.4) / 3)
    assert found.chance.item() == pytest.approx((2 / 4 + 3 / 4 + 2 / 4) / 3)


def test_in_windows_chance_is_of_the_window() -> None:
    """A map of 3×3 in windows of 2×2: windows of 4, 2, 2 and 1 tokens, in which all are neighbours."""
    regions = square_windows((3, 3), 2, shifted=False)
    weights = torch.full((4, 1, 4, 4), 0.25, dtype=torch.float64)
    mixer, part = written(weights, (3, 3), regions)
    assert part.key_mask is not None
    mixer.written = weights * part.key_mask[:, None, None, :]
    found = part_locality(mixer, part)
    assert found.chance.item() == pytest.approx(1)
    assert found.attention.item() == pytest.approx(1)


MIXERS = {
    'inline': lambda: InLineMixer(8, 2),
    'inline without residual': lambda: InLineMixer(8, 2, residual=False),
    'inline windows': lambda: InLineMixer(8, 2, window_size=3),
    'inline shifted': lambda: InLineMixer(8, 2, window_size=3, shift=True),
    'inline cut off': lambda: InLineMixer(8, 2, window_size=3, shift=True, wrap=False),
    'inline lepe': lambda: InLineMixer(8, 2, lepe=True, mean_before_norm=True),
    'softmax shifted': lambda: SoftmaxMixer(8, 2, window_size=3, shift=True, relative_position=True),
    'softmax stripes': lambda: SoftmaxMixer(8, 2, split_size=2, lepe=True),
}


def naive_shares(mixer: AttentionMixer, part: Part) -> list[float]:
    """By image, with a matrix of weights for every channel, local terms added place by place."""
    kernels, weights = local_kernels(mixer, part), mixer.weights(part)
    regions, channels, tokens = part.q.shape[0], part.q.shape[-1], part.q.shape[1]
    matrices = weights.repeat_interleave(channels // part.num_heads, dim=1)
    (height, width), valid = part.regions.window, valid_queries(part)
    for i in range(tokens if kernels is not None else 0):
        for t in range(9):
            y, x = i // width + t // 3 - 1, i % width + t % 3 - 1
            if 0 <= y < height and 0 <= x < width:
                there = valid[:, y * width + x].to(weights.dtype)
                matrices[:, :, i, y * width + x] += kernels[:, :, t] * there[:, None]
    where = places(part)
    sums: list[list[float]] = [[] for _ in range(regions // part.regions.count)]
    for region in range(regions):
        own = where[region % part.regions.count].tolist()
        for i, place in enumerate(own):
            if place != NOWHERE:
                near = [j for j, other in enumerate(own) if _is_near(place, other, part.regions.hw[1])]
                sizes = matrices[region, :, i].abs()
                share = (sizes[:, near].sum(dim=-1) / sizes.sum(dim=-1)).mean().item()
                sums[region // part.regions.count].append(share)
    return [sum(shares) / len(shares) for shares in sums]


def _is_near(place: int, other: int, width: int) -> bool:
    return (
        other != NOWHERE
        and abs(place // width - other // width) <= 1
        and abs(place % width - other % width) <= 1
    )


def parts_of(kind: str) -> tuple[AttentionMixer, list[Part], Tensor]:
    torch.manual_seed(0)
    mixer, x = MIXERS[kind]().double(), tokens((5, 7))
    return mixer, list(mixer.parts(x, (5, 7), 2 * x)), x


@pytest.mark.parametrize('kind', MIXERS)
def test_shares_agree_with_weights_written_out(kind: str) -> None:
    mixer, parts, _ = parts_of(kind)
    for part in parts:
        found = part_locality(mixer, part)
        share = found.attention if found.with_local_terms is None else found.with_local_terms
        assert (found.with_local_terms is None) == (kind in ('inline without residual', 'softmax shifted'))
        assert share.tolist() == pytest.approx(naive_shares(mixer, part), abs=1e-12)


@pytest.mark.parametrize('max_weights', [1, 3000])
@pytest.mark.parametrize('kind', MIXERS)
def test_blocks_of_any_size_give_the_same(kind: str, max_weights: int) -> None:
    mixer, parts, _ = parts_of(kind)
    whole, blocks = layer_locality(mixer, parts), layer_locality(mixer, parts, max_weights)
    assert whole is not None
    assert blocks is not None
    torch.testing.assert_close(
        [blocks.attention, blocks.with_local_terms, blocks.chance],
        [whole.attention, whole.with_local_terms, whole.chance],
        rtol=0,
        atol=1e-12,
    )


def test_the_kernels_are_those_that_the_mixer_adds() -> None:
    """Attention by its weights and the kernels by hand make up what the mixer gives."""
    mixer, (part,), x = parts_of('inline')
    kernels = local_kernels(mixer, part)
    assert kernels is not None
    attended = (mixer.weights(part) @ part.heads()[2]).transpose(1, 2).flatten(2)
    at_centre = sum(kernels[:, :, t] * part.v[:, (2 + t // 3 - 1) * 7 + 3 + t % 3 - 1] for t in range(9))
    given = mixer.attend(part) + mixer.local(part)
    torch.testing.assert_close(given[:, 2 * 7 + 3], attended[:, 2 * 7 + 3] + at_centre)
    assert x.shape[1] == 35


def test_reduced_keys_have_no_locality() -> None:
    mixer = SoftmaxMixer(8, 2, sr_ratio=2).double()
    assert layer_locality(mixer, list(mixer.parts(tokens((4, 4)), (4, 4)))) is None
