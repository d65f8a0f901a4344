"""MLLA's linear attention: rotary positions in the numerator only.

With φ(x) = elu(x) + 1 and R_p the rotation for place p,

    w_ij = R_{p_i} φ(q_i) · R_{p_j} φ(k_j) / Σ_j φ(q_i)·φ(k_j)

The divisor stays positive because nothing is rotated there; the weights need not sum to 1. Channels are
rotated in pairs, 2c and 2c + 1 as the two coordinates of a point: the pairs of the first half of a
token's C channels by row · θ, those of the second half by column · θ, with θ_c = 10000^(−c / K) and
K = C/4 pairs in each half. That is over all heads together, as in the authors' model, so that heads differ
in axis and frequency. Channels that are left over if C is no multiple of 4 are not rotated, and neither
are prefix tokens (a class token). Any rectangular map will do.

Reference: Han, Wang, Xia, Han, Pu, Ge, Song, Song, Zheng, Huang, "Demystify Mamba in Vision: A Linear
Attention Perspective", NeurIPS 2024, arXiv 2405.16605.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from inline.ops.features import divide, mean_score, weigh_values
from inline.ops.kernels import apply_kernel
from inline.ops.masking import count_keys, zero_masked
from inline.ops.places import ALL_QUERIES, count_along, count_prefix

BASE = 10000


def mlla_attention(
    q: Tensor, k: Tensor, v: Tensor, hw: tuple[int, int], *, key_mask: Tensor | None = None
) -> Tensor:
    """Linear in the number of tokens.

    Args:
        q: Queries (B, heads, P + H·W, d): P prefix tokens, then the map row by row.
        k: Keys of the same tokens.
        v: Values (B, heads, P + H·W, e).
        hw: Height and width of the map.
        key_mask: (B, P + H·W), True for the keys that take part; None for all.

    Returns:
        (B, heads, P + H·W, e).
    """
    phi_q, phi_k = apply_kernel('elu', q), apply_kernel('elu', k, key_mask)
    attended = weigh_values(rotate(phi_q, hw), rotate(phi_k, hw), v, key_mask)
    return divide(attended, mean_score(phi_q, phi_k, key_mask))


def mlla_attention_naive(
    q: Tensor, k: Tensor, v: Tensor, hw: tuple[int, int], *, key_mask: Tensor | None = None
) -> Tensor:
    """The twin of :func:`mlla_attention` that turns every query by its offset to every key."""
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
            places = [0.0] * prefix + [float(divmod(i, hw[1])[axis]) for i in range(hw[0] * hw[1])]
            place = torch.tensor(places, dtype=torch.float64)
            angle = (place[:, None] - place[None, :]) * BASE ** (-step / pairs)
            # This coordinate of the query after the turn to the key's place.
            other = points[0][channel ^ 1][..., None]
            sign = 1 if channel % 2 else -1
            turned = qc * angle.cos().to(q) + sign * other * angle.sin().to(q)
            total = total + turned * kc.transpose(1, 2)
        scores.append(total)
    weights = torch.stack(scores, dim=1) / count_keys(k, key_mask)
    plain = phi_q @ phi_k.transpose(-2, -1) / count_keys(k, key_mask)
    return divide(weights, plain.sum(dim=-1, keepdim=True)) @ zero_masked(v, key_mask)


def mlla_attention_weights(
    q: Tensor,
    k: Tensor,
    hw: tuple[int, int],
    *,
    queries: slice = ALL_QUERIES,
    key_mask: Tensor | None = None,
) -> Tensor:
    """The weights of the chosen queries on every key, (B, heads, M, N); a masked key has weight 0."""
    phi_q, phi_k = apply_kernel('elu', q), apply_kernel('elu', k, key_mask)
    scores = rotate(phi_q, hw)[:, :, queries] @ rotate(phi_k, hw).transpose(-2, -1)
    return divide(scores / count_keys(k, key_mask), mean_score(phi_q[:, :, queries], phi_k, key_mask))


def rotate(x: Tensor, hw: tuple[int, int]) -> Tensor:
    """R_p x for x (B, heads, P + H·W, d)."""
    tokens = x.transpose(1, 2).flatten(2)
    angles = rotary_angles(tokens, hw)
    cos, sin = (part.to(x.dtype) for part in (angles.cos(), angles.sin()))
    points, rest = tokens.split([2 * angles.shape[-1], tokens.shape[-1] - 2 * angles.shape[-1]], dim=-1)
    first, second = points.unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack([first * cos - second * sin, first * sin + second * cos], dim=-1).flatten(-2)
    return torch.cat([turned, rest], dim=-1).unflatten(-1, (x.shape[1], -1)).transpose(1, 2)


def rotary_angles(x: Tensor, hw: tuple[int, int]) -> Tensor:
    """The angle of each pair of channels of x (B, P + H·W, C), as (P + H·W, 2K); 0 at the prefix."""
    pairs = x.shape[-1] // 4
    thetas = BASE ** (-count_along(pairs, x) / max(pairs, 1))
    rows, columns = (count_along(side, x)[:, None] * thetas for side in hw)
    angles = torch.cat([rows[:, None].expand(-1, hw[1], -1), columns.expand(hw[0], -1, -1)], dim=-1)
    return F.pad(angles.flatten(0, 1), (0, 0, count_prefix(x.shape[1], hw), 0))
