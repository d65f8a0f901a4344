"""Efficient attention: separate softmaxes over queries and keys instead of one over their product.

With σ_q the softmax of a query over its d channels and σ_k the softmax of each channel over all keys,

    w_ij = σ_q(q_i)·σ_k(k)_j,        out = σ_q(q) (σ_k(k)ᵀ v)

The weights are positive and sum to 1 for every query; an image whose keys are all masked gets 0. The authors'
module adds its input to the result, which is the residual connection of the block here.

Reference: Shen, Zhang, Zhao, Yi, Li, "Efficient Attention: Attention with Linear Complexities", WACV 2021,
arXiv 1812.01243.
"""

import torch
from torch import Tensor

from inline.ops.tokens import full_precision, zero_masked


@full_precision
def efficient_attention(q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
    """Compute efficient attention with cost linear in the number of tokens.

    Args:
        q: Queries (B, heads, M, d).
        k: Keys (B, heads, N, d).
        v: Values (B, heads, N, e).
        key_mask: (B, N), True for the keys to attend to; None for all.

    Returns:
        (B, heads, M, e).
    """
    context = _key_softmax(k, key_mask).transpose(-2, -1) @ zero_masked(v, key_mask)
    return q.softmax(dim=-1) @ context


def efficient_attention_naive(q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
    """Naive reference of :func:`efficient_attention` with explicit M×N weights."""
    return efficient_attention_weights(q, k, key_mask=key_mask) @ zero_masked(v, key_mask)


def efficient_attention_weights(q: Tensor, k: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
    """Return the weight of every key for every query, (B, heads, M, N); a masked key has weight 0."""
    return q.softmax(dim=-1) @ _key_softmax(k, key_mask).transpose(-2, -1)


def _key_softmax(k: Tensor, key_mask: Tensor | None) -> Tensor:
    """Softmax of each channel over the unmasked keys, zero at masked ones."""
    if key_mask is None:
        return k.softmax(dim=-2)
    # The smallest finite number instead of −∞, so that an image without any key gets weights of 0, not NaN.
    scores = k.masked_fill(~key_mask[:, None, :, None], torch.finfo(k.dtype).min)
    return zero_masked(scores.softmax(dim=-2), key_mask)
