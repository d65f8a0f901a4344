"""cosFormer: linear attention with a relu kernel that prefers keys near the query.

For tokens at positions p of a sequence of length L,

    w_ij = s_ij / Σ_j s_ij,        s_ij = relu(q_i)·relu(k_j) · cos(π/2 · (p_i − p_j) / L)

The cosine of a difference is cos·cos + sin·sin, so the scores are products of features of 2d channels,
relu(x)·cos(a) beside relu(x)·sin(a) with a = π/2 · p / L, and the cost stays linear.

The published form is for sequences. A map is one row by row, which is how image models use it: p is a
token's place in that order and L = H·W. Near then means near along the rows. A prefix token (a class
token) has no place on the map. It stands in the middle of the sequence, where it sees every token with at
least cos(π/4); at its beginning it would hardly see the lower end of the image.

Reference: Qin, Sun, Deng, Li, Wei, Lv, Yan, Kong, Zhong, "cosFormer: Rethinking Softmax in Attention",
ICLR 2022, arXiv 2202.08791.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from inline.ops.features import divide, mean_score, weigh_values
from inline.ops.kernels import apply_kernel
from inline.ops.masking import count_keys, zero_masked
from inline.ops.places import ALL_QUERIES, count_along, count_prefix


def cosformer_attention(
    q: Tensor, k: Tensor, v: Tensor, hw: tuple[int, int], *, key_mask: Tensor | None = None
) -> Tensor:
    """Feature form, linear in the number of tokens.

    Args:
        q: Queries (B, heads, P + H·W, d): P prefix tokens, then the map row by row.
        k: Keys of the same tokens.
        v: Values (B, heads, P + H·W, e).
        hw: Height and width of the map.
        key_mask: (B, P + H·W), True for the keys that take part; None for all.

    Returns:
        (B, heads, P + H·W, e).
    """
    angles = sequence_angles(q, hw)
    phi_q = _turn(apply_kernel('relu', q), angles)
    phi_k = _turn(apply_kernel('relu', k, key_mask), angles)
    return divide(weigh_values(phi_q, phi_k, v, key_mask), mean_score(phi_q, phi_k, key_mask))


def cosformer_attention_naive(
    q: Tensor, k: Tensor, v: Tensor, hw: tuple[int, int], *, key_mask: Tensor | None = None
) -> Tensor:
    """The twin of :func:`cosformer_attention` with the N×N weights written out."""
    return cosformer_attention_weights(q, k, hw, key_mask=key_mask) @ zero_masked(v, key_mask)


def cosformer_attention_weights(
    q: Tensor,
    k: Tensor,
    hw: tuple[int, int],
    *,
    queries: slice = ALL_QUERIES,
    key_mask: Tensor | None = None,
) -> Tensor:
    """The weights of the chosen queries on every key, (B, heads, M, N); a masked key has weight 0."""
    angles = sequence_angles(q, hw)
    nearness = torch.cos(angles[queries, None] - angles[None, :]).to(q.dtype)
    phi_q, phi_k = F.relu(q[:, :, queries]), apply_kernel('relu', k, key_mask)
    scores = nearness * (phi_q @ phi_k.transpose(-2, -1)) / count_keys(k, key_mask)
    return divide(scores, scores.sum(dim=-1, keepdim=True))


def sequence_angles(x: Tensor, hw: tuple[int, int]) -> Tensor:
    """π/2 · p / L of each token of x (…, P + H·W, d), as (P + H·W)."""
    length = hw[0] * hw[1]
    places = count_along(length, x)
    middle = places.new_full((count_prefix(x.shape[-2], hw),), (length - 1) / 2)
    return torch.cat([middle, places]) * (math.pi / 2 / length)


def _turn(phi: Tensor, angles: Tensor) -> Tensor:
    """(…, N, d) → (…, N, 2d)."""
    cos, sin = (part.to(phi.dtype)[:, None] for part in (angles.cos(), angles.sin()))
    return torch.cat([phi * cos, phi * sin], dim=-1)
