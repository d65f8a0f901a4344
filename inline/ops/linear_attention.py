"""Plain linear attention, the baseline that InLine repairs: it normalises by division.

Query q gives key j the weight

    w_j = φ(q)·φ(k_j) / Σ_i φ(q)·φ(k_i)

so q and any other query with a parallel φ(q) get the same weights: it is not injective.
Reference: Katharopoulos et al., "Transformers are RNNs", ICML 2020, arXiv 2006.16236.
"""

from torch import Tensor

from inline.ops.kernels import apply_kernel
from inline.ops.masking import zero_masked

EPSILON = 1e-6


def linear_attention(
    q: Tensor, k: Tensor, v: Tensor, *, kernel: str = 'relu', key_mask: Tensor | None = None
) -> Tensor:
    """φ(q)(φ(k)ᵀ v) / φ(q)·Σφ(k) for q (B, heads, M, d), k (B, heads, N, d), v (B, heads, N, e)."""
    phi_q, phi_k = apply_kernel(kernel, q), apply_kernel(kernel, k, key_mask)
    total = phi_q @ phi_k.sum(dim=-2, keepdim=True).transpose(-2, -1)
    return phi_q @ (phi_k.transpose(-2, -1) @ zero_masked(v, key_mask)) / (total + EPSILON)


def linear_attention_naive(
    q: Tensor, k: Tensor, v: Tensor, *, kernel: str = 'relu', key_mask: Tensor | None = None
) -> Tensor:
    """The twin of :func:`linear_attention` with the M×N weights written out."""
    return linear_attention_weights(q, k, kernel=kernel, key_mask=key_mask) @ zero_masked(v, key_mask)


def linear_attention_weights(
    q: Tensor, k: Tensor, *, kernel: str = 'relu', key_mask: Tensor | None = None
) -> Tensor:
    """The weights of every query on every key, (B, heads, M, N); a masked key has weight 0."""
    phi_q, phi_k = apply_kernel(kernel, q), apply_kernel(kernel, k, key_mask)
    scores = phi_q @ phi_k.transpose(-2, -1)
    return scores / (scores.sum(dim=-1, keepdim=True) + EPSILON)
