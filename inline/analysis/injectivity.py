"""Injectivity: the number of query pairs with nearly identical attention weights.

Two queries of an image collide in a head if the L2 distance of their weights is below a tolerance, 1e-3 as
in the paper. With windows, only queries of the same window are compared, because only they share their keys.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from inline.analysis.layers import MAX_WEIGHTS, count_images, query_chunks, valid_queries
from inline.models.mixers import AttentionMixer
from inline.models.mixers.base import AttentionInputs

TOLERANCE = 1e-3


def layer_collisions(
    mixer: AttentionMixer,
    inputs_list: Sequence[AttentionInputs],
    tolerance: float = TOLERANCE,
    max_weights: int = MAX_WEIGHTS,
) -> tuple[Tensor, Tensor]:
    """Return the number of colliding pairs and of all pairs per image and head, each (images, heads)."""
    collisions = [count_collisions(mixer, inputs, tolerance, max_weights) for inputs in inputs_list]
    pairs = [count_pairs(inputs)[:, None].expand(-1, inputs.num_heads) for inputs in inputs_list]
    return torch.cat(collisions, dim=1), torch.cat(pairs, dim=1)


def count_collisions(
    mixer: AttentionMixer,
    inputs: AttentionInputs,
    tolerance: float = TOLERANCE,
    max_weights: int = MAX_WEIGHTS,
) -> Tensor:
    """Return the number of colliding pairs per image and head, (images, heads)."""
    windows, heads = inputs.q.shape[0], inputs.num_heads
    valid = valid_queries(inputs)
    # Two chunks are in memory at a time.
    chunks = list(query_chunks(inputs, max_weights // 2))
    total = torch.zeros(windows, heads, dtype=torch.long, device=inputs.q.device)
    for i, first in enumerate(chunks):
        first_weights = mixer.weights(inputs, first).double()
        for second in chunks[i:]:
            second_weights = first_weights if second == first else mixer.weights(inputs, second).double()
            close = close_pairs(first_weights.flatten(0, 1), second_weights.flatten(0, 1), tolerance)
            close = close.unflatten(0, (windows, heads))
            close &= (valid[:, first, None] & valid[:, None, second])[:, None]
            if second == first:
                close = close.triu(diagonal=1)
            total += close.sum(dim=(2, 3))
    return total.unflatten(0, (count_images(inputs), -1)).sum(dim=1)


def close_pairs(a: Tensor, b: Tensor, tolerance: float) -> Tensor:
    """Return whether |a_i − b_j| < tolerance for rows a (R, m, N) and b (R, n, N) in float64, as (R, m, n).

    Squared distances come from a matrix product, which is ten times as fast as explicit differences. Pairs
    whose result could be changed by rounding are recomputed from the differences.
    """
    # Centring shortens the rows and thereby reduces the rounding error.
    center = a.mean(dim=1, keepdim=True)
    a, b = a - center, b - center
    a_norm, b_norm = a.norm(dim=-1)[:, :, None], b.norm(dim=-1)[:, None, :]
    squared = a_norm**2 + b_norm**2 - 2 * (a @ b.transpose(1, 2))
    error_bound = 4 * a.shape[-1] * torch.finfo(a.dtype).eps * (a_norm + b_norm) ** 2
    close = squared < tolerance**2
    uncertain = ((squared - tolerance**2).abs() <= error_bound).nonzero()
    for chunk in uncertain.split(max(MAX_WEIGHTS // a.shape[-1], 1)):
        r, i, j = chunk.unbind(dim=1)
        close[r, i, j] = (a[r, i] - b[r, j]).norm(dim=-1) < tolerance
    return close


def count_pairs(inputs: AttentionInputs) -> Tensor:
    """Return the number of query pairs within the same window per image, (images,)."""
    queries = valid_queries(inputs).sum(dim=1).unflatten(0, (count_images(inputs), -1))
    return (queries * (queries - 1) // 2).sum(dim=1)


def max_distance(weights: Tensor) -> float:
    """Return the largest L2 distance between two rows of weights (queries, keys)."""
    return float(torch.cdist(weights, weights, compute_mode='donot_use_mm_for_euclid_dist').max())
