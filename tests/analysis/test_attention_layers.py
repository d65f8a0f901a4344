"""Finding and capturing attention layers, and the positions and neighbours of their tokens."""

import math

import pytest
import torch

from inline.analysis.layers import (
    NO_POSITION,
    Layer,
    attended_keys,
    capture_inputs,
    choose_layers,
    count_images,
    find_layers,
    find_neighbors,
    has_spatial_reduction,
    map_positions,
    query_chunks,
)
from inline.models import InLineDeiT
from inline.models.mixers import InLineMixer, SoftmaxMixer
from inline.models.mixers.base import AttentionInputs
from inline.utils.errors import UserError
from tests.analysis.fixed_weights import make_fixed, random_tokens
from tests.models.families import FAMILIES, build

HW = (5, 7)
MIXERS = {
    'whole map': lambda: InLineMixer(8, 2),
    'windows': lambda: InLineMixer(8, 2, window_size=3),
    'shifted windows': lambda: InLineMixer(8, 2, window_size=3, shift=True),
    'shifted windows without wrapping': lambda: InLineMixer(8, 2, window_size=3, shift=True, wrap=False),
    'stripes': lambda: SoftmaxMixer(8, 2, split_size=2),
    'softmax, shifted': lambda: SoftmaxMixer(8, 2, window_size=3, shift=True),
}


def test_corners_have_four_neighbors_edges_six_and_the_center_nine() -> None:
    _, inputs = make_fixed(torch.zeros(1, 1, 9, 9), (3, 3))
    index, _, near = find_neighbors(inputs, 3)
    assert near.sum(dim=-1).tolist() == [[4, 6, 4, 6, 9, 6, 4, 6, 4]]
    assert sorted(index[0, 0][near[0, 0]].tolist()) == [0, 1, 3, 4]
    assert index[0, 4].tolist() == list(range(9))


def test_class_token_has_no_position_and_shifts_the_others_by_one() -> None:
    _, inputs = make_fixed(torch.zeros(1, 1, 5, 5), (2, 2), prefix=1)
    assert map_positions(inputs).tolist() == [[NO_POSITION, 0, 1, 2, 3]]
    index, _, near = find_neighbors(inputs, 3)
    assert near.sum(dim=-1).tolist() == [[0, 4, 4, 4, 4]]
    assert sorted(index[0, 2][near[0, 2]].tolist()) == [1, 2, 3, 4]


@pytest.mark.parametrize('side', [3, 5])
@pytest.mark.parametrize('name', MIXERS)
def test_neighbors_are_tokens_of_the_same_window_that_are_adjacent_on_the_map(name: str, side: int) -> None:
    for inputs in MIXERS[name]().double().partition_inputs(random_tokens(HW), HW):
        positions, (index, _, near) = map_positions(inputs), find_neighbors(inputs, side)
        on_map = positions[positions != NO_POSITION]
        assert sorted(on_map.tolist()) == list(range(HW[0] * HW[1]))
        for window, in_window in enumerate(positions.tolist()):
            for i, position in enumerate(in_window):
                expected = {
                    j
                    for j, other in enumerate(in_window)
                    if NO_POSITION not in (position, other)
                    and abs(position // 7 - other // 7) <= side // 2
                    and abs(position % 7 - other % 7) <= side // 2
                }
                found = index[window, i][near[window, i]].tolist()
                assert len(found) == len(set(found))
                assert set(found) == expected


def test_attended_keys_follow_the_mask_of_the_mixer() -> None:
    """Softmax masks tokens that a cyclic shift wrapped around; InLine does not, as in the released models."""
    x = random_tokens((7, 7))
    for mixer, attends_to_all in (
        (SoftmaxMixer(8, 2, window_size=4, shift=True), False),
        (InLineMixer(8, 2, window_size=4, shift=True), True),
    ):
        (inputs,) = mixer.double().partition_inputs(x, (7, 7))
        keys = attended_keys(inputs, mixer.weights(inputs), slice(None))
        assert inputs.key_mask is not None
        padding = ~inputs.key_mask
        token_to_padding = inputs.key_mask[:, :, None] & padding[:, None, :]
        assert not keys[token_to_padding].any()
        pairs = inputs.key_mask[:, :, None] & inputs.key_mask[:, None, :]
        assert bool(keys[pairs].all()) is attends_to_all


def test_spatial_reduction_is_detected() -> None:
    mixer = SoftmaxMixer(8, 2, sr_ratio=2).double()
    (inputs,) = mixer.partition_inputs(random_tokens((4, 4)), (4, 4))
    assert has_spatial_reduction(inputs)
    assert attended_keys(inputs, mixer.weights(inputs), slice(None)).all()


@pytest.mark.parametrize(('max_weights', 'chunks'), [(1, 35), (2 * 2 * 35 * 10, 4), (10**9, 1)])
def test_chunks_cover_all_queries_in_order(max_weights: int, chunks: int) -> None:
    (inputs,) = InLineMixer(8, 2).double().partition_inputs(random_tokens(HW), HW)
    slices = list(query_chunks(inputs, max_weights))
    assert len(slices) == chunks
    assert [i for rows in slices for i in range(35)[rows]] == list(range(35))
    assert count_images(inputs) == 2


@pytest.mark.parametrize('family', FAMILIES)
def test_inputs_of_every_layer_are_captured(family: str) -> None:
    model = build(family).eval()
    layers = find_layers(model)
    captured: list[tuple[str, int]] = []

    def callback(layer: Layer, inputs_list: list[AttentionInputs]) -> None:
        sums = [layer.mixer.weights(inputs).sum(dim=-1) for inputs in inputs_list]
        assert all(math.isclose(float(weight_sums.mean()), 1, abs_tol=1e-4) for weight_sums in sums)
        captured.append((layer.key, len(inputs_list)))

    with torch.no_grad(), capture_inputs(layers, callback):
        model(torch.randn(1, 3, 64, 96))
    assert [key for key, _ in captured] == [layer.key for layer in layers]
    with torch.no_grad():
        model(torch.randn(1, 3, 64, 96))
    assert len(captured) == len(layers)


def test_layers_are_chosen_by_key() -> None:
    layers = find_layers(build('InLineDeiT'))
    assert [layer.key for layer in choose_layers(layers, ['4', '2'])] == ['2', '4']
    with pytest.raises(UserError, match=r"layer '1\.1' does not exist: choose from 1, 2, 3, 4"):
        choose_layers(layers, ['1.1'])


def test_names_and_keys_of_layers() -> None:
    names = {layer.key: layer.name for layer in find_layers(build('InLineSwin'))}
    assert list(names)[:3] == ['1.1', '1.2', '2.1']
    assert names['4.2'] == 'stage 4 block 2'
    deit = InLineDeiT({'embed_dims': 16, 'depth': 2, 'num_heads': 2})
    assert [(layer.key, layer.name) for layer in find_layers(deit)] == [('1', 'block 1'), ('2', 'block 2')]
