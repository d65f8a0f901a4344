"""InLine attention: linear attention that normalises by subtraction, so that it is injective.

With N keys, kernel φ and scale s, query q gives key j the weight

    w_j = (s/N) φ(q)·φ(k_j) − (s/N) φ(q)·φ(k̄) + 1/N        φ(k̄) = mean of φ(k_j) over j

The weights sum to 1 for every query, and no division lets two queries share them. They are never
needed to get the output:

    Σ_j w_j v_j = v̄ + s · φ(q) · C,        C = (1/N) Σ_j (φ(k_j) − φ(k̄)) (v_j − v̄)ᵀ

which costs O(N·d²) per head.  Reference: "Bridging the Divide: Reconsidering Softmax and Linear
Attention", NeurIPS 2024, arXiv 2412.06590.
"""

from torch import Tensor

from inline.ops.features import weigh_values
from inline.ops.kernels import Kernel, apply_kernel
from inline.ops.masking import count_keys, masked_mean, zero_masked


def inline_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    kernel: Kernel = 'identity',
    scale: float | None = None,
    key_mask: Tensor | None = None,
) -> Tensor:
    """Covariance form, linear in the number of tokens.

    Args:
        q: Queries (B, heads, M, d).
        k: Keys (B, heads, N, d).
        v: Values (B, heads, N, e).
        kernel: φ: a name of :data:`inline.ops.KERNELS`, or any function of (…, d).
        scale: s; d^(-1/2) if None.
        key_mask: (B, N), True for the keys that take part; None for all.

    Returns:
        (B, heads, M, e).
    """
    scale = _default_scale(q, scale)
    phi_q, phi_k = apply_kernel(kernel, q), apply_kernel(kernel, k, key_mask)
    v_mean = masked_mean(v, key_mask)
    # Centring one side is enough: the other side's mean meets a sum of zero.
    return v_mean + weigh_values(phi_q * scale, phi_k, v - v_mean, key_mask)


def inline_attention_naive(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    kernel: Kernel = 'identity',
    scale: float | None = None,
    key_mask: Tensor | None = None,
) -> Tensor:
    """The twin of :func:`inline_attention` with the M×N weights written out."""
    weights = inline_attention_weights(q, k, kernel=kernel, scale=scale, key_mask=key_mask)
    return weights @ zero_masked(v, key_mask)


def inline_attention_weights(
    q: Tensor,
    k: Tensor,
    *,
    kernel: Kernel = 'identity',
    scale: float | None = None,
    key_mask: Tensor | None = None,
) -> Tensor:
    """The weights w of every query on every key, (B, heads, M, N); a masked key has weight 0."""
    scale = _default_scale(q, scale)
    phi_q, phi_k = apply_kernel(kernel, q), apply_kernel(kernel, k, key_mask)
    count = count_keys(k, key_mask)
    scores = phi_q @ phi_k.transpose(-2, -1)
    mean_score = phi_q @ (phi_k.sum(dim=-2, keepdim=True) / count).transpose(-2, -1)
    weights = (scale * (scores - mean_score) + 1) / count
    if key_mask is not None:
        weights = weights.masked_fill(~key_mask[:, None, None, :], 0)
    return weights


def _default_scale(q: Tensor, scale: float | None) -> float:
    return q.shape[-1] ** -0.5 if scale is None else scale
