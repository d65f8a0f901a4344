"""Masked attention on four tokens by hand, and against attention over the keys that are left."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from inline.analysis.layers import Layer, find_layers
from inline.analysis.masking import (
    Mask,
    check_maskable,
    divide_by_rest,
    draw_keys,
    masked,
    masked_attend,
    subtract_mean_of_rest,
)
from inline.analysis.places import NOWHERE, attended_keys, places
from inline.errors import UserError
from inline.models import InLineDeiT
from inline.models.mixers import AttentionMixer, InLineMixer, LinearMixer, SoftmaxMixer
from inline.models.mixers.base import Part
from inline.ops import (
    inline_attention_naive,
    inline_attention_weights,
    linear_attention_naive,
    linear_attention_weights,
    softmax_attention_naive,
    softmax_attention_weights,
)
from tests.analysis.stand_ins import rows, tokens, written
from tests.models.families import FAMILIES, build

HW = (4, 5)
ALL = torch.ones(1, 1, 4, dtype=torch.bool)
KEPT = torch.tensor([[[True, False, False, True]]])


def test_softmax_divides_by_what_is_left() -> None:
    masked_rows = divide_by_rest(rows([0.1, 0.2, 0.3, 0.4]), ALL, KEPT)
    torch.testing.assert_close(masked_rows, rows([0.2, 0, 0, 0.8]))


def test_inline_takes_mean_and_count_of_what_is_left() -> None:
    """Scores s·q·k of 1, 2, 3, 6 have mean 3: w = (score − 3 + 1) / 4. Of 1 and 6 the mean is 3.5."""
    before = rows([-1 / 4, 0, 1 / 4, 4 / 4])
    masked_rows = subtract_mean_of_rest(before, ALL, KEPT)
    torch.testing.assert_close(masked_rows, rows([(1 - 3.5 + 1) / 2, 0, 0, (6 - 3.5 + 1) / 2]))


@pytest.mark.parametrize('rule', [divide_by_rest, subtract_mean_of_rest])
def test_without_keys_there_are_no_weights(rule: object) -> None:
    assert callable(rule)
    left = rule(rows([0.1, 0.2, 0.3, 0.4]), ALL, torch.zeros_like(ALL))
    assert left.tolist() == rows([0, 0, 0, 0]).tolist()


@pytest.mark.parametrize(
    ('weigh', 'rule'),
    [
        (softmax_attention_weights, divide_by_rest),
        (partial(linear_attention_weights, kernel='exp'), divide_by_rest),
        (inline_attention_weights, subtract_mean_of_rest),
        (partial(inline_attention_weights, kernel='exp'), subtract_mean_of_rest),
    ],
)
def test_masked_weights_are_those_of_attention_that_never_had_the_keys(weigh: object, rule: object) -> None:
    """Every query as an image of its own, so that the op's mask of keys is the query's."""
    assert callable(weigh)
    assert callable(rule)
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 3, 2, 7, 4, dtype=torch.float64, generator=generator).unbind()
    kept = torch.rand(3, 7, 7, generator=generator) < 0.6
    kept[:, :, 0] = True
    one_by_one = weigh(
        q.transpose(1, 2).flatten(0, 1)[:, :, None],
        k.repeat_interleave(7, dim=0),
        key_mask=kept.flatten(0, 1),
    )
    expected = one_by_one[:, :, 0].unflatten(0, (3, 7)).transpose(1, 2)
    found = rule(weigh(q, k), torch.ones_like(kept), kept)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


def run(mixer: AttentionMixer, part: Part, mask: Mask, max_weights: int = 10**6) -> Tensor:
    def seeds(images: int) -> list[torch.Generator]:
        return [torch.Generator().manual_seed(i) for i in range(images)]

    return masked_attend(Layer('1', 'block 1', mixer), mixer.attend, mask, seeds, part, max_weights)


NAIVE = {
    'softmax': (lambda: SoftmaxMixer(8, 2), softmax_attention_naive),
    'inline': (lambda: InLineMixer(8, 2), inline_attention_naive),
    'linear': (lambda: LinearMixer(8, 2, kernel='exp'), partial(linear_attention_naive, kernel='exp')),
}


@pytest.mark.parametrize('prefix', [0, 1])
@pytest.mark.parametrize('side', [1, 3, 5])
@pytest.mark.parametrize('kind', NAIVE)
def test_near_keys_are_left_out(kind: str, side: int, prefix: int) -> None:
    """Query by query, naive attention over the keys outside its window, nothing if there are none."""
    torch.manual_seed(0)
    make, attend = NAIVE[kind]
    mixer = make().double()
    x = tokens(HW, prefix=prefix)
    (part,) = mixer.parts(x, HW)
    q, k, v = part.heads()
    expected = torch.zeros_like(part.v)
    for i in range(x.shape[1]):
        y0, x0 = (i - prefix) // HW[1], (i - prefix) % HW[1]
        far = [
            j
            for j in range(x.shape[1])
            if min(i, j) < prefix
            or max(abs((j - prefix) // HW[1] - y0), abs((j - prefix) % HW[1] - x0)) > side // 2
        ]
        if far:
            out = attend(q[:, :, i : i + 1], k[:, :, far], v[:, :, far])
            expected[:, i] += out.transpose(1, 2).flatten(2)[:, 0]
    # Division by a mean that is kept away from zero by 1e-6 shifts linear weights by as little.
    atol = 1e-4 if kind == 'linear' else 1e-11
    torch.testing.assert_close(run(mixer, part, Mask(side)), expected, rtol=1e-9, atol=atol)


MIXERS = {
    'softmax shifted': lambda: SoftmaxMixer(8, 2, window_size=3, shift=True, relative_position=True),
    'softmax stripes': lambda: SoftmaxMixer(8, 2, split_size=2),
    'inline shifted': lambda: InLineMixer(8, 2, window_size=3, shift=True, residual=False),
    'inline cut off': lambda: InLineMixer(8, 2, window_size=3, shift=True, wrap=False, residual=False),
}


@pytest.mark.parametrize('kind', MIXERS)
def test_in_windows_the_neighbours_of_the_window_are_left_out(kind: str) -> None:
    """The same renormalisation, region by region and query by query, by the places of the keys."""
    torch.manual_seed(0)
    mixer, x = MIXERS[kind]().double(), tokens((5, 7))
    for part in mixer.parts(x, (5, 7)):
        weights, where = mixer.weights(part), places(part)
        keys = attended_keys(part, weights, slice(None))
        values = part.heads()[2]
        found = run(mixer, part, Mask(3)).unflatten(-1, (part.num_heads, -1)).transpose(1, 2)
        for region in range(part.q.shape[0]):
            own = where[region % part.regions.count].tolist()
            for i, place in enumerate(own):
                if place == NOWHERE:
                    continue
                seen = keys[region, i].nonzero().flatten().tolist()
                left = [
                    j for j in seen if max(abs(own[j] // 7 - place // 7), abs(own[j] % 7 - place % 7)) > 1
                ]
                w = weights[region, :, i]
                if not left:
                    new = torch.zeros_like(w[:, left])
                elif isinstance(mixer, SoftmaxMixer):
                    new = w[:, left] / w[:, left].sum(dim=-1, keepdim=True)
                else:
                    scores = len(seen) * w[:, left]
                    new = (scores - scores.mean(dim=-1, keepdim=True) + 1) / len(left)
                expected = (new[:, None] @ values[region][:, left])[:, 0]
                torch.testing.assert_close(found[region, :, i], expected, rtol=1e-9, atol=1e-11)


def test_random_keys_are_as_many_as_asked_and_only_candidates() -> None:
    candidates = torch.rand(4, 6, 10, generator=torch.Generator().manual_seed(0)) < 0.7
    counts = torch.minimum(candidates.sum(dim=-1), torch.arange(24).view(4, 6) % 5)
    generators = [torch.Generator().manual_seed(i) for i in range(2)]
    drawn = draw_keys(counts, candidates, generators)
    assert torch.equal(drawn.sum(dim=-1), counts)
    assert not (drawn & ~candidates).any()


def denied_keys(mixer: AttentionMixer, part: Part, mask: Mask) -> Tensor:
    """Which keys of each query (n, n) of one image have no weight, found by values that are unit vectors."""
    columns = []
    for j in range(part.k.shape[1]):
        v = torch.zeros_like(part.v)
        v[:, j] = 1
        one = replace(part, v=v)
        columns.append(run(mixer, one, mask)[0, :, 0])
    return torch.stack(columns, dim=-1).abs() < 1e-12


def test_random_keys_are_as_many_as_the_near_ones_and_never_the_class_token() -> None:
    torch.manual_seed(0)
    mixer = SoftmaxMixer(8, 2).double()
    (part,) = mixer.parts(tokens(HW, prefix=1, images=1), HW)
    near, random = (denied_keys(mixer, part, Mask(3, is_random)) for is_random in (False, True))
    assert near.sum(dim=-1).tolist() == random.sum(dim=-1).tolist()
    assert near.sum(dim=-1).unique().tolist() == [0, 4, 6, 9]
    assert not random[:, 0].any()
    assert not torch.equal(near, random)


@pytest.mark.parametrize('random', [False, True])
@pytest.mark.parametrize('max_weights', [1, 900])
@pytest.mark.parametrize('kind', MIXERS)
def test_blocks_of_any_size_mask_the_same(kind: str, max_weights: int, random: bool) -> None:
    torch.manual_seed(0)
    mixer = MIXERS[kind]().double()
    for part in mixer.parts(tokens((5, 7)), (5, 7)):
        whole, blocks = (run(mixer, part, Mask(3, random), size) for size in (10**6, max_weights))
        torch.testing.assert_close(blocks, whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize('family', FAMILIES)
def test_a_model_runs_masked_and_is_itself_again(family: str) -> None:
    """Masks move every family's output; batches of any size draw the same; another seed draws others."""
    torch.manual_seed(0)
    model = build(family).double().eval()
    layers = find_layers(model)
    if family == 'InLinePVT':
        assert {type(layer.mixer) for layer in layers} == {InLineMixer}
    images = torch.randn(2, 3, 64, 96, dtype=torch.float64)

    def output(mask: Mask | None, batch: Tensor, first: int = 0) -> Tensor:
        if mask is None:
            return model(batch)[-1]
        with masked(layers, mask, first):
            return model(batch)[-1]

    with torch.no_grad():
        before = output(None, images)
        near, random = output(Mask(3), images), output(Mask(3, random=True), images)
        other = output(Mask(3, random=True, seed=1), images)
        second = output(Mask(3, random=True), images[1:], first=1)
        assert torch.equal(output(None, images), before)
    for one, another in ((near, before), (random, before), (random, near), (other, random)):
        assert not torch.allclose(one, another, rtol=0, atol=1e-9)
    torch.testing.assert_close(second, random[1:], rtol=0, atol=1e-10)


def test_what_cannot_be_masked_is_told() -> None:
    mixer, _ = written(torch.full((1, 1, 4, 4), 0.25), (2, 2))
    with pytest.raises(
        UserError, match='block 3 is a WrittenMixer: masking is defined for weights that are normalised by'
    ):
        check_maskable([Layer('3', 'block 3', mixer)])
    reduced = SoftmaxMixer(8, 2, sr_ratio=2).double()
    (part,) = reduced.parts(tokens((4, 4)), (4, 4))
    with pytest.raises(UserError, match='block 1 has 4 keys for 16 queries'):
        run(reduced, part, Mask(3))


def test_layers_have_names_to_read_and_keys_to_type() -> None:
    names = {layer.key: layer.name for layer in find_layers(build('InLineSwin'))}
    assert list(names)[:3] == ['1.1', '1.2', '2.1']
    assert names['4.2'] == 'stage 4 block 2'
    deit = InLineDeiT({'embed_dims': 16, 'depth': 2, 'num_heads': 2})
    assert [(layer.key, layer.name) for layer in find_layers(deit)] == [('1', 'block 1'), ('2', 'block 2')]
