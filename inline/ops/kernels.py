"""Kernels φ of linear attention, and the sums over φ(q) and φ(k) that the linear attention ops share."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from inline.ops.tokens import count_keys, masked_mean, zero_masked
from inline.utils.arguments import check_choice

KERNELS: dict[str, Callable[[Tensor], Tensor]] = {
    'identity': lambda x: x,
    'relu': F.relu,
    'leaky_relu': F.leaky_relu,
    # The paper's factor. φ(x) is finite for x ≤ 55 in float16 and x ≤ 443 in float32 and bfloat16, and the
    # product φ(q)·φ(k) of one channel for q + k ≤ 443. Larger values overflow.
    'exp': lambda x: torch.exp(0.2 * x),
    # Shifted by 1 to be positive.
    'elu': lambda x: F.elu(x) + 1,
}
# A name of the table, or φ itself: a function of (…, d).
Kernel = str | Callable[[Tensor], Tensor]
EPSILON = 1e-6


def apply_kernel(kernel: Kernel, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
    """Return φ(x) for x (B, …, N, d), zero where key_mask (B, N) is False."""
    if kernel == 'identity' and key_mask is None:
        return x
    if isinstance(kernel, str):
        check_choice('unknown kernel', kernel, KERNELS)
        kernel = KERNELS[kernel]
    # Masked before and after: φ(0) may not be 0, and the derivative of φ at NaN would make gradients NaN.
    return zero_masked(kernel(zero_masked(x, key_mask)), key_mask)


def kernel_attention(phi_q: Tensor, phi_k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
    """Return (1/N) Σ_j φ(q)·φ(k_j) v_j, the attention before normalisation, in float32 or float64.

    Args:
        phi_q: φ(q), (B, heads, M, d).
        phi_k: φ(k), (B, heads, N, d), zero at masked keys.
        v: Values (B, heads, N, e).
        key_mask: (B, N), True for the keys to attend to; None for all.
    """
    return phi_q @ (phi_k.transpose(-2, -1) @ zero_masked(v, key_mask) / count_keys(phi_k, key_mask))


def mean_score(phi_q: Tensor, phi_k: Tensor, key_mask: Tensor | None) -> Tensor:
    """Return (1/N) Σ_j φ(q)·φ(k_j), as (B, heads, M, 1)."""
    return phi_q @ masked_mean(phi_k, key_mask).transpose(-2, -1)


def divide_by_score(x: Tensor, score: Tensor) -> Tensor:
    """Return x / score, with the divisor moved away from zero by ε without changing its sign.

    A non-negative kernel has a mean score of 0 where no key matches: the result is 0 there. A kernel with
    negative values can have any mean score: the result may be large but stays finite.
    """
    return x / torch.where(score < 0, score - EPSILON, score + EPSILON)
