"""Four queries in one direction: linear attention cannot tell them apart, softmax and InLine can."""

from dataclasses import dataclass

import torch
from torch import Tensor

from inline.ops import inline_attention_weights, linear_attention_weights, softmax_attention_weights

LENGTHS = (1.0, 2.0, 3.0, 4.0)
DIRECTION = (0.8, 0.6)
KEYS = ((1.3, 0.2), (0.6, 1.1), (-0.1, 1.1), (-0.9, 0.4), (0.5, -0.9))
# relu is homogeneous: relu(t·q) = t·relu(q) for t > 0, and t is divided away.
KINDS = {
    'linear': lambda q, k: linear_attention_weights(q, k, kernel='relu'),
    'softmax': softmax_attention_weights,
    'InLine': inline_attention_weights,
}


@dataclass(frozen=True)
class Illustration:
    """Queries (4, 2), keys (5, 2), and for each kind of attention the weights (4, 5)."""

    queries: Tensor
    keys: Tensor
    weights: dict[str, Tensor]


def illustrate() -> Illustration:
    queries = torch.tensor(LENGTHS, dtype=torch.float64)[:, None] * torch.tensor(DIRECTION)
    keys = torch.tensor(KEYS, dtype=torch.float64)
    weights = {name: weigh(queries[None, None], keys[None, None])[0, 0] for name, weigh in KINDS.items()}
    return Illustration(queries, keys, weights)


def largest_difference(weights: Tensor) -> float:
    """The largest L2 distance between the weights of two queries."""
    return float(torch.cdist(weights, weights, compute_mode='donot_use_mm_for_euclid_dist').max())
