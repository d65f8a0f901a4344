"""Rotary positions on a map: pairs of channels turn by the row or the column of their token.

A rotation by angles that are linear in the position keeps norms, and products of rotated queries and keys
depend only on the offset between both tokens. Prefix tokens (such as a class token) are not rotated.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from inline.ops.tokens import count_prefix, position_indices

BASE = 10000


def rotate_pairs(x: Tensor, angles: Tensor) -> Tensor:
    """Rotate channels 2m and 2m + 1 of x (…, N, c) as a pair by angles[:, m], (N, pairs).

    Channels after the last pair are not rotated.
    """
    cos, sin = (t.to(x.dtype) for t in (angles.cos(), angles.sin()))
    points, rest = x.split([2 * angles.shape[-1], x.shape[-1] - 2 * angles.shape[-1]], dim=-1)
    first, second = points.unflatten(-1, (-1, 2)).unbind(-1)
    rotated = torch.stack([first * cos - second * sin, first * sin + second * cos], dim=-1).flatten(-2)
    return torch.cat([rotated, rest], dim=-1)


def map_angles(thetas: Tensor, hw: tuple[int, int], num_tokens: int) -> Tensor:
    """Return row · θ, then column · θ, for K frequencies θ and each of P + H·W tokens, (P + H·W, 2K)."""
    rows, columns = (position_indices(side, thetas)[:, None] * thetas for side in hw)
    angles = torch.cat([rows[:, None].expand(-1, hw[1], -1), columns.expand(hw[0], -1, -1)], dim=-1)
    return F.pad(angles.flatten(0, 1), (0, 0, count_prefix(num_tokens, hw), 0))


def rotate_heads(x: Tensor, hw: tuple[int, int]) -> Tensor:
    """Rotate each head of x (B, heads, P + H·W, d) in the same way, as RALA and MALA do.

    With K = d // 4, the first K pairs of a head turn by row · θ and the next K by column · θ, where
    θ_m = 10000^(−m / (K − 1)): the exponents run from 0 to 1 inclusive. If d is not a multiple of 4, the
    remaining channels are not rotated.
    """
    pairs = x.shape[-1] // 4
    thetas = BASE ** (-position_indices(pairs, x) / max(pairs - 1, 1))
    return rotate_pairs(x, map_angles(thetas, hw, x.shape[-2]))


def rotate_heads_naive(x: Tensor, hw: tuple[int, int]) -> Tensor:
    """Naive reference of :func:`rotate_heads` with an explicit d×d rotation matrix for each token."""
    tokens, dim = x.shape[-2:]
    prefix, pairs = count_prefix(tokens, hw), dim // 4
    matrices = torch.eye(dim, dtype=torch.float64).repeat(tokens, 1, 1)
    for token in range(prefix, tokens):
        for pair in range(2 * pairs):
            axis, step = divmod(pair, pairs)
            position = divmod(token - prefix, hw[1])[axis]
            angle = position * BASE ** (-step / (pairs - 1) if pairs > 1 else 0)
            turn = torch.tensor(
                [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]], dtype=torch.float64
            )
            matrices[token, 2 * pair : 2 * pair + 2, 2 * pair : 2 * pair + 2] = turn
    return (matrices.to(x) @ x.unsqueeze(-1)).squeeze(-1)
