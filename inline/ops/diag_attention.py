"""TransNormer's DiagAttention: softmax attention within blocks of consecutive tokens.

The sequence is split into blocks of w tokens, and a query attends to the keys of its own block only:

    w_ij = exp(s · q_i·k_j) / Σ_l exp(s · q_i·k_l)        j, l in the block of i, s = d^(-1/2)

which costs O(N·w·d) per head. The last block may be shorter. A map is a sequence in row-major order, and
prefix tokens (such as a class token) are at its start, so they see the first block only. TransNormer has
DiagAttention in the first half of its layers, and :mod:`inline.ops.transnormer_attention` in the second half.
This is the form of the variant T2; T1 has a relu instead of the softmax.

Reference: Qin, Han, Sun, Li, Kong, Barnes, Zhong, "The Devil in Linear Transformer", EMNLP 2022,
arXiv 2210.10340.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from inline.ops.softmax_attention import softmax_attention
from inline.ops.symint import ceil_div, is_symbolic
from inline.ops.tokens import ALL_QUERIES, zero_masked


def diag_attention(
    q: Tensor, k: Tensor, v: Tensor, *, block_size: int = 64, key_mask: Tensor | None = None
) -> Tensor:
    """Compute DiagAttention with cost linear in the number of tokens.

    Args:
        q: Queries (B, heads, N, d).
        k: Keys of the same tokens.
        v: Values (B, heads, N, e).
        block_size: w.
        key_mask: (B, N), True for the keys to attend to; None for all. Queries of a block without any key
            get 0.

    Returns:
        (B, heads, N, e).
    """
    batch, _, tokens, _ = q.shape
    if is_symbolic(tokens):
        # Always padded: torch.export would specialise on whether there is padding.
        size, blocks = block_size, tokens // block_size + 1
    else:
        size = min(tokens, block_size)
        blocks = ceil_div(tokens, size)
    padding = blocks * size - tokens
    if is_symbolic(tokens) or padding:
        q, k, v = (F.pad(x, (0, 0, 0, padding)) for x in (q, k, v))
        if key_mask is None:
            key_mask = torch.ones(batch, tokens, dtype=torch.bool, device=q.device)
    if key_mask is not None:
        key_mask = F.pad(key_mask, (0, padding)).view(batch * blocks, size)
    q, k, v = (x.unflatten(2, (blocks, size)).transpose(1, 2).flatten(0, 1) for x in (q, k, v))
    out = softmax_attention(q, k, v, key_mask=key_mask)
    return out.unflatten(0, (batch, blocks)).transpose(1, 2).flatten(2, 3)[:, :, :tokens]


def diag_attention_naive(
    q: Tensor, k: Tensor, v: Tensor, *, block_size: int = 64, key_mask: Tensor | None = None
) -> Tensor:
    """Naive reference of :func:`diag_attention` with explicit N×N weights."""
    return diag_attention_weights(q, k, block_size=block_size, key_mask=key_mask) @ zero_masked(v, key_mask)


def diag_attention_weights(
    q: Tensor,
    k: Tensor,
    *,
    block_size: int = 64,
    queries: slice = ALL_QUERIES,
    key_mask: Tensor | None = None,
) -> Tensor:
    """Return the weight of every key for the selected queries, (B, heads, M, N); 0 outside of the block."""
    block = torch.arange(k.shape[-2], device=k.device) // block_size
    allowed = (block[queries, None] == block[None, :])[None, None]
    if key_mask is not None:
        allowed = allowed & key_mask[:, None, None, :]
    scores = q.shape[-1] ** -0.5 * q[:, :, queries] @ zero_masked(k, key_mask).transpose(-2, -1)
    scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
    return scores.softmax(dim=-1).masked_fill(~allowed, 0)
