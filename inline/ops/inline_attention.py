"""InLine attention: linear attention that normalises by subtraction, so that it is injective.

With N keys, kernel φ and scale s, query q gives key j the weight

    w_j = (s/N) φ(q)·φ(k_j) − (s/N) φ(q)·φ(k̄) + 1/N        φ(k̄) = mean of φ(k_j) over j

The weights sum to 1 for every query, and no division lets two queries share them. They are never
needed to get the output:

    Σ_j w_j v_j = v̄ + s · φ(q) · C,        C = (1/N) Σ_j (φ(k_j) − φ(k̄)) (v_j − v̄)ᵀ

which costs O(N·d²) per head.  Reference: "Bridging the Divide: Reconsidering Softmax and Linear
Attention", NeurIPS 2024, arXiv 2412.06590.

With the identity as kernel neither queries nor keys are needed. Covariance ignores shifts and passes
through linear maps, so for tokens X with q = X W_qᵀ + b_q and k = X W_kᵀ + b_k

    S = (1/N) Xᵀ V − x̄ᵀ v̄,        C_h = W_k,h S_h,        out = X · M + (s b_q,h C_h)_h + v̄

where M = concat_h(s W_q,hᵀ C_h): few large products instead of many small ones, and two N×C tensors less
to write and to keep for the backward pass. It pays where tokens are well more than channels.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from inline.ops.covariance import covariance, no_autocast
from inline.ops.kernels import Kernel, apply_kernel
from inline.ops.masking import count_keys, zero_masked


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
    if key_mask is not None:
        key_mask = key_mask.repeat_interleave(q.shape[1], dim=0)
    # Heads join the batch, because the mean is then added within the product.
    flat_q, flat_k, flat_v = phi_q.flatten(0, 1), phi_k.flatten(0, 1), v.flatten(0, 1)
    cov, v_mean = covariance(flat_k, zero_masked(flat_v, key_mask), scale, key_mask)
    out = torch.baddbmm(v_mean.to(v.dtype), flat_q, cov.to(flat_q.dtype))
    return out.view(*q.shape[:2], *out.shape[1:])


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


def inline_attention_from_tokens(
    x: Tensor,
    v: Tensor,
    w_q: Tensor,
    w_k: Tensor,
    b_q: Tensor | None = None,
    *,
    num_heads: int,
    scale: float | None = None,
) -> Tensor:
    """InLine attention with the identity as kernel, of tokens whose queries and keys are never made.

    Args:
        x: Tokens (B, N, C).
        v: Their values (B, N, c).
        w_q: Weights of the queries (c, C): q = x w_qᵀ + b_q.
        w_k: Weights of the keys (c, C). A bias of the keys would have no effect.
        b_q: Bias of the queries (c); None for none.
        num_heads: Heads that the c channels make.
        scale: s; (c / heads)^(-1/2) if None.

    Returns:
        (B, N, c).
    """
    batch, _, channels = x.shape
    heads, dim = num_heads, v.shape[-1] // num_heads
    scale = dim**-0.5 if scale is None else scale
    cov, v_mean = covariance(x, v, scale)
    with no_autocast(x.device):
        # For each head the columns of all images side by side, so that a head takes one product.
        columns = cov.view(batch, channels, heads, dim).permute(2, 1, 0, 3).reshape(heads, channels, -1)
        head_q, head_k = (w.to(cov.dtype).reshape(heads, dim, channels) for w in (w_q, w_k))
        head_cov = torch.bmm(head_k, columns)
        mix = torch.bmm(head_q.transpose(1, 2), head_cov)
        mix = mix.view(heads, channels, batch, dim).permute(2, 1, 0, 3).reshape(batch, channels, -1)
        row = v_mean
        if b_q is not None:
            shift = torch.bmm(b_q.to(cov.dtype).view(heads, 1, dim), head_cov)
            row = row + shift.view(heads, batch, dim).transpose(0, 1).reshape(batch, 1, -1)
    return torch.baddbmm(row.to(v.dtype), x, mix.to(x.dtype))


def inline_attention_from_tokens_naive(
    x: Tensor,
    v: Tensor,
    w_q: Tensor,
    w_k: Tensor,
    b_q: Tensor | None = None,
    *,
    num_heads: int,
    scale: float | None = None,
) -> Tensor:
    """The twin of :func:`inline_attention_from_tokens` that makes queries and keys, and the N×N weights."""
    q, k, own_v = (
        tokens.unflatten(-1, (num_heads, -1)).transpose(1, 2)
        for tokens in (F.linear(x, w_q, b_q), F.linear(x, w_k), v)
    )
    out = inline_attention_naive(q, k, own_v, scale=scale)
    return out.transpose(1, 2).flatten(2)


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
