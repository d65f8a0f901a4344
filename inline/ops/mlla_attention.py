"""MLLA's linear attention: rotary positions in the numerator only.

With φ(x) = elu(x) + 1 and R_p the rotation for position p,

    w_ij = R_{p_i} φ(q_i) · R_{p_j} φ(k_j) / Σ_j φ(q_i)·φ(k_j)

The divisor is not rotated, so it stays positive; the weights need not sum to 1. Channels 2c and 2c + 1 are
rotated as a pair: pairs in the first half of a token's C channels by row · θ, pairs in the second half by
column · θ, with θ_c = 10000^(−c / K) and K = C/4 pairs per half. As in the authors' model the pairs run over
all heads together, so heads differ in axis and frequency. If C is not a multiple of 4, the remaining channels
are not rotated; nor are prefix tokens (such as a class token).

Reference: Han, Wang, Xia, Han, Pu, Ge, Song, Song, Zheng, Huang, "Demystify Mamba in Vision: A Linear
Attention Perspective", NeurIPS 2024, arXiv 2405.16605.
"""

import torch
from torch import Tensor

from inline.ops.kernels import apply_kernel, divide_by_score, kernel_attention, mean_score
from inline.ops.rotary import BASE, map_angles, rotate_pairs
from inline.ops.tokens import (
    ALL_QUERIES,
    count_keys,
    count_prefix,
    full_precision,
    position_indices,
    zero_masked,
)


@full_precision
def mlla_attention(
    q: Tensor, k: Tensor, v: Tensor, hw: tuple[int, int], *, key_mask: Tensor | None = None
) -> Tensor:
    """Compute MLLA attention with cost linear in the number of tokens.

    Args:
        q: Queries (B, heads, P + H·W, d): P prefix tokens, then the map in row-major order.
        k: Keys of the same tokens.
        v: Values (B, heads, P + H·W, e).
        hw: Height and width of the map.
        key_mask: (B, P + H·W), True for the keys to attend to; None for all.

    Returns:
        (B, heads, P + H·W, e).
    """
    phi_q, phi_k = apply_kernel('elu', q), apply_kernel('elu', k, key_mask)
    attended = kernel_attention(rotate(phi_q, hw), rotate(phi_k, hw), v, key_mask)
    return divide_by_score(attended, mean_score(phi_q, phi_k, key_mask))


def mlla_attention_naive(
    q: Tensor, k: Tensor, v: Tensor, hw: tuple[int, int], *, key_mask: Tensor | None = None
) -> Tensor:
    """Naive reference of :func:`mlla_attention` that rotates every query by its offset to every key."""
    batch, heads, tokens, dim = q.shape
    prefix, pairs = count_prefix(tokens, hw), heads * dim // 4
    phi_q, phi_k = apply_kernel('elu', q), apply_kernel('elu', k, key_mask)
    points = [phi.transpose(1, 2).flatten(2).unbind(-1) for phi in (phi_q, phi_k)]
    scores = []
    for head in range(heads):
        total = q.new_zeros(batch, tokens, tokens)
        for channel in range(head * dim, (head + 1) * dim):
            qc, kc = (point[channel][..., None] for point in points)
            if channel >= 4 * pairs:
                total = total + qc * kc.transpose(1, 2)
                continue
            axis, step = divmod(channel // 2, pairs)
            coordinates = [0.0] * prefix + [float(divmod(i, hw[1])[axis]) for i in range(hw[0] * hw[1])]
            position = torch.tensor(coordinates, dtype=torch.float64)
            angle = (position[:, None] - position[None, :]) * BASE ** (-step / pairs)
            # This channel of the query after rotation to the key's position.
            other = points[0][channel ^ 1][..., None]
            sign = 1 if channel % 2 else -1
            rotated = qc * angle.cos().to(q) + sign * other * angle.sin().to(q)
            total = total + rotated * kc.transpose(1, 2)
        scores.append(total)
    weights = torch.stack(scores, dim=1) / count_keys(k, key_mask)
    plain = phi_q @ phi_k.transpose(-2, -1) / count_keys(k, key_mask)
    return divide_by_score(weights, plain.sum(dim=-1, keepdim=True)) @ zero_masked(v, key_mask)


def mlla_attention_weights(
    q: Tensor,
    k: Tensor,
    hw: tuple[int, int],
    *,
    queries: slice = ALL_QUERIES,
    key_mask: Tensor | None = None,
) -> Tensor:
    """Return the weight of every key for the selected queries, (B, heads, M, N); 0 for masked keys."""
    phi_q, phi_k = apply_kernel('elu', q), apply_kernel('elu', k, key_mask)
    scores = rotate(phi_q, hw)[:, :, queries] @ rotate(phi_k, hw).transpose(-2, -1)
    return divide_by_score(
        scores / count_keys(k, key_mask), mean_score(phi_q[:, :, queries], phi_k, key_mask)
    )


def rotate(x: Tensor, hw: tuple[int, int]) -> Tensor:
    """Return R_p x for x (B, heads, P + H·W, d)."""
    tokens = x.transpose(1, 2).flatten(2)
    pairs = tokens.shape[-1] // 4
    thetas = BASE ** (-position_indices(pairs, x) / max(pairs, 1))
    rotated = rotate_pairs(tokens, map_angles(thetas, hw, tokens.shape[1]))
    return rotated.unflatten(-1, (x.shape[1], -1)).transpose(1, 2)
