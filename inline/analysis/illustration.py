"""The paper's Figure 1: queries that linear attention confuses, and that softmax and InLine do not.

The figure prints attention weights with two decimals and only draws the vectors. The coordinates here were
fitted to the weights, starting from the drawn ones. Those of panel a differ from the drawing by at most 0.05;
the queries, A and b of panel b were free. All 96 printed weights follow from them.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from inline.ops import inline_attention_weights, linear_attention_weights, softmax_attention_weights
from inline.ops.kernels import KERNELS, Kernel

ATTENTIONS: dict[str, Callable[[Tensor, Tensor, Kernel], Tensor]] = {
    'linear': lambda q, k, kernel: linear_attention_weights(q, k, kernel=kernel),
    'softmax': lambda q, k, _: softmax_attention_weights(q, k),
    'InLine': lambda q, k, kernel: inline_attention_weights(q, k, kernel=kernel),
}
_KEYS = ((0.60, 1.83), (0.99, 1.01), (1.92, 0.64), (1.80, 0.30))
# Panel a: the queries have this direction (an angle) and these lengths.
_DIRECTION, _LENGTHS = 1.06, (0.81, 1.40, 1.93, 2.30)
# Panel b: φ(x) = relu(Ax + b), and the images φ(q) of the queries have this direction and these lengths.
_MATRIX, _SHIFT = ((0.80, 0.02), (-0.26, 1.05)), (0.79, 0.22)
_MAPPED_DIRECTION, _MAPPED_LENGTHS = 0.82, (1.25, 1.52, 1.99, 2.60)


@dataclass(frozen=True)
class Panel:
    """Four queries whose images under the kernel are collinear, and their weights.

    Args:
        name: Letter of the panel in the paper.
        kernel: The kernel as a formula.
        queries: (4, 2).
        keys: (4, 2).
        mapped: Whether the figure also shows φ(q), because φ changes the queries.
        phi: The kernel.
    """

    name: str
    kernel: str
    queries: Tensor
    keys: Tensor
    mapped: bool
    phi: Callable[[Tensor], Tensor]

    @property
    def weights(self) -> dict[str, Tensor]:
        """Attention weights (4 queries, 4 keys) by name of the attention."""
        q, k = self.queries[None, None], self.keys[None, None]
        return {name: attention(q, k, self.phi)[0, 0] for name, attention in ATTENTIONS.items()}


def make_figure1() -> list[Panel]:
    """Return both panels of the figure."""
    keys = _vector(_KEYS)
    matrix, shift = _vector(_MATRIX), _vector(_SHIFT)
    # φ is invertible where all channels are positive: q = A⁻¹ (φ(q) − b).
    mapped = _rays(_MAPPED_DIRECTION, _MAPPED_LENGTHS)
    queries = torch.linalg.solve(matrix, (mapped - shift).T).T
    return [
        Panel('a', 'relu(x)', _rays(_DIRECTION, _LENGTHS), keys, False, KERNELS['relu']),
        Panel('b', 'relu(Ax + b)', queries, keys, True, lambda x: F.relu(x @ matrix.T + shift)),
    ]


def _vector(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _rays(angle: float, lengths: tuple[float, ...]) -> Tensor:
    """Return vectors (n, 2) of one direction."""
    direction = _vector(angle)
    return _vector(lengths)[:, None] * torch.stack([direction.cos(), direction.sin()])
