"""InLine's mixer by both of its ways: through queries and keys, and without them where tokens are many."""

from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from inline.models.mixers import InLineMixer
from inline.ops import inline_attention_naive, local_residual_naive

HW = (6, 12)
# 72 tokens, 36 in a window, 18 or 36 in a stripe: enough for 8 channels each.
FAST: dict[str, dict[str, Any]] = {
    'whole map': {},
    'no bias': {'qkv_bias': False},
    'windows': {'window_size': 6},
    'stripes': {'split_size': 3, 'lepe': True},
    'position term': {'lepe': True},
    'no residual': {'residual': False},
}
# Through queries and keys, whatever the number of tokens.
SLOW: dict[str, dict[str, Any]] = {
    'relu': {'kernel': 'relu'},
    'divided': {'injective': False, 'kernel': 'elu'},
    'padded windows': {'window_size': 5},
}


def make(**options: Any) -> InLineMixer:
    torch.manual_seed(0)
    mixer = InLineMixer(8, 2, **options).double()
    for parameter in mixer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return mixer


def tokens(hw: tuple[int, int] = HW, prefix: int = 0) -> Tensor:
    shape = (2, prefix + hw[0] * hw[1], 8)
    return 1 + torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def naive_forward(mixer: InLineMixer, x: Tensor, hw: tuple[int, int]) -> Tensor:
    """All weights written out, and neighbours one by one; queries and keys are made from the start."""
    q, k, v = mixer.qkv(x).chunk(3, dim=-1)
    kinds = mixer.regions(x, hw)
    width = x.shape[-1] // len(kinds)
    outs = []
    for i, regions in enumerate(kinds):
        channels = slice(i * width, (i + 1) * width)
        heads = mixer.num_heads // len(kinds)
        cut = [regions.cut(t[..., channels]) for t in (q, k, v)]
        own = [t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in cut]
        out = inline_attention_naive(*own).transpose(1, 2).flatten(2)
        if mixer.residual is not None:
            kernels = mixer.residual(regions.cut(x).mean(dim=1))[:, channels]
            local = local_residual_naive(cut[2], kernels, regions.window)
            out = out + F.pad(local, (0, 0, out.shape[1] - local.shape[1], 0))
        if mixer.lepe is not None:
            lepe = mixer.lepe(cut[2], regions.window, channels)
            out = out + F.pad(lepe, (0, 0, out.shape[1] - lepe.shape[1], 0))
        outs.append(regions.join(out))
    return mixer.proj(torch.cat(outs, dim=-1))


@pytest.mark.parametrize('prefix', [0, 1])
@pytest.mark.parametrize('kind', FAST)
@pytest.mark.parametrize('hw', [HW, (12, 6), (1, 3)])
def test_outputs_and_gradients_are_those_of_the_naive_twins(
    hw: tuple[int, int], kind: str, prefix: int
) -> None:
    """On maps of many tokens and of few, which go different ways."""
    mixer = make(**FAST[kind])
    whole = mixer.window_size is None and mixer.split_size is None
    results = []
    for forward in (mixer, lambda *args: naive_forward(mixer, *args)):
        x = tokens(hw, prefix if whole else 0).requires_grad_()
        out = forward(x, hw)
        cotangent = torch.randn(out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(2))
        results.append((out, *torch.autograd.grad(out, [x, *mixer.parameters()], cotangent)))
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize('kind', [*FAST, *SLOW])
def test_queries_and_keys_are_made_only_where_they_are_needed(kind: str) -> None:
    mixer = make(**{**FAST, **SLOW}[kind])
    asked = []
    for part in mixer.parts(tokens(), HW):
        counted = replace(part, make_qk=lambda part=part: asked.append(1) or part.make_qk())
        mixer.attend(counted)
        mixer.local(counted)
    assert bool(asked) == (kind in SLOW)


@pytest.mark.parametrize(('hw', 'prefix'), [(HW, 0), (HW, 1), ((2, 3), 0)])
def test_the_values_of_a_part_may_be_others(hw: tuple[int, int], prefix: int) -> None:
    """What attends applies its weights to the values that it is given, whether it needs keys or not."""
    mixer = make()
    (part,) = mixer.parts(tokens(hw, prefix), hw)
    other = replace(part, v=torch.randn_like(part.v))
    expected = (mixer.weights(part) @ other.heads()[2]).transpose(1, 2).flatten(2)
    torch.testing.assert_close(mixer.attend(other), expected, rtol=1e-10, atol=1e-12)


def test_an_attend_in_its_place_is_not_passed_by() -> None:
    """That is how masking changes the attention of a model."""
    mixer, x = make(residual=False), tokens()
    with mock.patch.object(mixer, 'attend', lambda part: torch.zeros_like(part.v)):
        torch.testing.assert_close(mixer(x, HW), mixer.proj.bias.expand_as(x))


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
@pytest.mark.parametrize('kernel', ['identity', 'relu'])
def test_half_precision_on_a_large_image(kernel: str, dtype: torch.dtype) -> None:
    """65,536 tokens are an image of 1024×1024 at stride 4; a sum over them would overflow float16."""
    torch.manual_seed(0)
    mixer, hw = InLineMixer(16, 2, kernel=kernel), (256, 256)
    # Means as large as the spread, at which a difference of rounded products would be wrong.
    x = 2 * torch.randn(1, hw[0] * hw[1], 16) + 2
    with torch.no_grad():
        exact = mixer(x, hw)
        with torch.autocast('cpu', dtype):
            (part,) = mixer.parts(x, hw)
            attended, out = mixer.attend(part).float(), mixer(x, hw).float()
        (part,) = mixer.parts(x, hw)
        exact_attended = mixer.attend(part)
    for ours, expected in ((out, exact), (attended, exact_attended)):
        assert ours.isfinite().all()
        assert (ours - expected).norm() <= 1e-2 * expected.norm()
