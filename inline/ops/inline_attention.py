"""InLine attention: linear attention that normalises by subtraction, which makes it injective.

With N keys, kernel φ and scale s, query q gives key j the weight

    w_j = (s/N) φ(q)·φ(k_j) − (s/N) φ(q)·φ(k̄) + 1/N        φ(k̄) = mean of φ(k_j) over j

The weights sum to 1 for every query, and without a division different queries keep different weights. The
output does not need the weights:

    Σ_j w_j v_j = v̄ + s · φ(q) · C,        C = (1/N) Σ_j (φ(k_j) − φ(k̄)) (v_j − v̄)ᵀ

which costs O(N·d²) per head.  Reference: "Bridging the Divide: Reconsidering Softmax and Linear
Attention", NeurIPS 2024, arXiv 2412.06590.

With the identity kernel, queries and keys are not needed either. Covariance is invariant to shifts and
commutes with linear maps, so for tokens X with q = X W_qᵀ + b_q and k = X W_kᵀ + b_k

    S = (1/N) Xᵀ V − x̄ᵀ v̄,        C_h = W_k,h S_h,        out = X · M + (s b_q,h C_h)_h + v̄

where M = concat_h(s W_q,hᵀ C_h). This replaces many small products by a few large ones and avoids two N×C
tensors in the forward and backward pass. It is faster where there are clearly more tokens than channels.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from inline.ops.kernels import Kernel, apply_kernel
from inline.ops.products import batched_product, uses_onednn_in_batches
from inline.ops.symint import is_symbolic, is_tracing
from inline.ops.tokens import (
    HALF_DTYPES,
    count_keys,
    count_keys_exact,
    full_precision,
    inverse_sqrt_count,
    is_autocast,
    no_autocast,
    rounds_products,
    zero_masked,
)


def inline_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    kernel: Kernel = 'identity',
    scale: float | None = None,
    key_mask: Tensor | None = None,
) -> Tensor:
    """Compute InLine attention through the covariance, with cost linear in the number of tokens.

    Args:
        q: Queries (B, heads, M, d).
        k: Keys (B, heads, N, d).
        v: Values (B, heads, N, e).
        kernel: φ: a name of :data:`inline.ops.KERNELS`, or any function of (…, d).
        scale: s; d^(-1/2) if None.
        key_mask: (B, N), True for the keys to attend to; None for all.

    Returns:
        (B, heads, M, e).
    """
    op = _attend_in_full_precision if _is_faster_in_float32(q) else _attend
    return op(q, k, v, kernel, _default_scale(q, scale), key_mask)


def _is_faster_in_float32(q: Tensor) -> bool:
    """Return whether conversions for autocast take longer than they save: in inference on a CPU.

    The products of each head are small. In training, tensors in float32 would need more memory.
    """
    return q.device.type == 'cpu' and is_autocast(q.device) and not (torch.is_grad_enabled() or is_tracing())


def _attend(q: Tensor, k: Tensor, v: Tensor, kernel: Kernel, scale: float, key_mask: Tensor | None) -> Tensor:
    """Compute :func:`inline_attention`."""
    phi_q, phi_k = apply_kernel(kernel, q), apply_kernel(kernel, k, key_mask)
    if key_mask is not None:
        key_mask = key_mask.repeat_interleave(q.shape[1], dim=0)
    # Heads are merged into the batch axis, so that baddbmm adds the mean within the product.
    flat_q, flat_k, flat_v = phi_q.flatten(0, 1), phi_k.flatten(0, 1), v.flatten(0, 1)
    cov, _, v_mean = covariance(flat_k, zero_masked(flat_v, key_mask), scale, key_mask)
    out = torch.baddbmm(v_mean.to(v.dtype), flat_q, cov.to(flat_q.dtype))
    return out.view(*q.shape[:2], *out.shape[1:])


_attend_in_full_precision = full_precision(_attend)


def inline_attention_of_image(qkv: Tensor, num_heads: int) -> Tensor:
    """Compute InLine attention with the identity kernel for one image, without copies of the heads.

    The reference is :func:`inline_attention` of the heads.

    Args:
        qkv: Queries, keys and values next to each other, as one linear layer returns them, (1, N, 3·C).
        num_heads: Number of heads.

    Returns:
        (1, N, C).
    """
    _, count, width = qkv.shape
    q, k, v = qkv.reshape(count, 3 * num_heads, -1).transpose(0, 1).chunk(3)
    _, k_mean, v_mean = qkv.mean(dim=1).view(3 * num_heads, 1, -1).chunk(3)
    scale = _default_scale(q, None)
    cov = torch.baddbmm(
        k_mean.transpose(1, 2) * v_mean, k.transpose(1, 2), v, beta=-scale, alpha=scale / count
    )
    return torch.baddbmm(v_mean, q, cov).transpose(0, 1).reshape(1, count, width // 3)


def inline_attention_naive(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    kernel: Kernel = 'identity',
    scale: float | None = None,
    key_mask: Tensor | None = None,
) -> Tensor:
    """Naive reference of :func:`inline_attention` with explicit M×N weights."""
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
    """Return the weight of every key for every query, (B, heads, M, N); a masked key has weight 0."""
    scale = _default_scale(q, scale)
    phi_q, phi_k = apply_kernel(kernel, q), apply_kernel(kernel, k, key_mask)
    count = count_keys(k, key_mask)
    scores = phi_q @ phi_k.transpose(-2, -1)
    mean_score = phi_q @ (phi_k.sum(dim=-2, keepdim=True) / count).transpose(-2, -1)
    weights = (scale * (scores - mean_score) + 1) / count
    if key_mask is not None:
        weights = weights.masked_fill(~key_mask[:, None, None, :], 0)
    return weights


def inline_attention_from_tokens(
    x: Tensor,
    v: Tensor,
    w_q: Tensor,
    w_k: Tensor,
    b_q: Tensor | None = None,
    *,
    num_heads: int,
) -> Tensor:
    """Compute InLine attention with the identity kernel without materialising queries and keys.

    Args:
        x: Tokens (B, N, C).
        v: Their values (B, N, c).
        w_q: Query weights (c, C): q = x w_qᵀ + b_q.
        w_k: Key weights (c, C). A key bias has no effect on the result.
        b_q: Query bias (c); None for none.
        num_heads: Number of heads that share the c channels.

    Returns:
        (B, N, c).
    """
    # Under autocast the values have half precision: the tokens are converted once instead of in each product.
    x = x.to(v.dtype)
    batch, _, channels = x.shape
    heads, dim = num_heads, v.shape[-1] // num_heads
    # The transpose of S, so that its rows are in the order of heads and none of the small matrices is copied
    # for one image.
    cov, v_mean, _ = covariance(v, x, dim**-0.5)
    with no_autocast(x.device):
        # The rows of all images below each other, so that each head needs one product.
        rows = cov.view(batch, heads, dim, channels).transpose(0, 1).reshape(heads, -1, channels)
        head_q, head_k = (w.to(cov.dtype).reshape(heads, dim, channels) for w in (w_q, w_k))
        head_cov = torch.bmm(rows, head_k.transpose(1, 2))
        mix = torch.bmm(head_cov, head_q)
        mix = mix.view(heads, batch, dim, channels).transpose(0, 1).reshape(batch, -1, channels)
        row = v_mean
        if b_q is not None:
            shift = torch.bmm(head_cov, b_q.to(cov.dtype).view(heads, dim, 1))
            row = row + shift.view(heads, batch, dim).transpose(0, 1).reshape(batch, 1, -1)
    return batched_product(x, mix.to(x.dtype), row.to(v.dtype))


def inline_attention_from_tokens_naive(
    x: Tensor,
    v: Tensor,
    w_q: Tensor,
    w_k: Tensor,
    b_q: Tensor | None = None,
    *,
    num_heads: int,
) -> Tensor:
    """Naive reference of :func:`inline_attention_from_tokens` with queries, keys and N×N weights."""
    q, k, head_v = (
        tokens.unflatten(-1, (num_heads, -1)).transpose(1, 2)
        for tokens in (F.linear(x, w_q, b_q), F.linear(x, w_k), v)
    )
    return inline_attention_naive(q, k, head_v).transpose(1, 2).flatten(2)


def covariance(
    k: Tensor, v: Tensor, scale: float = 1.0, key_mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (s/N) Σ_j (k_j − k̄) (v_j − v̄)ᵀ as (B, d, e), k̄ as (B, 1, d) and v̄ as (B, 1, e).

    All are in at least float32.

    Args:
        k: (B, N, d), zero at masked tokens.
        v: (B, N, e), zero at masked tokens.
        scale: s.
        key_mask: (B, N), True for the tokens to include; None for all.
    """
    if key_mask is None and not rounds_operands(k, v):
        # Subtracts the means from the small product instead of the tokens, which avoids a copy of them.
        count = k.shape[1]
        k_mean, v_mean = k.mean(dim=1, keepdim=True), v.mean(dim=1, keepdim=True)
        outer, rows, columns = k_mean.transpose(1, 2) * v_mean, k.transpose(1, 2), v.transpose(1, 2)
        if is_symbolic(count) or uses_onednn_in_batches(rows, columns):
            # AOTInductor does not support symbolic alpha and beta, and oneDNN's product has none.
            cov = torch.sub(batched_product(rows, columns) * (scale / count), outer, alpha=scale)
        else:
            # baddbmm applies alpha and beta for free.
            cov = torch.baddbmm(outer, rows, v, beta=-scale, alpha=scale / count)
        return cov, k_mean, v_mean
    # In half precision and TF32 a small difference of large products would be lost to rounding, so both
    # sides are centred first; the rounding error of the means then enters only as a product of two errors.
    dtype = torch.promote_types(k.dtype, torch.float32)
    num_keys = count_keys_exact(k, key_mask)
    k_mean, v_mean = (t.sum(dim=1, keepdim=True, dtype=dtype) / num_keys for t in (k, v))
    factor: float | Tensor = scale / num_keys
    k, v = (t - mean.to(t.dtype) for t, mean in ((k, k_mean), (v, v_mean)))
    if not k.dtype == v.dtype == torch.bfloat16:
        # Splitting 1/N between both sides keeps the sum within the range of float16.
        root, factor = inverse_sqrt_count(k, key_mask), scale
        k, v = k * root, v * root
    cov = (zero_masked(k, key_mask).transpose(1, 2) @ v).to(dtype) * factor
    return cov, k_mean, v_mean


def rounds_operands(*tensors: Tensor) -> bool:
    """Return whether products of these tensors have operands of fewer bits than float32."""
    device = tensors[0].device
    if is_autocast(device) or any(t.dtype in HALF_DTYPES for t in tensors):
        return True
    return tensors[0].dtype == torch.float32 and rounds_products(device)


def _default_scale(q: Tensor, scale: float | None) -> float:
    return q.shape[-1] ** -0.5 if scale is None else scale
