"""The kernel φ of a mixer by name, among them one that is learned."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inline.arguments import check_choice
from inline.ops import KERNELS

AFFINE_RELU = 'affine_relu'


class AffineReLU(nn.Module):
    """φ(x) = relu(A·x + b) with a learned A (d, d) and b (d).

    φ is one function in the formulas, so queries, keys and all heads share it. It begins as relu.
    """

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(head_dim))
        self.bias = nn.Parameter(torch.zeros(head_dim))

    def forward(self, x: Tensor) -> Tensor:
        """(…, d) to the same shape."""
        return F.relu(F.linear(x, self.weight, self.bias))


def make_kernel(name: str, head_dim: int) -> str | AffineReLU:
    """φ for heads of ``head_dim`` channels, as the ops take it."""
    if name == AFFINE_RELU:
        return AffineReLU(head_dim)
    check_choice('unknown kernel', name, [*KERNELS, AFFINE_RELU])
    return name
