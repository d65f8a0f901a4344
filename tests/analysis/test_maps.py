"""Maps of one query against the weights themselves."""

import math

import pytest
import torch

from inline.analysis.layers import Layer, choose_layers, find_layers, watch
from inline.analysis.maps import (
    check_query,
    find_token,
    layer_maps,
    tell_reduction,
    tell_stride,
    token_residual,
)
from inline.errors import UserError
from inline.models.mixers import InLineMixer, SoftmaxMixer
from inline.models.mixers.base import Part
from tests.analysis.stand_ins import rows, tokens, written
from tests.models.families import FAMILIES, build


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
def test_the_stride_is_told_from_the_sizes(size: tuple[int, int], hw: tuple[int, int], stride: int) -> None:
    assert tell_stride(size, hw) == stride


def test_the_reduction_is_told_from_the_keys() -> None:
    assert tell_reduction((56, 56), 49) == 8
    assert tell_reduction((5, 7), 3 * 4) == 2
    with pytest.raises(UserError, match='11 keys are no map over 4×4 tokens'):
        tell_reduction((4, 4), 11)


def test_a_map_is_the_row_of_its_query_without_the_class_token() -> None:
    """Pixel (20, 40) of an image of 32×64 stands in row 1, column 2 of a map of stride 16."""
    weights = torch.rand(1, 2, 9, 9, dtype=torch.float64)
    mixer, part = written(weights, (2, 4), prefix=1)
    maps = layer_maps(Layer('1', 'block 1', mixer), [part], [(20, 40), (0, 0)], (32, 64))
    assert maps.stride == maps.key_stride == 16
    assert maps.residual is None
    torch.testing.assert_close(maps.weights[0], weights[0, :, 1 + 4 + 2, 1:].mean(dim=0).view(2, 4))
    torch.testing.assert_close(maps.weights[1], weights[0, :, 1, 1:].mean(dim=0).view(2, 4))


def test_a_map_of_one_head_is_that_heads_row() -> None:
    weights = torch.rand(1, 2, 8, 8, dtype=torch.float64)
    mixer, part = written(weights, (2, 4))
    layer = Layer('1', 'block 1', mixer)
    maps = layer_maps(layer, [part], [(20, 40)], (32, 64), head=1)
    torch.testing.assert_close(maps.weights[0], weights[0, 1, 4 + 2].view(2, 4))
    with pytest.raises(UserError, match='head 3 of block 1: it has 2 heads'):
        layer_maps(layer, [part], [(20, 40)], (32, 64), head=2)


def test_a_head_of_stripes_sees_its_own_stripe_and_has_its_own_kernel() -> None:
    torch.manual_seed(0)
    mixer = InLineMixer(8, 4, split_size=1).double()
    parts = list(mixer.parts(tokens((4, 4), images=1), (4, 4)))
    column, row = torch.zeros(2, 4, 4, dtype=torch.bool)
    column[:, 2] = row[1, :] = True
    layer = Layer('1', 'block 1', mixer)
    each = [layer_maps(layer, parts, [(4, 8)], (16, 16), head=head) for head in range(4)]
    assert [torch.equal(~one.weights[0].isnan(), column) for one in each] == [True, True, False, False]
    assert [torch.equal(~one.weights[0].isnan(), row) for one in each] == [False, False, True, True]
    kernels = torch.stack([one.residual[0] for one in each if one.residual is not None])
    assert len(kernels) == 4
    assert len(kernels.flatten(1).unique(dim=0)) == 4
    # Heads have equally many channels, so the mean over all is the mean of theirs.
    whole = layer_maps(layer, parts, [(4, 8)], (16, 16)).residual
    assert whole is not None
    torch.testing.assert_close(whole[0], kernels.mean(dim=0))


def written_residual(**options: int) -> InLineMixer:
    """Values are the tokens of two channels; the kernels are 0 … 8 and 9 … 17 whatever the image."""
    mixer = InLineMixer(2, 2, qkv_bias=False, **options).double()
    assert mixer.residual is not None
    with torch.no_grad():
        mixer.qkv.weight[4:] = torch.eye(2)
        mixer.residual.fc2.weight.zero_()
        assert mixer.residual.fc2.bias is not None
        mixer.residual.fc2.bias.copy_(torch.arange(18))
    return mixer


def test_what_the_residual_adds_to_a_token_is_told_by_neighbour() -> None:
    """The upper right corner of 2×3 tokens, whose values are (1, 10), (2, 20), … row by row."""
    mixer = written_residual()
    x = torch.arange(1, 7, dtype=torch.float64)[None, :, None] * torch.tensor([1.0, 10.0])
    (part,) = parts = list(mixer.parts(x, (2, 3)))
    layer = Layer('1', 'block 1', mixer)
    with torch.no_grad():
        found = token_residual(layer, parts, (0, 2))
        second = token_residual(layer, parts, (0, 2), head=1)
        attended = mixer.attend(part)[0, 2]
        local = mixer.local(part)
    assert found is not None
    assert second is not None
    assert local is not None
    # On its left and itself, below these two; places 3, 4, 6 and 7 of the kernels.
    near = {
        (1, 0): (3 * 2, 12 * 20),
        (1, 1): (4 * 3, 13 * 30),
        (2, 0): (6 * 5, 15 * 50),
        (2, 1): (7 * 6, 16 * 60),
    }
    assert (~found.neighbours.isnan()).nonzero().tolist() == [list(place) for place in near]
    for place, terms in near.items():
        assert found.neighbours[place].item() == pytest.approx(math.hypot(*terms))
        assert second.neighbours[place].item() == pytest.approx(terms[1])
    sums = [sum(terms) for terms in zip(*near.values(), strict=True)]
    assert found.residual == pytest.approx(math.hypot(*sums))
    assert second.residual == pytest.approx(sums[1])
    torch.testing.assert_close(local[0, 2], torch.tensor(sums, dtype=torch.float64))
    assert found.attention == pytest.approx(attended.norm().item())
    assert second.attention == pytest.approx(abs(attended[1].item()))


def test_the_residual_stays_in_windows_and_stripes() -> None:
    """Token (1, 2) of 4×4: the corner of its window; in stripes one head sees its column, one its row."""
    for options, places in (
        ({'window_size': 2}, [[0, 1], [0, 2], [1, 1], [1, 2]]),
        ({'split_size': 1}, [[0, 1], [1, 0], [1, 1], [1, 2], [2, 1]]),
    ):
        mixer = written_residual(**options)
        parts = list(mixer.parts(torch.rand(1, 16, 2, dtype=torch.float64), (4, 4)))
        with torch.no_grad():
            found = token_residual(Layer('1', 'block 1', mixer), parts, (1, 2))
        assert found is not None
        assert (~found.neighbours.isnan()).nonzero().tolist() == places


@pytest.mark.parametrize(
    'options', [{}, {'window_size': 3}, {'window_size': 4, 'shift': True}, {'split_size': 2}]
)
def test_the_lengths_are_those_of_what_the_layer_adds(options: dict[str, int]) -> None:
    """Of every token of 5×6, with padded and shifted windows."""
    torch.manual_seed(0)
    mixer = InLineMixer(8, 2, **options).double()
    parts = list(mixer.parts(tokens((5, 6), images=1), (5, 6)))
    with torch.no_grad():
        local, attended = (
            torch.cat([part.regions.join(term(part)) for part in parts], dim=-1)[0]
            for term in (mixer.local, mixer.attend)
        )
        for i in range(30):
            found = token_residual(Layer('1', 'block 1', mixer), parts, divmod(i, 6))
            assert found is not None
            assert found.residual == pytest.approx(local[i].norm().item())
            assert found.attention == pytest.approx(attended[i].norm().item())


def test_softmax_has_no_residual() -> None:
    mixer = SoftmaxMixer(8, 2).double()
    parts = list(mixer.parts(tokens((4, 4), images=1), (4, 4)))
    assert token_residual(Layer('1', 'block 1', mixer), parts, (0, 0)) is None


@pytest.mark.parametrize(
    ('query', 'size', 'hw', 'token'),
    [
        ((0, 0), (32, 64), (2, 4), (0, 0)),
        ((15, 16), (32, 64), (2, 4), (0, 1)),
        ((31, 63), (32, 64), (2, 4), (1, 3)),
        # The last pixels are left out by the convolution, and belong to the last token.
        ((49, 69), (50, 70), (12, 17), (11, 16)),
    ],
)
def test_a_pixel_belongs_to_a_token(
    query: tuple[int, int], size: tuple[int, int], hw: tuple[int, int], token: tuple[int, int]
) -> None:
    assert find_token(query, size, hw) == token


def test_places_out_of_sight_are_empty() -> None:
    """In stripes half of the heads see a column, half a row; in windows a query sees its window."""
    torch.manual_seed(0)
    stripes = SoftmaxMixer(8, 2, split_size=1).double()
    parts = list(stripes.parts(tokens((4, 4), images=1), (4, 4)))
    (seen,) = layer_maps(Layer('1', 'block 1', stripes), parts, [(4, 8)], (16, 16)).weights
    cross = torch.zeros(4, 4, dtype=torch.bool)
    cross[1, :] = cross[:, 2] = True
    assert torch.equal(~seen.isnan(), cross)
    # Each head's weights sum to 1, and the map is their mean.
    assert seen.nansum().item() == pytest.approx(1)
    windows = InLineMixer(8, 2, window_size=2).double()
    parts = list(windows.parts(tokens((4, 4), images=1), (4, 4)))
    maps = layer_maps(Layer('1', 'block 1', windows), parts, [(4, 8)], (16, 16))
    assert (~maps.weights[0].isnan()).nonzero().tolist() == [[0, 2], [0, 3], [1, 2], [1, 3]]
    kernels = windows.residual(parts[0].regions.cut(parts[0].x).mean(dim=1))
    assert maps.residual is not None
    torch.testing.assert_close(maps.residual[0], kernels[1].mean(dim=0).view(3, 3))


def test_reduced_keys_are_drawn_as_large_places() -> None:
    mixer = SoftmaxMixer(8, 2, sr_ratio=2).double()
    parts = list(mixer.parts(tokens((4, 6), images=1), (4, 6)))
    maps = layer_maps(Layer('1', 'block 1', mixer), parts, [(0, 0)], (16, 24))
    assert maps.weights.shape == (1, 2, 3)
    assert (maps.stride, maps.key_stride) == (4, 8)
    assert maps.weights.sum().item() == pytest.approx(1)


@pytest.mark.parametrize('query', [(-1, 0), (0, -1), (32, 0), (0, 48)])
def test_a_query_outside_the_image_is_told(query: tuple[int, int]) -> None:
    with pytest.raises(
        UserError, match=f'query {query[0]} {query[1]} is outside the image: .* 32 rows and 48'
    ):
        check_query(query, (32, 48))


@pytest.mark.parametrize('family', FAMILIES)
def test_every_layer_of_every_family_is_watched(family: str) -> None:
    model = build(family).eval()
    layers = find_layers(model)
    seen: list[tuple[str, int]] = []

    def see(layer: Layer, parts: list[Part]) -> None:
        rows_sum = [layer.mixer.weights(part).sum(dim=-1) for part in parts]
        assert all(math.isclose(float(one.mean()), 1, abs_tol=1e-4) for one in rows_sum)
        seen.append((layer.key, len(parts)))

    with torch.no_grad(), watch(layers, see):
        model(torch.randn(1, 3, 64, 96))
    assert [key for key, _ in seen] == [layer.key for layer in layers]
    with torch.no_grad():
        model(torch.randn(1, 3, 64, 96))
    assert len(seen) == len(layers)


def test_an_unknown_layer_is_told() -> None:
    layers = find_layers(build('InLineDeiT'))
    assert [layer.key for layer in choose_layers(layers, ['4', '2'])] == ['2', '4']
    with pytest.raises(UserError, match=r"layer '1\.1' does not exist: choose of 1, 2, 3, 4"):
        choose_layers(layers, ['1.1'])


def test_rows_of_the_stand_in_are_what_was_written() -> None:
    mixer, part = written(rows([0.2, 0.8], [0.5, 0.5]), (1, 2))
    assert mixer.weights(part, slice(1, 2)).tolist() == [[[[0.5, 0.5]]]]
