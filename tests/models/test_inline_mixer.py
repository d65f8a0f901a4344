"""The InLine mixer on both code paths: with queries and keys, and from the tokens where they are many."""

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
# 72 tokens, 36 per window, 18 or 36 per stripe: enough for the fast path with 8 channels.
FAST: dict[str, dict[str, Any]] = {
    'whole map': {},
    'no bias': {'qkv_bias': False},
    'windows': {'window_size': 6},
    'stripes': {'split_size': 3, 'lepe': True},
    'position term': {'lepe': True},
    'no residual': {'residual': False},
}
# These need queries and keys for any number of tokens.
SLOW: dict[str, dict[str, Any]] = {
    'relu': {'kernel': 'relu'},
    'division': {'injective': False, 'kernel': 'elu'},
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
    """Compute the mixer with the naive ops, from explicit queries and keys."""
    q, k, v = mixer.qkv(x).chunk(3, dim=-1)
    partitions = mixer.window_partitions(x, hw)
    width = x.shape[-1] // len(partitions)
    outs = []
    for i, windows in enumerate(partitions):
        channels = slice(i * width, (i + 1) * width)
        heads = mixer.num_heads // len(partitions)
        own = [windows.partition(t[..., channels]) for t in (q, k, v)]
        qkv = [t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in own]
        out = inline_attention_naive(*qkv).transpose(1, 2).flatten(2)
        if mixer.residual is not None:
            kernels = mixer.residual(windows.partition(x).mean(dim=1))[:, channels]
            local = local_residual_naive(own[2], kernels, windows.window)
            out = out + F.pad(local, (0, 0, out.shape[1] - local.shape[1], 0))
        if mixer.lepe is not None:
            lepe = mixer.lepe(own[2], windows.window, channels)
            out = out + F.pad(lepe, (0, 0, out.shape[1] - lepe.shape[1], 0))
        outs.append(windows.reverse(out))
    return mixer.proj(torch.cat(outs, dim=-1))


@pytest.mark.parametrize('prefix', [0, 1])
@pytest.mark.parametrize('kind', FAST)
@pytest.mark.parametrize('hw', [HW, (12, 6), (1, 3)])
def test_outputs_and_gradients_match_the_naive_ops(hw: tuple[int, int], kind: str, prefix: int) -> None:
    """On maps with many and with few tokens, which take different code paths."""
    mixer = make(**FAST[kind])
    full_map = mixer.window_size is None and mixer.split_size is None
    results = []
    for forward in (mixer, lambda *args: naive_forward(mixer, *args)):
        x = tokens(hw, prefix if full_map else 0).requires_grad_()
        out = forward(x, hw)
        cotangent = torch.randn(out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(2))
        results.append((out, *torch.autograd.grad(out, [x, *mixer.parameters()], cotangent)))
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize('kind', [*FAST, *SLOW])
def test_queries_and_keys_are_computed_only_where_needed(kind: str) -> None:
    mixer = make(**{**FAST, **SLOW}[kind])
    calls = []
    for inputs in mixer.partition_inputs(tokens(), HW):
        counted = replace(inputs, make_qk=lambda inputs=inputs: calls.append(1) or inputs.make_qk())
        mixer.attend(counted)
        mixer.local(counted)
    assert bool(calls) == (kind in SLOW)


@pytest.mark.parametrize(('hw', 'prefix'), [(HW, 0), (HW, 1), ((2, 3), 0)])
def test_attend_applies_the_weights_to_replaced_values(hw: tuple[int, int], prefix: int) -> None:
    """On both code paths, attend() uses the values of its inputs."""
    mixer = make()
    (inputs,) = mixer.partition_inputs(tokens(hw, prefix), hw)
    other = replace(inputs, v=torch.randn_like(inputs.v))
    expected = (mixer.weights(inputs) @ other.heads()[2]).transpose(1, 2).flatten(2)
    torch.testing.assert_close(mixer.attend(other), expected, rtol=1e-10, atol=1e-12)


def test_instance_level_attend_is_used() -> None:
    """Masked analysis replaces attend() this way."""
    mixer, x = make(residual=False), tokens()
    with mock.patch.object(mixer, 'attend', lambda inputs: torch.zeros_like(inputs.v)):
        torch.testing.assert_close(mixer(x, HW), mixer.proj.bias.expand_as(x))


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
@pytest.mark.parametrize('kernel', ['identity', 'relu'])
def test_half_precision_on_a_large_image(kernel: str, dtype: torch.dtype) -> None:
    """65,536 tokens are an image of 1024×1024 at stride 4; a sum over them would overflow float16."""
    torch.manual_seed(0)
    mixer, hw = InLineMixer(16, 2, kernel=kernel), (256, 256)
    # Means as large as the spread, where a difference of rounded products would be inaccurate.
    x = 2 * torch.randn(1, hw[0] * hw[1], 16) + 2
    with torch.no_grad():
        exact = mixer(x, hw)
        with torch.autocast('cpu', dtype):
            (inputs,) = mixer.partition_inputs(x, hw)
            attended, out = mixer.attend(inputs).float(), mixer(x, hw).float()
        (inputs,) = mixer.partition_inputs(x, hw)
        exact_attended = mixer.attend(inputs)
    for ours, expected in ((out, exact), (attended, exact_attended)):
        assert ours.isfinite().all()
        assert (ours - expected).norm() <= 1e-2 * expected.norm()
