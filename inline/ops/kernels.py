"""Kernels φ that linear attentions apply to queries and keys."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from inline.errors import UserError
from inline.ops.masking import zero_masked

KERNELS: dict[str, Callable[[Tensor], Tensor]] = {
    'identity': lambda x: x,
    'relu': F.relu,
    'leaky_relu': F.leaky_relu,
    # The factor keeps exp in range for half precision; it is the paper's.
    'exp': lambda x: torch.exp(0.2 * x),
}


def apply_kernel(name: str, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
    """φ(x) for x (B, …, N, d), zero where key_mask (B, N) is False."""
    # Masked before and after: φ(0) may not be 0, and φ's derivative at a NaN would poison the gradient.
    return zero_masked(KERNELS[check_kernel(name)](zero_masked(x, key_mask)), key_mask)


def check_kernel(name: str) -> str:
    if name not in KERNELS:
        raise UserError(f'unknown kernel {name!r}: choose one of {", ".join(KERNELS)}')
    return name
