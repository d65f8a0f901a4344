"""Places and neighbours against what one sees on a small map, and pair by pair on cut ones."""

import pytest
import torch

from inline.analysis.places import (
    NOWHERE,
    attended_keys,
    count_images,
    has_neighbours,
    neighbours,
    places,
    query_blocks,
)
from inline.models.mixers import InLineMixer, SoftmaxMixer
from tests.analysis.stand_ins import tokens, written

HW = (5, 7)
MIXERS = {
    'whole map': lambda: InLineMixer(8, 2),
    'windows': lambda: InLineMixer(8, 2, window_size=3),
    'shifted windows': lambda: InLineMixer(8, 2, window_size=3, shift=True),
    'shifted windows, cut off': lambda: InLineMixer(8, 2, window_size=3, shift=True, wrap=False),
    'stripes': lambda: SoftmaxMixer(8, 2, split_size=2),
    'softmax, shifted': lambda: SoftmaxMixer(8, 2, window_size=3, shift=True),
}


def test_a_corner_has_four_neighbours_an_edge_six_and_the_centre_nine() -> None:
    _, part = written(torch.zeros(1, 1, 9, 9), (3, 3))
    index, near = neighbours(part, 3)
    assert near.sum(dim=-1).tolist() == [[4, 6, 4, 6, 9, 6, 4, 6, 4]]
    assert sorted(index[0, 0][near[0, 0]].tolist()) == [0, 1, 3, 4]
    assert index[0, 4].tolist() == list(range(9))


def test_a_class_token_has_no_place_and_moves_the_others_by_one() -> None:
    _, part = written(torch.zeros(1, 1, 5, 5), (2, 2), prefix=1)
    assert places(part).tolist() == [[NOWHERE, 0, 1, 2, 3]]
    index, near = neighbours(part, 3)
    assert near.sum(dim=-1).tolist() == [[0, 4, 4, 4, 4]]
    assert sorted(index[0, 2][near[0, 2]].tolist()) == [1, 2, 3, 4]


@pytest.mark.parametrize('side', [3, 5])
@pytest.mark.parametrize('kind', MIXERS)
def test_neighbours_are_the_tokens_of_a_region_that_are_near_on_the_map(kind: str, side: int) -> None:
    for part in MIXERS[kind]().double().parts(tokens(HW), HW):
        where, (index, near) = places(part), neighbours(part, side)
        on_map = where[where != NOWHERE]
        assert sorted(on_map.tolist()) == list(range(HW[0] * HW[1]))
        for region, own in enumerate(where.tolist()):
            for i, place in enumerate(own):
                expected = {
                    j
                    for j, other in enumerate(own)
                    if NOWHERE not in (place, other)
                    and abs(place // 7 - other // 7) <= side // 2
                    and abs(place % 7 - other % 7) <= side // 2
                }
                found = index[region, i][near[region, i]].tolist()
                assert len(found) == len(set(found))
                assert set(found) == expected


def test_a_query_attends_to_the_keys_that_its_mixer_lets_it_see() -> None:
    """Softmax heeds what a shift wrapped around; InLine's windows hold it, as in the released models."""
    x = tokens((7, 7))
    for mixer, whole in (
        (SoftmaxMixer(8, 2, window_size=4, shift=True), False),
        (InLineMixer(8, 2, window_size=4, shift=True), True),
    ):
        (part,) = mixer.double().parts(x, (7, 7))
        keys = attended_keys(part, mixer.weights(part), slice(None))
        assert part.key_mask is not None
        padding = ~part.key_mask
        real = part.key_mask[:, :, None] & padding[:, None, :]
        assert not keys[real].any()
        pairs = part.key_mask[:, :, None] & part.key_mask[:, None, :]
        assert bool(keys[pairs].all()) is whole


def test_reduced_keys_are_no_neighbours() -> None:
    mixer = SoftmaxMixer(8, 2, sr_ratio=2).double()
    (part,) = mixer.parts(tokens((4, 4)), (4, 4))
    assert not has_neighbours(part)
    assert attended_keys(part, mixer.weights(part), slice(None)).all()


@pytest.mark.parametrize(('max_weights', 'blocks'), [(1, 35), (2 * 2 * 35 * 10, 4), (10**9, 1)])
def test_blocks_cover_all_queries_in_order(max_weights: int, blocks: int) -> None:
    (part,) = InLineMixer(8, 2).double().parts(tokens(HW), HW)
    slices = list(query_blocks(part, max_weights))
    assert len(slices) == blocks
    assert [i for one in slices for i in range(35)[one]] == list(range(35))
    assert count_images(part) == 2
