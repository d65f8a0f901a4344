"""Injectivity: how many pairs of queries get nearly the same attention weights.

Two queries of an image collide in a head if their rows of weights differ by less than a tolerance in L2
norm, 1e-3 as in the paper. Within windows only queries of the same window are compared: others have other
keys.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from inline.analysis.places import MAX_WEIGHTS, count_images, query_blocks, valid_queries
from inline.models.mixers import AttentionMixer
from inline.models.mixers.base import Part

TOLERANCE = 1e-3


def layer_collisions(
    mixer: AttentionMixer,
    parts: Sequence[Part],
    tolerance: float = TOLERANCE,
    max_weights: int = MAX_WEIGHTS,
) -> tuple[Tensor, Tensor]:
    """Colliding pairs of each image and head, and how many pairs there are, (images, heads) each."""
    collisions = [part_collisions(mixer, part, tolerance, max_weights) for part in parts]
    pairs = [count_pairs(part)[:, None].expand(-1, part.num_heads) for part in parts]
    return torch.cat(collisions, dim=1), torch.cat(pairs, dim=1)


def part_collisions(
    mixer: AttentionMixer, part: Part, tolerance: float = TOLERANCE, max_weights: int = MAX_WEIGHTS
) -> Tensor:
    """Colliding pairs of each image and head, (images, heads)."""
    regions, heads = part.q.shape[0], part.num_heads
    valid = valid_queries(part)
    # Rows of one block against rows of another: each holds half of what may be held.
    blocks = list(query_blocks(part, max_weights // 2))
    total = torch.zeros(regions, heads, dtype=torch.long, device=part.q.device)
    for i, first in enumerate(blocks):
        rows = mixer.weights(part, first).double()
        for second in blocks[i:]:
            others = rows if second == first else mixer.weights(part, second).double()
            close = close_pairs(rows.flatten(0, 1), others.flatten(0, 1), tolerance)
            close = close.unflatten(0, (regions, heads))
            close &= (valid[:, first, None] & valid[:, None, second])[:, None]
            if second == first:
                close = close.triu(diagonal=1)
            total += close.sum(dim=(2, 3))
    return total.unflatten(0, (count_images(part), -1)).sum(dim=1)


def close_pairs(a: Tensor, b: Tensor, tolerance: float) -> Tensor:
    """Whether |a_i − b_j| < tolerance for rows a (R, m, N) and b (R, n, N) in float64, as (R, m, n).

    The squared distances come from a matrix product, which is ten times as fast as differences. Where its
    rounding could change the answer the differences themselves decide.
    """
    # Near their common mean, rows are short, and so is the rounding.
    centre = a.mean(dim=1, keepdim=True)
    a, b = a - centre, b - centre
    a_norm, b_norm = a.norm(dim=-1)[:, :, None], b.norm(dim=-1)[:, None, :]
    squared = a_norm**2 + b_norm**2 - 2 * (a @ b.transpose(1, 2))
    doubt = 4 * a.shape[-1] * torch.finfo(a.dtype).eps * (a_norm + b_norm) ** 2
    close = squared < tolerance**2
    unsure = ((squared - tolerance**2).abs() <= doubt).nonzero()
    for some in unsure.split(max(MAX_WEIGHTS // a.shape[-1], 1)):
        r, i, j = some.unbind(dim=1)
        close[r, i, j] = (a[r, i] - b[r, j]).norm(dim=-1) < tolerance
    return close


def count_pairs(part: Part) -> Tensor:
    """Pairs of queries of the same region in each image, (images,)."""
    queries = valid_queries(part).sum(dim=1).unflatten(0, (count_images(part), -1))
    return (queries * (queries - 1) // 2).sum(dim=1)
