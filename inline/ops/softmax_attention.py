"""Softmax attention, the quadratic baseline.

Query q gives key j the weight

    w_j = exp(s · q·k_j + b_j) / Σ_i exp(s · q·k_i + b_i)

with s = d^(-1/2), and an optional bias b for relative positions or masked pairs.

Reference: Vaswani, Shazeer, Parmar, Uszkoreit, Jones, Gomez, Kaiser, Polosukhin, "Attention Is All You Need",
NeurIPS 2017, arXiv 1706.03762.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from inline.ops.tokens import is_transforming, zero_masked


def softmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    key_mask: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Compute softmax attention with PyTorch's fused kernel.

    Args:
        q: Queries (B, heads, M, d).
        k: Keys (B, heads, N, d).
        v: Values (B, heads, N, e).
        key_mask: (B, N), True for the keys to attend to; None for all.
        bias: Added to the scores; broadcasts to (B, heads, M, N). −∞ masks a pair.

    Returns:
        (B, heads, M, e).
    """
    if bias is not None and is_transforming():
        # Under vmap, PyTorch's fused kernels give a bias no gradient.
        return softmax_attention_naive(q, k, v, key_mask=key_mask, bias=bias)
    mask = bias
    if key_mask is not None:
        allowed = key_mask[:, None, None, :]
        mask = allowed if bias is None else torch.where(allowed, bias, float('-inf'))
    k, v = zero_masked(k, key_mask), zero_masked(v, key_mask)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    if torch.compiler.is_exporting():
        # The strides of the result depend on the kernel that PyTorch chooses, and exporters to other formats
        # may choose another one than the trace. A copy has the strides of the usual kernel.
        out = out.transpose(1, 2).clone(memory_format=torch.contiguous_format).transpose(1, 2)
    return out


def softmax_attention_naive(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    key_mask: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Naive reference of :func:`softmax_attention` with explicit M×N weights."""
    weights = softmax_attention_weights(q, k, key_mask=key_mask, bias=bias)
    return weights @ zero_masked(v, key_mask)


def softmax_attention_weights(
    q: Tensor,
    k: Tensor,
    *,
    key_mask: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Return the weight of every key for every query, (B, heads, M, N); a masked key has weight 0."""
    scores = q.shape[-1] ** -0.5 * q @ zero_masked(k, key_mask).transpose(-2, -1)
    if bias is not None:
        scores = scores + bias
    if key_mask is not None:
        scores = scores.masked_fill(~key_mask[:, None, None, :], float('-inf'))
    return scores.softmax(dim=-1)
