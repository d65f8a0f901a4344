"""MALA, magnitude-aware linear attention: the norm of a query changes how sharp its weights are.

Division by the sum of the scores cancels the norm of φ(q). MALA replaces it by a factor and an offset. With
φ(x) = elu(x) + 1, N keys, s = d^(-1/2) and R_p the rotation for position p,

    z_i = (s/N) Σ_j φ(q_i)·φ(k_j),        β_i = 1 + 1 / z_i
    w_ij = (β_i s/N) R_{p_i} φ(q_i) · R_{p_j} φ(k_j) − z_i / N

Without rotation the weights sum to 1; some may be negative. As in the authors' code z is not rotated, 1e-6 is
added to it in the divisor, and the rotation is the same in every head
(:func:`inline.ops.rotary.rotate_heads`). Prefix tokens (such as a class token) are not rotated. The
convolution of the values and the output gate are parts of the mixer.

Reference: Fan, Huang, Ai, He, "Rectifying Magnitude Neglect in Linear Attention", ICCV 2025,
arXiv 2507.00698.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from inline.ops.kernels import EPSILON, apply_kernel, kernel_attention, mean_score
from inline.ops.rotary import rotate_heads, rotate_heads_naive
from inline.ops.tokens import ALL_QUERIES, count_keys, full_precision, masked_mean, zero_masked


@full_precision
def mala_attention(
    q: Tensor, k: Tensor, v: Tensor, hw: tuple[int, int], *, key_mask: Tensor | None = None
) -> Tensor:
    """Compute magnitude-aware linear attention with cost linear in the number of tokens.

    Args:
        q: Queries (B, heads, P + H·W, d): P prefix tokens, then the map in row-major order.
        k: Keys of the same tokens.
        v: Values (B, heads, P + H·W, e).
        hw: Height and width of the map.
        key_mask: (B, P + H·W), True for the keys to attend to; None for all.

    Returns:
        (B, heads, P + H·W, e).
    """
    scale = q.shape[-1] ** -0.5
    phi_q, phi_k = scale * apply_kernel('elu', q), apply_kernel('elu', k, key_mask)
    score = mean_score(phi_q, phi_k, key_mask)
    attended = kernel_attention(rotate_heads(phi_q, hw), rotate_heads(phi_k, hw), v, key_mask)
    return attended * (1 + 1 / (score + EPSILON)) - score * masked_mean(v, key_mask)


def mala_attention_naive(
    q: Tensor, k: Tensor, v: Tensor, hw: tuple[int, int], *, key_mask: Tensor | None = None
) -> Tensor:
    """Naive reference of :func:`mala_attention`, image by image, with N×N weights and rotation matrices."""
    k, outs = zero_masked(k, key_mask), []
    for i in range(q.shape[0]):
        kept = [t for t in range(k.shape[-2]) if key_mask is None or key_mask[i, t]]
        phi_q, phi_k = (F.elu(x[i]) + 1 for x in (q, k))
        plain = q.shape[-1] ** -0.5 * phi_q @ phi_k[:, kept].transpose(-2, -1)
        z = plain.mean(dim=-1, keepdim=True)
        turned_q, turned_k = (rotate_heads_naive(x[None], hw)[0] for x in (phi_q, phi_k))
        scores = q.shape[-1] ** -0.5 * turned_q @ turned_k[:, kept].transpose(-2, -1)
        outs.append(((1 + 1 / (z + 1e-6)) * scores - z) / len(kept) @ v[i][:, kept])
    return torch.stack(outs)


@full_precision
def mala_attention_weights(
    q: Tensor,
    k: Tensor,
    hw: tuple[int, int],
    *,
    queries: slice = ALL_QUERIES,
    key_mask: Tensor | None = None,
) -> Tensor:
    """Return the weight of every key for the selected queries, (B, heads, M, N); 0 for masked keys."""
    scale = q.shape[-1] ** -0.5
    phi_q, phi_k = scale * apply_kernel('elu', q), apply_kernel('elu', k, key_mask)
    score = mean_score(phi_q[:, :, queries], phi_k, key_mask)
    scores = rotate_heads(phi_q, hw)[:, :, queries] @ rotate_heads(phi_k, hw).transpose(-2, -1)
    weights = (scores * (1 + 1 / (score + EPSILON)) - score) / count_keys(k, key_mask)
    return weights if key_mask is None else weights.masked_fill(~key_mask[:, None, None, :], 0)
