"""RALA, rank-augmented linear attention: keys are weighted by their importance for the mean query.

A sum of k_j v_jᵀ over similar tokens has a low rank. RALA gives each key its own weight in it. With φ(x) =
elu(x) + 1, N keys and R_p the rotation for position p,

    α = softmax over j of d^(-1/2) φ(q)‾·φ(k_j),        k̃_j = N · α_j · φ(k_j),        φ(q)‾ = mean of φ(q_i)
    w_ij = R_{p_i} φ(q_i) · R_{p_j} k̃_j / Σ_j φ(q_i)·k̃_j

The divisor is not rotated, so it stays positive; the weights need not sum to 1. As in the authors' code the
rotation is the same in every head (:func:`inline.ops.rotary.rotate_heads`), and 1e-6 is added to the mean of
the scores over the keys. Prefix tokens (such as a class token) take part in the means and are not rotated.
Masked tokens count neither as keys nor in the mean query. The paper's convolution of the values and the
modulation of the output by a gate, which raises the rank of the output, are parts of the mixer.

Reference: Fan, Huang, He, "Breaking the Low-Rank Dilemma of Linear Attention", CVPR 2025, arXiv 2411.07635.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from inline.ops.kernels import apply_kernel, divide_by_score, kernel_attention, mean_score
from inline.ops.rotary import rotate_heads, rotate_heads_naive
from inline.ops.tokens import ALL_QUERIES, count_keys, full_precision, masked_mean, zero_masked


@full_precision
def rala_attention(
    q: Tensor, k: Tensor, v: Tensor, hw: tuple[int, int], *, key_mask: Tensor | None = None
) -> Tensor:
    """Compute rank-augmented linear attention with cost linear in the number of tokens.

    Args:
        q: Queries (B, heads, P + H·W, d): P prefix tokens, then the map in row-major order.
        k: Keys of the same tokens.
        v: Values (B, heads, P + H·W, e).
        hw: Height and width of the map.
        key_mask: (B, P + H·W), True for the tokens to attend to; None for all.

    Returns:
        (B, heads, P + H·W, e).
    """
    phi_q, weighted_k = _features(q, k, key_mask)
    attended = kernel_attention(rotate_heads(phi_q, hw), rotate_heads(weighted_k, hw), v, key_mask)
    return divide_by_score(attended, mean_score(phi_q, weighted_k, key_mask))


def rala_attention_naive(
    q: Tensor, k: Tensor, v: Tensor, hw: tuple[int, int], *, key_mask: Tensor | None = None
) -> Tensor:
    """Naive reference of :func:`rala_attention`, image by image, with N×N weights and rotation matrices."""
    k, outs = zero_masked(k, key_mask), []
    for i in range(q.shape[0]):
        kept = [t for t in range(k.shape[-2]) if key_mask is None or key_mask[i, t]]
        phi_q, phi_k = (F.elu(x[i]) + 1 for x in (q, k))
        mean_q = phi_q[:, kept].mean(dim=1, keepdim=True)
        alpha = (q.shape[-1] ** -0.5 * (mean_q * phi_k[:, kept]).sum(dim=-1)).softmax(dim=-1)[:, None, :]
        turned_q, turned_k = (rotate_heads_naive(x[None], hw)[0] for x in (phi_q, phi_k))
        # N α_j times 1/N.
        scores = alpha * (turned_q @ turned_k[:, kept].transpose(-2, -1))
        divisor = (alpha * (phi_q @ phi_k[:, kept].transpose(-2, -1))).sum(dim=-1, keepdim=True) + 1e-6
        outs.append(scores / divisor @ v[i][:, kept])
    return torch.stack(outs)


@full_precision
def rala_attention_weights(
    q: Tensor,
    k: Tensor,
    hw: tuple[int, int],
    *,
    queries: slice = ALL_QUERIES,
    key_mask: Tensor | None = None,
) -> Tensor:
    """Return the weight of every key for the selected queries, (B, heads, M, N); 0 for masked keys."""
    phi_q, weighted_k = _features(q, k, key_mask)
    scores = rotate_heads(phi_q, hw)[:, :, queries] @ rotate_heads(weighted_k, hw).transpose(-2, -1)
    return divide_by_score(
        scores / count_keys(k, key_mask), mean_score(phi_q[:, :, queries], weighted_k, key_mask)
    )


def key_importance(phi_q: Tensor, phi_k: Tensor, key_mask: Tensor | None = None) -> Tensor:
    """Return α for features (B, heads, N, d), as (B, heads, N, 1); it sums to 1 over the unmasked keys."""
    scores = phi_k.shape[-1] ** -0.5 * phi_k @ masked_mean(phi_q, key_mask).transpose(-2, -1)
    if key_mask is None:
        return scores.softmax(dim=-2)
    # The smallest number instead of −∞: without any key, a softmax of −∞ would be NaN.
    scores = scores.masked_fill(~key_mask[:, None, :, None], torch.finfo(scores.dtype).min)
    return zero_masked(scores.softmax(dim=-2), key_mask)


def _features(q: Tensor, k: Tensor, key_mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return φ(q) and k̃."""
    phi_q, phi_k = apply_kernel('elu', q), apply_kernel('elu', k, key_mask)
    return phi_q, phi_k * (key_importance(phi_q, phi_k, key_mask) * count_keys(k, key_mask))
