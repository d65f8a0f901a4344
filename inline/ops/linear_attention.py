"""Plain linear attention, which normalises by division. InLine attention replaces this normalisation.

Query q gives key j the weight

    w_j = φ(q)·φ(k_j) / Σ_i φ(q)·φ(k_i)

so all queries with parallel φ(q) get the same weights: it is not injective. With a kernel that takes
negative values the sum may be zero or negative. Its mean over the keys is moved away from zero by 1e-6,
which keeps the weights finite (:func:`inline.ops.kernels.divide_by_score`).

Reference: Katharopoulos, Vyas, Pappas, Fleuret, "Transformers are RNNs: Fast Autoregressive Transformers
with Linear Attention", ICML 2020, arXiv 2006.16236.
"""

from torch import Tensor

from inline.ops.kernels import Kernel, apply_kernel, divide_by_score, kernel_attention, mean_score
from inline.ops.tokens import count_keys, full_precision, zero_masked


@full_precision
def linear_attention(
    q: Tensor, k: Tensor, v: Tensor, *, kernel: Kernel = 'relu', key_mask: Tensor | None = None
) -> Tensor:
    """Compute φ(q)(φ(k)ᵀ v) / φ(q)·Σφ(k), with cost linear in the number of tokens.

    Args:
        q: Queries (B, heads, M, d).
        k: Keys (B, heads, N, d).
        v: Values (B, heads, N, e).
        kernel: φ: a name of :data:`inline.ops.KERNELS`, or any function of (…, d) in float32 or float64.
        key_mask: (B, N), True for the keys to attend to; None for all.

    Returns:
        (B, heads, M, e).
    """
    phi_q, phi_k = apply_kernel(kernel, q), apply_kernel(kernel, k, key_mask)
    return divide_by_score(kernel_attention(phi_q, phi_k, v, key_mask), mean_score(phi_q, phi_k, key_mask))


def linear_attention_naive(
    q: Tensor, k: Tensor, v: Tensor, *, kernel: Kernel = 'relu', key_mask: Tensor | None = None
) -> Tensor:
    """Naive reference of :func:`linear_attention` with explicit M×N weights."""
    return linear_attention_weights(q, k, kernel=kernel, key_mask=key_mask) @ zero_masked(v, key_mask)


def linear_attention_weights(
    q: Tensor, k: Tensor, *, kernel: Kernel = 'relu', key_mask: Tensor | None = None
) -> Tensor:
    """Return the weight of every key for every query, (B, heads, M, N); a masked key has weight 0."""
    phi_q, phi_k = apply_kernel(kernel, q), apply_kernel(kernel, k, key_mask)
    scores = phi_q @ phi_k.transpose(-2, -1) / count_keys(k, key_mask)
    return divide_by_score(scores, scores.sum(dim=-1, keepdim=True))
