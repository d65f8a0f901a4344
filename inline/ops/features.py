"""What linear attentions share once φ(q) and φ(k) are known, whatever φ is; φ(k) is zero at masked keys."""

import torch
from torch import Tensor

from inline.ops.masking import masked_mean, root_share, zero_masked

EPSILON = 1e-6


def weigh_values(phi_q: Tensor, phi_k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
    """(1/N) Σ_j φ(q)·φ(k_j) v_j for φ(q) (B, heads, M, d), φ(k) (B, heads, N, d), v (B, heads, N, e)."""
    # Half of 1/N on each factor, so that neither the factors nor the sum leave float16's range.
    root = root_share(phi_k, key_mask)
    return phi_q @ ((phi_k * root).transpose(-2, -1) @ (zero_masked(v, key_mask) * root))


def mean_score(phi_q: Tensor, phi_k: Tensor, key_mask: Tensor | None) -> Tensor:
    """(1/N) Σ_j φ(q)·φ(k_j), as (B, heads, M, 1)."""
    return phi_q @ masked_mean(phi_k, key_mask).transpose(-2, -1)


def divide(x: Tensor, mean: Tensor) -> Tensor:
    """x / mean, with the mean score moved away from zero by ε on its own side.

    A kernel that is never negative gives a mean of 0 where nothing matches: the result is 0 then. One
    that can be negative gives any mean: the result may be large but stays finite.
    """
    return x / torch.where(mean < 0, mean - EPSILON, mean + EPSILON)
