"""Attention maps of single queries, and the contribution of the local residual."""

import math

import pytest
import torch

from inline.analysis.layers import Layer
from inline.analysis.maps import (
    check_query,
    find_token,
    infer_reduction,
    infer_stride,
    layer_maps,
    token_residual,
)
from inline.models.mixers import InLineMixer, SoftmaxMixer
from inline.utils.errors import UserError
from tests.analysis.fixed_weights import make_fixed, random_tokens


@pytest.mark.parametrize(
    ('size', 'hw', 'stride'),
    [
        ((224, 224), (14, 14), 16),
        ((224, 224), (16, 16), 14),
        ((48, 48), (2, 2), 32),
        ((224, 320), (56, 80), 4),
        ((50, 70), (12, 17), 4),
        ((230, 230), (17, 17), 14),
    ],
)
def test_stride_is_inferred_from_the_sizes(size: tuple[int, int], hw: tuple[int, int], stride: int) -> None:
    assert infer_stride(size, hw) == stride


def test_reduction_is_inferred_from_the_number_of_keys() -> None:
    assert infer_reduction((56, 56), 49) == 8
    assert infer_reduction((5, 7), 3 * 4) == 2
    with pytest.raises(UserError, match='11 keys do not form a map over 4×4 tokens'):
        infer_reduction((4, 4), 11)


def test_map_contains_the_weights_of_its_query_without_the_class_token() -> None:
    """Pixel (20, 40) of an image of 32×64 is in row 1, column 2 of a map of stride 16."""
    weights = torch.rand(1, 2, 9, 9, dtype=torch.float64)
    mixer, inputs = make_fixed(weights, (2, 4), prefix=1)
    maps = layer_maps(Layer('1', 'block 1', mixer), [inputs], [(20, 40), (0, 0)], (32, 64))
    assert maps.stride == maps.key_stride == 16
    assert maps.residual is None
    torch.testing.assert_close(maps.weights[0], weights[0, :, 1 + 4 + 2, 1:].mean(dim=0).view(2, 4))
    torch.testing.assert_close(maps.weights[1], weights[0, :, 1, 1:].mean(dim=0).view(2, 4))


def test_map_of_one_head_contains_the_weights_of_that_head() -> None:
    weights = torch.rand(1, 2, 8, 8, dtype=torch.float64)
    mixer, inputs = make_fixed(weights, (2, 4))
    layer = Layer('1', 'block 1', mixer)
    maps = layer_maps(layer, [inputs], [(20, 40)], (32, 64), head=1)
    torch.testing.assert_close(maps.weights[0], weights[0, 1, 4 + 2].view(2, 4))
    with pytest.raises(UserError, match='head 3 of block 1 does not exist: it has 2 heads'):
        layer_maps(layer, [inputs], [(20, 40)], (32, 64), head=2)


def test_heads_of_stripes_have_their_own_stripe_and_kernel() -> None:
    torch.manual_seed(0)
    mixer = InLineMixer(8, 4, split_size=1).double()
    inputs_list = list(mixer.partition_inputs(random_tokens((4, 4), images=1), (4, 4)))
    column, row = torch.zeros(2, 4, 4, dtype=torch.bool)
    column[:, 2] = row[1, :] = True
    layer = Layer('1', 'block 1', mixer)
    maps = [layer_maps(layer, inputs_list, [(4, 8)], (16, 16), head=head) for head in range(4)]
    assert [torch.equal(~one.weights[0].isnan(), column) for one in maps] == [True, True, False, False]
    assert [torch.equal(~one.weights[0].isnan(), row) for one in maps] == [False, False, True, True]
    kernels = torch.stack([one.residual[0] for one in maps if one.residual is not None])
    assert len(kernels) == 4
    assert len(kernels.flatten(1).unique(dim=0)) == 4
    # All heads have the same number of channels, so the mean over all channels is the mean over heads.
    all_heads = layer_maps(layer, inputs_list, [(4, 8)], (16, 16)).residual
    assert all_heads is not None
    torch.testing.assert_close(all_heads[0], kernels.mean(dim=0))


def mixer_with_fixed_residual(**options: int) -> InLineMixer:
    """Return a mixer whose values are its tokens, with kernels 0 … 8 and 9 … 17 for the two channels."""
    mixer = InLineMixer(2, 2, qkv_bias=False, **options).double()
    assert mixer.residual is not None
    with torch.no_grad():
        mixer.qkv.weight[4:] = torch.eye(2)
        mixer.residual.fc2.weight.zero_()
        assert mixer.residual.fc2.bias is not None
        mixer.residual.fc2.bias.copy_(torch.arange(18))
    return mixer


def test_token_residual_reports_each_neighbor() -> None:
    """Check the upper right corner of 2×3 tokens with values (1, 10), (2, 20), … in row-major order."""
    mixer = mixer_with_fixed_residual()
    x = torch.arange(1, 7, dtype=torch.float64)[None, :, None] * torch.tensor([1.0, 10.0])
    (inputs,) = inputs_list = list(mixer.partition_inputs(x, (2, 3)))
    layer = Layer('1', 'block 1', mixer)
    with torch.no_grad():
        found = token_residual(layer, inputs_list, (0, 2))
        second = token_residual(layer, inputs_list, (0, 2), head=1)
        attended = mixer.attend(inputs)[0, 2]
        local = mixer.local(inputs)
    assert found is not None
    assert second is not None
    assert local is not None
    # The left neighbour, the token itself, and the two below: elements 3, 4, 6 and 7 of the kernels.
    near = {
        (1, 0): (3 * 2, 12 * 20),
        (1, 1): (4 * 3, 13 * 30),
        (2, 0): (6 * 5, 15 * 50),
        (2, 1): (7 * 6, 16 * 60),
    }
    assert (~found.neighbors.isnan()).nonzero().tolist() == [list(position) for position in near]
    for position, terms in near.items():
        assert found.neighbors[position].item() == pytest.approx(math.hypot(*terms))
        assert second.neighbors[position].item() == pytest.approx(terms[1])
    sums = [sum(terms) for terms in zip(*near.values(), strict=True)]
    assert found.residual == pytest.approx(math.hypot(*sums))
    assert second.residual == pytest.approx(sums[1])
    torch.testing.assert_close(local[0, 2], torch.tensor(sums, dtype=torch.float64))
    assert found.attention == pytest.approx(attended.norm().item())
    assert second.attention == pytest.approx(abs(attended[1].item()))


def test_residual_stays_inside_windows_and_stripes() -> None:
    """Token (1, 2) of 4×4 is a corner of its window. With stripes, one head sees its column, one its row."""
    for options, expected in (
        ({'window_size': 2}, [[0, 1], [0, 2], [1, 1], [1, 2]]),
        ({'split_size': 1}, [[0, 1], [1, 0], [1, 1], [1, 2], [2, 1]]),
    ):
        mixer = mixer_with_fixed_residual(**options)
        inputs_list = list(mixer.partition_inputs(torch.rand(1, 16, 2, dtype=torch.float64), (4, 4)))
        with torch.no_grad():
            found = token_residual(Layer('1', 'block 1', mixer), inputs_list, (1, 2))
        assert found is not None
        assert (~found.neighbors.isnan()).nonzero().tolist() == expected


@pytest.mark.parametrize(
    'options', [{}, {'window_size': 3}, {'window_size': 4, 'shift': True}, {'split_size': 2}]
)
def test_norms_equal_those_of_the_terms_that_the_mixer_adds(options: dict[str, int]) -> None:
    """Check every token of a 5×6 map, with padded and shifted windows."""
    torch.manual_seed(0)
    mixer = InLineMixer(8, 2, **options).double()
    inputs_list = list(mixer.partition_inputs(random_tokens((5, 6), images=1), (5, 6)))
    with torch.no_grad():
        local, attended = (
            torch.cat([inputs.windows.reverse(term(inputs)) for inputs in inputs_list], dim=-1)[0]
            for term in (mixer.local, mixer.attend)
        )
        for i in range(30):
            found = token_residual(Layer('1', 'block 1', mixer), inputs_list, divmod(i, 6))
            assert found is not None
            assert found.residual == pytest.approx(local[i].norm().item())
            assert found.attention == pytest.approx(attended[i].norm().item())


def test_softmax_has_no_residual() -> None:
    mixer = SoftmaxMixer(8, 2).double()
    inputs_list = list(mixer.partition_inputs(random_tokens((4, 4), images=1), (4, 4)))
    assert token_residual(Layer('1', 'block 1', mixer), inputs_list, (0, 0)) is None


@pytest.mark.parametrize(
    ('query', 'size', 'hw', 'token'),
    [
        ((0, 0), (32, 64), (2, 4), (0, 0)),
        ((15, 16), (32, 64), (2, 4), (0, 1)),
        ((31, 63), (32, 64), (2, 4), (1, 3)),
        # The convolution drops the last pixels, which are assigned to the last token.
        ((49, 69), (50, 70), (12, 17), (11, 16)),
    ],
)
def test_token_of_a_pixel(
    query: tuple[int, int], size: tuple[int, int], hw: tuple[int, int], token: tuple[int, int]
) -> None:
    assert find_token(query, size, hw) == token


def test_keys_outside_the_window_are_nan() -> None:
    """With stripes, half of the heads see a column and half a row. With windows, a query sees its window."""
    torch.manual_seed(0)
    stripes = SoftmaxMixer(8, 2, split_size=1).double()
    inputs_list = list(stripes.partition_inputs(random_tokens((4, 4), images=1), (4, 4)))
    (weights,) = layer_maps(Layer('1', 'block 1', stripes), inputs_list, [(4, 8)], (16, 16)).weights
    cross = torch.zeros(4, 4, dtype=torch.bool)
    cross[1, :] = cross[:, 2] = True
    assert torch.equal(~weights.isnan(), cross)
    # The weights of each head sum to 1, and the map is the mean over heads.
    assert weights.nansum().item() == pytest.approx(1)
    windows = InLineMixer(8, 2, window_size=2).double()
    inputs_list = list(windows.partition_inputs(random_tokens((4, 4), images=1), (4, 4)))
    maps = layer_maps(Layer('1', 'block 1', windows), inputs_list, [(4, 8)], (16, 16))
    assert (~maps.weights[0].isnan()).nonzero().tolist() == [[0, 2], [0, 3], [1, 2], [1, 3]]
    kernels = windows.residual(inputs_list[0].windows.partition(inputs_list[0].x).mean(dim=1))
    assert maps.residual is not None
    torch.testing.assert_close(maps.residual[0], kernels[1].mean(dim=0).view(3, 3))


def test_maps_with_spatial_reduction_have_a_larger_key_stride() -> None:
    mixer = SoftmaxMixer(8, 2, sr_ratio=2).double()
    inputs_list = list(mixer.partition_inputs(random_tokens((4, 6), images=1), (4, 6)))
    maps = layer_maps(Layer('1', 'block 1', mixer), inputs_list, [(0, 0)], (16, 24))
    assert maps.weights.shape == (1, 2, 3)
    assert (maps.stride, maps.key_stride) == (4, 8)
    assert maps.weights.sum().item() == pytest.approx(1)


@pytest.mark.parametrize('query', [(-1, 0), (0, -1), (32, 0), (0, 48)])
def test_query_outside_the_image_is_rejected(query: tuple[int, int]) -> None:
    with pytest.raises(
        UserError, match=f'query {query[0]} {query[1]} is outside the image: .* 32 rows and 48'
    ):
        check_query(query, (32, 48))
