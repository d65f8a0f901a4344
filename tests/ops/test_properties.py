"""Properties from the paper, and small examples computed by hand."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inline.ops import (
    KERNELS,
    apply_kernel,
    inline_attention,
    inline_attention_weights,
    linear_attention,
    linear_attention_weights,
    local_residual,
)
from inline.ops.tokens import masked_mean


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@settings(deadline=None, max_examples=60)
@given(
    kernel=st.sampled_from(sorted(KERNELS)),
    tokens=st.integers(1, 30),
    dim=st.integers(1, 8),
    spread=st.floats(0.01, 100),
    masked=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_inline_weights_sum_to_one(
    kernel: str, tokens: int, dim: int, spread: float, masked: bool, seed: int
) -> None:
    spread = min(spread, 10) if kernel == 'exp' else spread
    q, k = spread * randn(2, 2, 5, dim, seed=seed), spread * randn(2, 2, tokens, dim, seed=seed + 1)
    mask = None
    if masked:
        mask = randn(2, tokens, seed=seed + 2) > 0
        mask[:, 0] = True
    weights = inline_attention_weights(q, k, kernel=kernel, key_mask=mask)
    scale = weights.abs().sum(dim=-1).clamp(min=1)
    assert ((weights.sum(dim=-1) - 1).abs() <= 1e-10 * scale).all()


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**31), distance=st.floats(1e-3, 1e3))
def test_inline_attention_is_injective(seed: int, distance: float) -> None:
    """With the identity kernel and keys that span the space, any two queries get different weights."""
    keys = randn(1, 1, 16, 4, seed=seed)
    query = randn(4, seed=seed + 1)
    step = randn(4, seed=seed + 2)
    other = query + distance * step / step.norm()
    weights = inline_attention_weights(torch.stack([query, other])[None, None], keys)[0, 0]
    centered = keys[0, 0] - keys[0, 0].mean(dim=0)
    smallest = torch.linalg.svdvals(centered)[-1] * 4**-0.5 / 16
    assert (weights[0] - weights[1]).norm() >= 0.99 * smallest * distance > 0


@pytest.mark.parametrize('factor', [0.5, 2.0, 10.0])
def test_collinear_queries_get_equal_weights_only_in_plain_linear_attention(factor: float) -> None:
    query, keys = randn(1, 1, 1, 4).abs(), randn(1, 1, 9, 4, seed=1).abs()
    pair = torch.cat([query, factor * query], dim=2)
    plain = linear_attention_weights(pair, keys, kernel='relu')[0, 0]
    torch.testing.assert_close(plain[0], plain[1], rtol=1e-5, atol=1e-7)
    ours = inline_attention_weights(pair, keys, kernel='relu')[0, 0]
    assert (ours[0] - ours[1]).abs().max() > 1e-3


def test_identity_kernel_is_invariant_to_a_shift_of_all_keys() -> None:
    q, k, v = (randn(2, 3, 12, 4, seed=i) for i in range(3))
    shift = 5 * randn(1, 1, 1, 4, seed=9)
    torch.testing.assert_close(inline_attention(q, k + shift, v), inline_attention(q, k, v))
    torch.testing.assert_close(inline_attention_weights(q, k + shift), inline_attention_weights(q, k))


def test_inline_attention_is_invariant_to_the_order_of_keys() -> None:
    q, k, v = (randn(1, 2, 10, 4, seed=i) for i in range(3))
    order = torch.randperm(10, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(inline_attention(q, k[:, :, order], v[:, :, order]), inline_attention(q, k, v))


def test_inline_attention_by_hand() -> None:
    """Two keys 1 and 3 (mean 2), values 10 and 20, query 2, d = 1, s = 1:

    w = (2·1 − 2·2 + 1)/2, (2·3 − 2·2 + 1)/2 = −1/2, 3/2, so the output is −5 + 30 = 25.
    """
    q, k, v = (
        torch.tensor(x, dtype=torch.float64).view(1, 1, -1, 1) for x in ([2.0], [1.0, 3.0], [10.0, 20.0])
    )
    assert inline_attention_weights(q, k).flatten().tolist() == [-0.5, 1.5]
    assert inline_attention(q, k, v).item() == pytest.approx(25)


def test_linear_attention_by_hand() -> None:
    """Keys 1 and 3, values 10 and 20, query 2: scores 2 and 6, so weights 1/4 and 3/4 and 17.5."""
    q, k, v = (
        torch.tensor(x, dtype=torch.float64).view(1, 1, -1, 1) for x in ([2.0], [1.0, 3.0], [10.0, 20.0])
    )
    assert linear_attention_weights(q, k).flatten().tolist() == pytest.approx([0.25, 0.75], rel=1e-5)
    assert linear_attention(q, k, v).item() == pytest.approx(17.5, rel=1e-5)


@pytest.mark.parametrize('kernel', ['identity', 'leaky_relu'])
@pytest.mark.parametrize('second', [1.0, 1.0 + 1e-9, 3.0])
def test_scores_with_zero_or_negative_sum_give_finite_weights(kernel: str, second: float) -> None:
    """Two keys of opposite sign, with a sum of 0, slightly below or far below."""
    q = torch.tensor([1.0]).double().view(1, 1, 1, 1).requires_grad_()
    slope = 1.0 if kernel == 'identity' else 100.0
    k = torch.tensor([1.0, -second * slope]).double().view(1, 1, 2, 1)
    out = linear_attention(q, k, k, kernel=kernel)
    assert out.isfinite().all()
    assert torch.autograd.grad(out.sum(), q)[0].isfinite().all()
    if second == 3:
        # Scores 1 and −3: weights −1/2 and 3/2.
        weights = linear_attention_weights(q, k, kernel=kernel).flatten().tolist()
        assert weights == pytest.approx([-0.5, 1.5], rel=1e-5)


def test_local_residual_by_hand() -> None:
    """A 2×3 map with values 1..6 and a class token; the kernel adds the right and the lower neighbour."""
    v = torch.tensor([100.0, 1, 2, 3, 4, 5, 6]).view(1, 7, 1)
    weight = torch.zeros(1, 1, 9)
    weight[0, 0, 5], weight[0, 0, 7] = 1, 10
    right = [2, 3, 0, 5, 6, 0]
    below = [4, 5, 6, 0, 0, 0]
    expected = [r + 10 * b for r, b in zip(right, below, strict=True)]
    assert local_residual(v, weight, (2, 3)).flatten().tolist() == expected


def test_kernels_by_hand() -> None:
    x = torch.tensor([-1.0, 2.0])
    assert apply_kernel('identity', x[None, :, None]).flatten().tolist() == [-1, 2]
    assert apply_kernel('relu', x[None, :, None]).flatten().tolist() == [0, 2]
    assert apply_kernel('leaky_relu', x[None, :, None]).flatten().tolist() == pytest.approx([-0.01, 2])
    assert apply_kernel('exp', x[None, :, None]).flatten().tolist() == pytest.approx([0.818731, 1.491825])
    assert apply_kernel('elu', x[None, :, None]).flatten().tolist() == pytest.approx([0.3678794, 3])


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
@pytest.mark.parametrize('op', [inline_attention, linear_attention])
def test_half_precision_stays_finite_over_many_keys(
    op: Callable[..., torch.Tensor], dtype: torch.dtype
) -> None:
    q, k, v = (3 * randn(1, 1, 65536, 8, seed=i).float() for i in range(3))
    exact = op(q, k, v)
    half = op(q.to(dtype), k.to(dtype), v.to(dtype)).float()
    assert (half - exact).norm() <= 2e-2 * exact.norm()


@pytest.mark.parametrize('op', [inline_attention, linear_attention])
def test_key_mask_with_more_keys_than_float16_can_count(op: Callable[..., torch.Tensor]) -> None:
    q, k, v = (3 * randn(1, 1, 70_000, 8, seed=i).float() for i in range(3))
    mask = torch.ones(1, 70_000, dtype=torch.bool)
    mask[:, -5:] = False
    exact = op(q, k, v + 3, key_mask=mask)
    half = op(q.half(), k.half(), v.half() + 3, key_mask=mask).float()
    assert (half - exact).norm() <= 2e-2 * exact.norm()


def test_masked_mean_does_not_overflow_float16() -> None:
    x = torch.full((1, 4096, 2), 30.0, dtype=torch.float16)
    mask = torch.arange(4096)[None] < 4000
    assert masked_mean(x, None).tolist() == masked_mean(x, mask).tolist() == [[[30.0, 30.0]]]


def test_invalid_arguments() -> None:
    q = randn(1, 1, 4, 2)
    with pytest.raises(ValueError, match=r"unknown kernel 'cos'.*identity, relu, leaky_relu, exp"):
        inline_attention(q, q, q, kernel='cos')
    with pytest.raises(ValueError, match='5 tokens cannot hold a map of 2×3'):
        local_residual(randn(1, 5, 2), randn(1, 2, 9), (2, 3))
