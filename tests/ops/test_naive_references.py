"""Every fast op against its naive reference: outputs and gradients in float64."""

from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor

from inline.ops import (
    KERNELS,
    inline_attention,
    inline_attention_from_tokens,
    inline_attention_from_tokens_naive,
    inline_attention_naive,
    inline_attention_of_image,
    linear_attention,
    linear_attention_naive,
    local_residual,
    local_residual_naive,
    softmax_attention,
    softmax_attention_naive,
)
from inline.ops.kernels import Kernel

MAPS = [(1, 1), (3, 5), (6, 4)]


def assert_matches_reference(
    fast: Callable[..., Tensor], naive: Callable[..., Tensor], inputs: list[Tensor]
) -> None:
    """Compare outputs, and gradients of every input for a random cotangent."""
    results = []
    for op in (fast, naive):
        leaves = [x.clone().requires_grad_() for x in inputs]
        out = op(*leaves)
        cotangent = torch.randn(out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(1))
        results.append((out, *torch.autograd.grad(out, leaves, cotangent)))
    for left, right in zip(*results, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-10, atol=1e-12)


def make_qkv(batch: int, heads: int, tokens: int, dim: int = 4) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(batch, heads, tokens, dim, dtype=torch.float64) for _ in range(3)]


def make_mask(batch: int, tokens: int) -> Tensor:
    """Return a random key mask per image that keeps at least the first key."""
    mask = torch.rand(batch, tokens, generator=torch.Generator().manual_seed(2)) > 0.4
    mask[:, 0] = True
    return mask


@pytest.mark.parametrize('masked', [False, True])
@pytest.mark.parametrize('kernel', KERNELS)
@pytest.mark.parametrize(('batch', 'heads'), [(1, 1), (3, 2), (2, 5)])
@pytest.mark.parametrize(('hw', 'prefix'), list(product(MAPS, (0, 1, 2))))
def test_inline_attention(
    hw: tuple[int, int], prefix: int, batch: int, heads: int, kernel: str, masked: bool
) -> None:
    tokens = prefix + hw[0] * hw[1]
    mask = make_mask(batch, tokens) if masked else None
    assert_matches_reference(
        lambda *qkv: inline_attention(*qkv, kernel=kernel, key_mask=mask),
        lambda *qkv: inline_attention_naive(*qkv, kernel=kernel, key_mask=mask),
        make_qkv(batch, heads, tokens),
    )


@pytest.mark.parametrize('masked', [False, True])
def test_inline_attention_with_fewer_queries_than_keys(masked: bool) -> None:
    _, k, v = make_qkv(2, 3, 12)
    q = torch.randn(2, 3, 5, 4, dtype=torch.float64)
    mask = make_mask(2, 12) if masked else None
    assert_matches_reference(
        lambda *qkv: inline_attention(*qkv, scale=0.3, key_mask=mask),
        lambda *qkv: inline_attention_naive(*qkv, scale=0.3, key_mask=mask),
        [q, k, v],
    )


@pytest.mark.parametrize('biased', [False, True])
@pytest.mark.parametrize(('batch', 'heads', 'values'), [(1, 1, 6), (3, 2, 6), (2, 3, 3)])
@pytest.mark.parametrize(('hw', 'prefix'), list(product(MAPS, (0, 1))))
def test_inline_attention_from_tokens(
    hw: tuple[int, int], prefix: int, batch: int, heads: int, values: int, biased: bool
) -> None:
    """Includes gradients of weights and bias, and the channel subsets of stripes."""
    torch.manual_seed(0)
    tokens = prefix + hw[0] * hw[1]
    # Far from zero, so that a missing subtraction of the mean is noticed.
    x = torch.randn(batch, tokens, 6, dtype=torch.float64) + 3
    v = torch.randn(batch, tokens, values, dtype=torch.float64) - 2
    w_q, w_k = torch.randn(2, values, 6, dtype=torch.float64).unbind()
    bias = [torch.randn(values, dtype=torch.float64)] if biased else []
    assert_matches_reference(
        lambda *inputs: inline_attention_from_tokens(*inputs, num_heads=heads),
        lambda *inputs: inline_attention_from_tokens_naive(*inputs, num_heads=heads),
        [x, v, w_q, w_k, *bias],
    )


@pytest.mark.parametrize(('tokens', 'heads'), [(1, 1), (5, 1), (12, 3)])
def test_inline_attention_of_image(tokens: int, heads: int) -> None:
    torch.manual_seed(0)
    qkv = torch.randn(1, tokens, 3 * 6, dtype=torch.float64) + 3

    def naive(qkv: Tensor) -> Tensor:
        split = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in qkv.chunk(3, dim=-1))
        return inline_attention_naive(*split).transpose(1, 2).flatten(2)

    assert_matches_reference(lambda qkv: inline_attention_of_image(qkv, heads), naive, [qkv])


def test_key_bias_has_no_effect() -> None:
    """The token form relies on this."""
    q, k, v = make_qkv(2, 3, 12)
    shifted = k + torch.randn(2, 3, 1, 4, dtype=torch.float64)
    torch.testing.assert_close(inline_attention_naive(q, shifted, v), inline_attention_naive(q, k, v))


@pytest.mark.parametrize('masked', [False, True])
@pytest.mark.parametrize('kernel', [*KERNELS, torch.sigmoid])
def test_linear_attention(kernel: Kernel, masked: bool) -> None:
    mask = make_mask(2, 15) if masked else None
    assert_matches_reference(
        lambda *qkv: linear_attention(*qkv, kernel=kernel, key_mask=mask),
        lambda *qkv: linear_attention_naive(*qkv, kernel=kernel, key_mask=mask),
        make_qkv(2, 3, 15),
    )


@pytest.mark.parametrize('masked', [False, True])
@pytest.mark.parametrize('biased', [False, True])
def test_softmax_attention(biased: bool, masked: bool) -> None:
    mask = make_mask(2, 15) if masked else None
    bias = torch.randn(3, 15, 15, dtype=torch.float64) if biased else None
    if bias is not None:
        bias[:, 4:7, 2:9] = float('-inf')
    assert_matches_reference(
        lambda *qkv: softmax_attention(*qkv, key_mask=mask, bias=bias),
        lambda *qkv: softmax_attention_naive(*qkv, key_mask=mask, bias=bias),
        make_qkv(2, 3, 15),
    )


def test_softmax_bias_gets_gradients() -> None:
    q, k, v = make_qkv(2, 3, 6)
    assert_matches_reference(
        lambda bias: softmax_attention(q, k, v, bias=bias),
        lambda bias: softmax_attention_naive(q, k, v, bias=bias),
        [torch.randn(3, 6, 6, dtype=torch.float64)],
    )


@pytest.mark.parametrize('masked', [False, True])
@pytest.mark.parametrize('batch', [1, 3])
@pytest.mark.parametrize(('hw', 'prefix'), list(product([*MAPS, (2, 5)], (0, 1, 2))))
def test_local_residual(hw: tuple[int, int], prefix: int, batch: int, masked: bool) -> None:
    torch.manual_seed(0)
    tokens = prefix + hw[0] * hw[1]
    v = torch.randn(batch, tokens, 6, dtype=torch.float64)
    weight = torch.randn(batch, 6, 9, dtype=torch.float64)
    mask = make_mask(batch, tokens) if masked else None
    bias = torch.randn(6, dtype=torch.float64)
    assert_matches_reference(
        lambda v, w: local_residual(v, w, hw, key_mask=mask),
        lambda v, w: local_residual_naive(v, w, hw, key_mask=mask),
        [v, weight],
    )
    assert_matches_reference(
        lambda v, w, b: local_residual(v, w, hw, bias=b, key_mask=mask),
        lambda v, w, b: local_residual_naive(v, w, hw, bias=b, key_mask=mask),
        [v, weight, bias],
    )


@pytest.mark.parametrize('kernel', KERNELS)
@pytest.mark.parametrize(
    'op', [inline_attention, inline_attention_naive, linear_attention, linear_attention_naive]
)
def test_masked_keys_equal_a_shorter_sequence(op: Callable[..., Tensor], kernel: str) -> None:
    """Outputs and gradients do not depend on the values of masked keys, even NaN."""
    q, k, v = make_qkv(2, 2, 10)
    mask = torch.ones(2, 10, dtype=torch.bool)
    mask[:, 6:] = False
    dirty_k, dirty_v = k.clone(), v.clone()
    dirty_k[:, :, 6:], dirty_v[:, :, 6:] = float('nan'), float('nan')
    leaves = [x.requires_grad_() for x in (q, dirty_k, dirty_v)]
    out = op(*leaves, kernel=kernel, key_mask=mask)
    expected = op(q, k[:, :, :6], v[:, :, :6], kernel=kernel)
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
    for gradient in torch.autograd.grad(out.sum(), leaves):
        assert gradient.isfinite().all()


def test_local_residual_treats_masked_values_as_zero() -> None:
    v = torch.randn(1, 6, 2, dtype=torch.float64)
    weight = torch.randn(1, 2, 9, dtype=torch.float64)
    mask = torch.tensor([[True, True, False, True, True, False]])
    zeroed = v * mask[..., None]
    dirty = v.masked_fill(~mask[..., None], float('nan'))
    torch.testing.assert_close(
        local_residual(dirty, weight, (2, 3), key_mask=mask), local_residual(zeroed, weight, (2, 3))
    )
