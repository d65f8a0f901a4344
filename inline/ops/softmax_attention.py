"""Softmax attention, the quadratic baseline: w = softmax(s · q·k)."""

import torch.nn.functional as F
from torch import Tensor

from inline.ops.masking import zero_masked


def softmax_attention(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, key_mask: Tensor | None = None
) -> Tensor:
    """Fused form, for q (B, heads, M, d), k (B, heads, N, d), v (B, heads, N, e)."""
    mask = None if key_mask is None else key_mask[:, None, None, :]
    k, v = zero_masked(k, key_mask), zero_masked(v, key_mask)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)


def softmax_attention_naive(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, key_mask: Tensor | None = None
) -> Tensor:
    """The twin of :func:`softmax_attention` with the M×N weights written out."""
    weights = softmax_attention_weights(q, k, scale=scale, key_mask=key_mask)
    return weights @ zero_masked(v, key_mask)


def softmax_attention_weights(
    q: Tensor, k: Tensor, *, scale: float | None = None, key_mask: Tensor | None = None
) -> Tensor:
    """The weights of every query on every key, (B, heads, M, N); a masked key has weight 0."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = scale * q @ zero_masked(k, key_mask).transpose(-2, -1)
    if key_mask is not None:
        scores = scores.masked_fill(~key_mask[:, None, None, :], float('-inf'))
    return scores.softmax(dim=-1)
