"""TransNormer's NormAttention: linear attention normalised by the RMS of its output.

In each head

    o_i = Σ_j φ(q_i)·φ(k_j) v_j,        out_i = o_i / (RMS_i + 1e-8)

where RMS_i is the root mean square of o_i over the channels of all heads, as in the authors' code. The two
published variants differ in the kernel: φ(x) = elu(x) in T1, which takes negative values, and φ(x) =
elu(x) + 1 in T2.

Both use LRPE, a linearised relative position encoding. With a fixed unit vector u and learned angles θ_m,

    φ'(x_i) = R_i (1 − 2 u uᵀ) φ(x_i)        R_i rotates channels 2m and 2m + 1 by i·θ_m

replaces φ(x_i) for queries and keys, so that scores depend on i − j. u and θ are shared by all heads; θ_m =
10000^(−2m/d) initially. The model is defined for sequences: here i is the index of a token of the map in
row-major order. Prefix tokens (such as a class token) are not rotated.

RMS_i is one number per query, so the output is still a weighted sum of the values. The weights depend on the
values and do not sum to 1. The computation uses means over the keys, with 1e-8 / N accordingly, to keep
numbers small. There is no learned gain after the norm. The first half of the layers of a TransNormer has
:mod:`inline.ops.diag_attention` instead.

Reference: Qin, Han, Sun, Li, Kong, Barnes, Zhong, "The Devil in Linear Transformer", EMNLP 2022,
arXiv 2210.10340.
"""

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from inline.ops.kernels import Kernel, apply_kernel, kernel_attention
from inline.ops.rotary import BASE, rotate_pairs
from inline.ops.tokens import (
    ALL_QUERIES,
    count_keys,
    count_prefix,
    full_precision,
    position_indices,
    zero_masked,
)

# Value from the authors' code.
EPSILON = 1e-8
# The head and channel axes of (B, heads, N, d), which together form a token.
TOKEN_DIMS = (1, 3)
Variant = Literal['T1', 'T2']
VARIANT_KERNELS: dict[Variant, Kernel] = {'T1': F.elu, 'T2': 'elu'}


class RelativePosition(NamedTuple):
    """LRPE: the unit vector u (d) of the reflection, and the angles θ (d // 2) between neighbours."""

    reflection: Tensor
    theta: Tensor


@full_precision
def transnormer_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    hw: tuple[int, int],
    *,
    variant: Variant = 'T2',
    position: RelativePosition | None = None,
    key_mask: Tensor | None = None,
) -> Tensor:
    """Compute NormAttention with cost linear in the number of tokens.

    Args:
        q: Queries (B, heads, P + H·W, d): P prefix tokens, then the map in row-major order.
        k: Keys of the same tokens.
        v: Values (B, heads, P + H·W, e).
        hw: Height and width of the map.
        variant: T1 or T2, which selects φ.
        position: LRPE; None for none.
        key_mask: (B, P + H·W), True for the keys to attend to; None for all.

    Returns:
        (B, heads, P + H·W, e), with root mean square 1 over heads and e.
    """
    phi_q, phi_k = _features(q, k, hw, variant, position, key_mask)
    out = kernel_attention(phi_q, phi_k, v, key_mask)
    return out / _divisor(out, count_keys(k, key_mask))


def transnormer_attention_naive(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    hw: tuple[int, int],
    *,
    variant: Variant = 'T2',
    position: RelativePosition | None = None,
    key_mask: Tensor | None = None,
) -> Tensor:
    """Naive reference of :func:`transnormer_attention` with N×N scores, and a rotation for each pair."""
    k, v = zero_masked(k, key_mask), zero_masked(v, key_mask)
    phi_q, phi_k = (F.elu(x) if variant == 'T1' else F.elu(x) + 1 for x in (q, k))
    if position is None:
        scores = phi_q @ phi_k.transpose(-2, -1)
    else:
        u, theta = position
        reflect = torch.eye(len(u), dtype=u.dtype) - 2 * torch.outer(u, u)
        phi_q, phi_k = phi_q @ reflect, phi_k @ reflect
        prefix = q.shape[-2] - hw[0] * hw[1]
        index = torch.tensor([0] * prefix + list(range(hw[0] * hw[1])), dtype=q.dtype)
        offset = index[None, :] - index[:, None]
        scores = phi_q.new_zeros(*q.shape[:3], q.shape[2])
        for m in range(len(theta)):
            cos, sin = (offset * theta[m]).cos(), (offset * theta[m]).sin()
            a, b = phi_q[..., 2 * m, None], phi_q[..., 2 * m + 1, None]
            c, d = phi_k[..., None, :, 2 * m], phi_k[..., None, :, 2 * m + 1]
            scores = scores + (a * c + b * d) * cos + (b * c - a * d) * sin
        if len(u) % 2:
            scores = scores + phi_q[..., -1, None] * phi_k[..., None, :, -1]
    if key_mask is not None:
        scores = scores * key_mask[:, None, None, :]
    out = scores @ v
    return out / (out.square().mean(dim=TOKEN_DIMS, keepdim=True).sqrt() + EPSILON)


def transnormer_attention_weights(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    hw: tuple[int, int],
    *,
    variant: Variant = 'T2',
    position: RelativePosition | None = None,
    queries: slice = ALL_QUERIES,
    key_mask: Tensor | None = None,
) -> Tensor:
    """Return the weight of every key for the selected queries, (B, heads, M, N); 0 for masked keys."""
    phi_q, phi_k = _features(q, k, hw, variant, position, key_mask)
    weights = phi_q[:, :, queries] @ phi_k.transpose(-2, -1) / count_keys(k, key_mask)
    return weights / _divisor(weights @ zero_masked(v, key_mask), count_keys(k, key_mask))


def initial_angles(head_dim: int) -> Tensor:
    """Return the initial θ (d // 2) of heads with d channels."""
    return BASE ** (-torch.arange(0, head_dim - 1, 2) / head_dim)


def _features(
    q: Tensor,
    k: Tensor,
    hw: tuple[int, int],
    variant: Variant,
    position: RelativePosition | None,
    key_mask: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return φ'(q) and φ'(k), zero at masked keys."""
    phi_q, phi_k = (apply_kernel(VARIANT_KERNELS[variant], x, m) for x, m in ((q, None), (k, key_mask)))
    if position is None:
        return phi_q, phi_k
    u, theta = (t.to(q.dtype) for t in position)
    angles = position_indices(hw[0] * hw[1], q)[:, None] * theta
    angles = F.pad(angles, (0, 0, count_prefix(q.shape[-2], hw), 0))
    rotated_q, rotated_k = (rotate_pairs(x - 2 * (x @ u)[..., None] * u, angles) for x in (phi_q, phi_k))
    return rotated_q, rotated_k


def _divisor(mean: Tensor, count: int | Tensor) -> Tensor:
    """Return (RMS + ε) / N for o / N (B, heads, M, e), as (B, 1, M, 1)."""
    # vector_norm has a gradient of 0 at 0, where a square root would give NaN.
    norm = torch.linalg.vector_norm(mean, dim=TOKEN_DIMS, keepdim=True)
    return norm / (mean.shape[1] * mean.shape[3]) ** 0.5 + EPSILON / count
