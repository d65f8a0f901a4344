"""cosFormer: linear attention with a relu kernel and a cosine weight that favours nearby keys.

For tokens at positions p of a sequence of length L,

    w_ij = s_ij / max(Σ_j s_ij, 1e-6),        s_ij = relu(q_i)·relu(k_j) · cos(π/2 · (p_i − p_j) / L)

cos(a − b) = cos a cos b + sin a sin b, so the scores are dot products of features with 2d channels,
relu(x)·cos(a) and relu(x)·sin(a) with a = π/2 · p / L, and the cost stays linear.

The paper defines it for sequences and has no two-dimensional form. Here a map is a sequence in row-major
order: p is the index of a token and L = H·W, so the neighbour in the next row is W steps away. A prefix token
(such as a class token) has no position on the map. It is placed in the middle of the sequence, where its
weight for every token is at least cos(π/4); at the start it would hardly attend to the bottom of the image.

Reference: Qin, Sun, Deng, Li, Wei, Lv, Yan, Kong, Zhong, "cosFormer: Rethinking Softmax in Attention",
ICLR 2022, arXiv 2202.08791.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from inline.ops.kernels import apply_kernel, kernel_attention, mean_score
from inline.ops.tokens import (
    ALL_QUERIES,
    count_keys,
    count_prefix,
    full_precision,
    position_indices,
    zero_masked,
)

# Smallest sum of scores; value from the authors' code.
EPSILON = 1e-6


@full_precision
def cosformer_attention(
    q: Tensor, k: Tensor, v: Tensor, hw: tuple[int, int], *, key_mask: Tensor | None = None
) -> Tensor:
    """Compute cosFormer attention with cost linear in the number of tokens.

    Args:
        q: Queries (B, heads, P + H·W, d): P prefix tokens, then the map in row-major order.
        k: Keys of the same tokens.
        v: Values (B, heads, P + H·W, e).
        hw: Height and width of the map.
        key_mask: (B, P + H·W), True for the keys to attend to; None for all.

    Returns:
        (B, heads, P + H·W, e).
    """
    angles = sequence_angles(q, hw)
    phi_q = _add_positions(apply_kernel('relu', q), angles)
    phi_k = _add_positions(apply_kernel('relu', k, key_mask), angles)
    attended, score = kernel_attention(phi_q, phi_k, v, key_mask), mean_score(phi_q, phi_k, key_mask)
    # Both are means over the keys, and the limit applies to the sum.
    return attended / score.clamp(min=EPSILON / count_keys(k, key_mask))


def cosformer_attention_naive(
    q: Tensor, k: Tensor, v: Tensor, hw: tuple[int, int], *, key_mask: Tensor | None = None
) -> Tensor:
    """Naive reference of :func:`cosformer_attention` with explicit N×N weights."""
    return cosformer_attention_weights(q, k, hw, key_mask=key_mask) @ zero_masked(v, key_mask)


def cosformer_attention_weights(
    q: Tensor,
    k: Tensor,
    hw: tuple[int, int],
    *,
    queries: slice = ALL_QUERIES,
    key_mask: Tensor | None = None,
) -> Tensor:
    """Return the weight of every key for the selected queries, (B, heads, M, N); 0 for masked keys."""
    angles = sequence_angles(q, hw)
    proximity = torch.cos(angles[queries, None] - angles[None, :]).to(q.dtype)
    phi_q, phi_k = F.relu(q[:, :, queries]), apply_kernel('relu', k, key_mask)
    scores = proximity * (phi_q @ phi_k.transpose(-2, -1))
    return scores / scores.sum(dim=-1, keepdim=True).clamp(min=EPSILON)


def sequence_angles(x: Tensor, hw: tuple[int, int]) -> Tensor:
    """Return π/2 · p / L for each token of x (…, P + H·W, d), as (P + H·W)."""
    length = hw[0] * hw[1]
    positions = position_indices(length, x)
    middle = positions.new_full((count_prefix(x.shape[-2], hw),), (length - 1) / 2)
    return torch.cat([middle, positions]) * (math.pi / 2 / length)


def _add_positions(phi: Tensor, angles: Tensor) -> Tensor:
    """(…, N, d) → (…, N, 2d)."""
    cos, sin = (t.to(phi.dtype)[:, None] for t in (angles.cos(), angles.sin()))
    return torch.cat([phi * cos, phi * sin], dim=-1)
