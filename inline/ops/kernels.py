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
    # Plus 1, so that it is positive.
    'elu': lambda x: F.elu(x) + 1,
}
# A name out of the table, or φ itself: a function of (…, d).
Kernel = str | Callable[[Tensor], Tensor]


def apply_kernel(kernel: Kernel, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
    """φ(x) for x (B, …, N, d), zero where key_mask (B, N) is False."""
    phi = KERNELS[check_kernel(kernel)] if isinstance(kernel, str) else kernel
    # Masked before and after: φ(0) may not be 0, and φ's derivative at a NaN would poison the gradient.
    return zero_masked(phi(zero_masked(x, key_mask)), key_mask)


def check_kernel(name: str) -> str:
    if name not in KERNELS:
        raise UserError(f'unknown kernel {name!r}: choose one of {", ".join(KERNELS)}')
    return name
