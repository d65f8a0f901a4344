"""Injectivity: the number of query pairs with nearly identical attention weights.

Two queries of an image collide in a head if the L2 distance of their weights is below a tolerance, 1e-3 as
in the paper. With windows, only queries of the same window are compared, because only they share their keys.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from inline.analysis.layers import MAX_WEIGHTS, count_images, query_chunks, valid_queries
from inline.models.mixers import AttentionMixer
from inline.models.mixers.base import AttentionInputs
from inline.ops import inline_attention_weights, linear_attention_weights, softmax_attention_weights

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


QUERY_LENGTHS = (1.0, 2.0, 3.0, 4.0)
_DIRECTION = (0.8, 0.6)
_KEYS = ((1.3, 0.2), (0.6, 1.1), (-0.1, 1.1), (-0.9, 0.4), (0.5, -0.9))
ATTENTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    # relu is homogeneous: relu(t·q) = t·relu(q) for t > 0, and the division cancels t.
    'linear': lambda q, k: linear_attention_weights(q, k, kernel='relu'),
    'softmax': softmax_attention_weights,
    'InLine': inline_attention_weights,
}


@dataclass(frozen=True)
class CollinearQueries:
    """Queries of one direction and different lengths, and their weights under three attention mechanisms.

    Args:
        queries: (4, 2).
        keys: (5, 2).
        weights: Attention weights (4, 5) by name of the attention.
    """

    queries: Tensor
    keys: Tensor
    weights: dict[str, Tensor]


def make_collinear_queries() -> CollinearQueries:
    """Compute the paper's example: linear attention cannot distinguish collinear queries, the others can."""
    queries = torch.tensor(QUERY_LENGTHS, dtype=torch.float64)[:, None] * torch.tensor(_DIRECTION)
    keys = torch.tensor(_KEYS, dtype=torch.float64)
    weights = {
        name: attention_weights(queries[None, None], keys[None, None])[0, 0]
        for name, attention_weights in ATTENTIONS.items()
    }
    return CollinearQueries(queries, keys, weights)


def max_distance(weights: Tensor) -> float:
    """Return the largest L2 distance between two rows of weights (queries, keys)."""
    return float(torch.cdist(weights, weights, compute_mode='donot_use_mm_for_euclid_dist').max())
