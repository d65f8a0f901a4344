"""Masked attention by hand on four tokens, and against naive attention over the remaining keys."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from inline.analysis.layers import NO_POSITION, Layer, attended_keys, find_layers, map_positions
from inline.analysis.masking import (
    Mask,
    Renormalize,
    attend_masked,
    check_maskable,
    masked_attention,
    renormalize_by_division,
    renormalize_by_subtraction,
    sample_keys,
)
from inline.models.mixers import AttentionMixer, InLineMixer, LinearMixer, SoftmaxMixer
from inline.models.mixers.base import AttentionInputs
from inline.ops import (
    inline_attention_naive,
    inline_attention_weights,
    linear_attention_naive,
    linear_attention_weights,
    softmax_attention_naive,
    softmax_attention_weights,
)
from inline.utils.errors import UserError
from tests.analysis.fixed_weights import make_fixed, random_tokens, rows
from tests.models.families import FAMILIES, build

HW = (4, 5)
ALL = torch.ones(1, 1, 4, dtype=torch.bool)
KEPT = torch.tensor([[[True, False, False, True]]])


def test_division_uses_the_sum_of_the_remaining_keys() -> None:
    masked_rows = renormalize_by_division(rows([0.1, 0.2, 0.3, 0.4]), ALL, KEPT)
    torch.testing.assert_close(masked_rows, rows([0.2, 0, 0, 0.8]))


def test_subtraction_uses_mean_and_count_of_the_remaining_keys() -> None:
    """Scores s·q·k of 1, 2, 3, 6 have mean 3: w = (score − 3 + 1) / 4. The mean of 1 and 6 is 3.5."""
    before = rows([-1 / 4, 0, 1 / 4, 4 / 4])
    masked_rows = renormalize_by_subtraction(before, ALL, KEPT)
    torch.testing.assert_close(masked_rows, rows([(1 - 3.5 + 1) / 2, 0, 0, (6 - 3.5 + 1) / 2]))


@pytest.mark.parametrize('rule', [renormalize_by_division, renormalize_by_subtraction])
def test_weights_are_zero_without_keys(rule: Renormalize) -> None:
    weights = rule(rows([0.1, 0.2, 0.3, 0.4]), ALL, torch.zeros_like(ALL))
    assert weights.tolist() == rows([0, 0, 0, 0]).tolist()


@pytest.mark.parametrize(
    ('attention_weights', 'rule'),
    [
        (softmax_attention_weights, renormalize_by_division),
        (partial(linear_attention_weights, kernel='exp'), renormalize_by_division),
        (inline_attention_weights, renormalize_by_subtraction),
        (partial(inline_attention_weights, kernel='exp'), renormalize_by_subtraction),
    ],
)
def test_masked_weights_equal_those_of_attention_without_the_keys(
    attention_weights: Callable[..., Tensor], rule: Renormalize
) -> None:
    """Make each query a batch element: the key mask of the op then applies to a single query."""
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 3, 2, 7, 4, dtype=torch.float64, generator=generator).unbind()
    kept = torch.rand(3, 7, 7, generator=generator) < 0.6
    kept[:, :, 0] = True
    separate = attention_weights(
        q.transpose(1, 2).flatten(0, 1)[:, :, None],
        k.repeat_interleave(7, dim=0),
        key_mask=kept.flatten(0, 1),
    )
    expected = separate[:, :, 0].unflatten(0, (3, 7)).transpose(1, 2)
    found = rule(attention_weights(q, k), torch.ones_like(kept), kept)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


def attend(mixer: AttentionMixer, inputs: AttentionInputs, mask: Mask, max_weights: int = 10**6) -> Tensor:
    return attend_masked(Layer('1', 'block 1', mixer), mixer.attend, mask, 0, inputs, max_weights)


NAIVE = {
    'softmax': (lambda: SoftmaxMixer(8, 2), softmax_attention_naive),
    'inline': (lambda: InLineMixer(8, 2), inline_attention_naive),
    'linear': (lambda: LinearMixer(8, 2, kernel='exp'), partial(linear_attention_naive, kernel='exp')),
}


@pytest.mark.parametrize('prefix', [0, 1])
@pytest.mark.parametrize('side', [1, 3, 5])
@pytest.mark.parametrize('name', NAIVE)
def test_neighbors_are_masked(name: str, side: int, prefix: int) -> None:
    """Compare each query with naive attention over the keys outside its window, or zero if there are none."""
    torch.manual_seed(0)
    make, naive_attention = NAIVE[name]
    mixer = make().double()
    x = random_tokens(HW, prefix=prefix)
    (inputs,) = mixer.partition_inputs(x, HW)
    q, k, v = inputs.heads()
    expected = torch.zeros_like(inputs.v)
    for i in range(x.shape[1]):
        y0, x0 = (i - prefix) // HW[1], (i - prefix) % HW[1]
        far = [
            j
            for j in range(x.shape[1])
            if min(i, j) < prefix
            or max(abs((j - prefix) // HW[1] - y0), abs((j - prefix) % HW[1] - x0)) > side // 2
        ]
        if far:
            out = naive_attention(q[:, :, i : i + 1], k[:, :, far], v[:, :, far])
            expected[:, i] += out.transpose(1, 2).flatten(2)[:, 0]
    # Linear attention adds 1e-6 to its divisor, which shifts the weights slightly.
    atol = 1e-4 if name == 'linear' else 1e-11
    torch.testing.assert_close(attend(mixer, inputs, Mask(side)), expected, rtol=1e-9, atol=atol)


MIXERS = {
    'softmax shifted': lambda: SoftmaxMixer(8, 2, window_size=3, shift=True, relative_position=True),
    'softmax stripes': lambda: SoftmaxMixer(8, 2, split_size=2),
    'inline shifted': lambda: InLineMixer(8, 2, window_size=3, shift=True, residual=False),
    'inline not wrapped': lambda: InLineMixer(8, 2, window_size=3, shift=True, wrap=False, residual=False),
}


@pytest.mark.parametrize('name', MIXERS)
def test_neighbors_inside_windows_are_masked(name: str) -> None:
    """Compare each query of each window with the renormalisation computed from the key positions."""
    torch.manual_seed(0)
    mixer, x = MIXERS[name]().double(), random_tokens((5, 7))
    for inputs in mixer.partition_inputs(x, (5, 7)):
        weights, positions = mixer.weights(inputs), map_positions(inputs)
        keys = attended_keys(inputs, weights, slice(None))
        values = inputs.heads()[2]
        found = attend(mixer, inputs, Mask(3)).unflatten(-1, (inputs.num_heads, -1)).transpose(1, 2)
        for window in range(inputs.q.shape[0]):
            in_window = positions[window % inputs.windows.num_windows].tolist()
            for i, position in enumerate(in_window):
                if position == NO_POSITION:
                    continue
                seen = keys[window, i].nonzero().flatten().tolist()
                kept = [
                    j
                    for j in seen
                    if max(abs(in_window[j] // 7 - position // 7), abs(in_window[j] % 7 - position % 7)) > 1
                ]
                w = weights[window, :, i]
                if not kept:
                    new = torch.zeros_like(w[:, kept])
                elif isinstance(mixer, SoftmaxMixer):
                    new = w[:, kept] / w[:, kept].sum(dim=-1, keepdim=True)
                else:
                    scores = len(seen) * w[:, kept]
                    new = (scores - scores.mean(dim=-1, keepdim=True) + 1) / len(kept)
                expected = (new[:, None] @ values[window][:, kept])[:, 0]
                torch.testing.assert_close(found[window, :, i], expected, rtol=1e-9, atol=1e-11)


def test_sampled_keys_have_the_requested_count_and_are_candidates() -> None:
    candidates = torch.rand(4, 6, 10, generator=torch.Generator().manual_seed(0)) < 0.7
    counts = torch.minimum(candidates.sum(dim=-1), torch.arange(24).view(4, 6) % 5)
    generators = [torch.Generator().manual_seed(i) for i in range(2)]
    sampled = sample_keys(counts, candidates, generators)
    assert torch.equal(sampled.sum(dim=-1), counts)
    assert not (sampled & ~candidates).any()


def find_masked_keys(mixer: AttentionMixer, inputs: AttentionInputs, mask: Mask) -> Tensor:
    """Return the keys without weight for each query of one image (n, n), using unit vectors as values."""
    columns = []
    for j in range(inputs.k.shape[1]):
        v = torch.zeros_like(inputs.v)
        v[:, j] = 1
        columns.append(attend(mixer, replace(inputs, v=v), mask)[0, :, 0])
    return torch.stack(columns, dim=-1).abs() < 1e-12


def test_random_keys_match_the_number_of_neighbors_and_exclude_the_class_token() -> None:
    torch.manual_seed(0)
    mixer = SoftmaxMixer(8, 2).double()
    (inputs,) = mixer.partition_inputs(random_tokens(HW, prefix=1, images=1), HW)
    near, random = (find_masked_keys(mixer, inputs, Mask(3, is_random)) for is_random in (False, True))
    assert near.sum(dim=-1).tolist() == random.sum(dim=-1).tolist()
    assert near.sum(dim=-1).unique().tolist() == [0, 4, 6, 9]
    assert not random[:, 0].any()
    assert not torch.equal(near, random)


@pytest.mark.parametrize('random', [False, True])
@pytest.mark.parametrize('max_weights', [1, 900])
@pytest.mark.parametrize('name', MIXERS)
def test_masking_does_not_depend_on_the_chunk_size(name: str, max_weights: int, random: bool) -> None:
    torch.manual_seed(0)
    mixer = MIXERS[name]().double()
    for inputs in mixer.partition_inputs(random_tokens((5, 7)), (5, 7)):
        expected, chunked = (attend(mixer, inputs, Mask(3, random), size) for size in (10**6, max_weights))
        torch.testing.assert_close(chunked, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize('family', FAMILIES)
def test_masking_changes_a_model_only_inside_the_context(family: str) -> None:
    """Masks change the output. Random keys depend on the seed but not on the batch size."""
    torch.manual_seed(0)
    model = build(family).double().eval()
    layers = find_layers(model)
    if family == 'InLinePVT':
        assert {type(layer.mixer) for layer in layers} == {InLineMixer}
    images = torch.randn(2, 3, 64, 96, dtype=torch.float64)

    def output(mask: Mask | None, batch: Tensor, first: int = 0) -> Tensor:
        if mask is None:
            return model(batch)[-1]
        with masked_attention(layers, mask, first):
            return model(batch)[-1]

    with torch.no_grad():
        before = output(None, images)
        near, random = output(Mask(3), images), output(Mask(3, random=True), images)
        other = output(Mask(3, random=True, seed=1), images)
        second = output(Mask(3, random=True), images[1:], first=1)
        assert torch.equal(output(None, images), before)
    for a, b in ((near, before), (random, before), (random, near), (other, random)):
        assert not torch.allclose(a, b, rtol=0, atol=1e-9)
    torch.testing.assert_close(second, random[1:], rtol=0, atol=1e-10)


def test_unsupported_normalization_is_rejected() -> None:
    mixer, _ = make_fixed(torch.full((1, 1, 4, 4), 0.25), (2, 2))
    with pytest.raises(
        UserError,
        match='block 3 is a FixedWeightsMixer: masking is only defined for weights that are normalised by',
    ):
        check_maskable([Layer('3', 'block 3', mixer)])


def test_spatial_reduction_is_rejected_and_attention_restored() -> None:
    mixer = SoftmaxMixer(8, 2, sr_ratio=2).double()
    method = mixer.attend

    def run() -> None:
        with masked_attention([Layer('1', 'block 1', mixer)], Mask(3), 0):
            mixer(random_tokens((4, 4)), (4, 4))

    with pytest.raises(UserError, match='block 1 has 4 keys for 16 queries'):
        run()
    assert mixer.attend == method
