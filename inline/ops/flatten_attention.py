"""FLatten's focused linear attention: a kernel that sharpens the direction of queries and keys.

    w_ij = φ(q_i)·φ(k_j) / Σ_j φ(q_i)·φ(k_j),        φ(x) = f_p((relu(x) + 1e-6) / scale)
    f_p(x) = ‖x‖ / ‖x^p‖ · x^p        with the power taken per channel

f_p keeps the norm of x and sharpens its direction; p = 3 in the paper. As in the authors' models the norms
are taken over a token (all heads together), and ``scale`` is a learned positive number per channel. The
paper's depthwise convolution of the values is a local term of the mixer. The authors' learned positional
encoding of the keys is omitted, because it would fix the size of the feature map.

Reference: Han, Pan, Han, Song, Huang, "FLatten Transformer: Vision Transformer using Focused Linear
Attention", ICCV 2023, arXiv 2308.00442.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from inline.ops.kernels import divide_by_score, kernel_attention, mean_score
from inline.ops.tokens import count_keys, full_precision, zero_masked

# Keeps the norm of a token above zero; value from the authors' code.
EPSILON = 1e-6
# The head and channel axes of (B, heads, N, d), which together form a token.
TOKEN_DIMS = (1, 3)


@full_precision
def flatten_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    power: int = 3,
    scale: Tensor | None = None,
    key_mask: Tensor | None = None,
) -> Tensor:
    """Compute focused linear attention with cost linear in the number of tokens.

    Args:
        q: Queries (B, heads, M, d).
        k: Keys (B, heads, N, d).
        v: Values (B, heads, N, e).
        power: p.
        scale: Positive divisors (heads, d); None for 1.
        key_mask: (B, N), True for the keys to attend to; None for all.

    Returns:
        (B, heads, M, e).
    """
    phi_q, phi_k = focus(q, power, scale), focus(k, power, scale, key_mask)
    return divide_by_score(kernel_attention(phi_q, phi_k, v, key_mask), mean_score(phi_q, phi_k, key_mask))


def flatten_attention_naive(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    power: int = 3,
    scale: Tensor | None = None,
    key_mask: Tensor | None = None,
) -> Tensor:
    """Naive reference of :func:`flatten_attention` with explicit M×N weights and a direct focused kernel."""
    phi_q, phi_k = _focus_naive(q, power, scale), _focus_naive(zero_masked(k, key_mask), power, scale)
    scores = phi_q @ zero_masked(phi_k, key_mask).transpose(-2, -1) / count_keys(k, key_mask)
    return divide_by_score(scores, scores.sum(dim=-1, keepdim=True)) @ zero_masked(v, key_mask)


def flatten_attention_weights(
    q: Tensor, k: Tensor, *, power: int = 3, scale: Tensor | None = None, key_mask: Tensor | None = None
) -> Tensor:
    """Return the weight of every key for every query, (B, heads, M, N); a masked key has weight 0."""
    phi_q, phi_k = focus(q, power, scale), focus(k, power, scale, key_mask)
    scores = phi_q @ phi_k.transpose(-2, -1) / count_keys(k, key_mask)
    return divide_by_score(scores, scores.sum(dim=-1, keepdim=True))


def focus(x: Tensor, power: int, scale: Tensor | None = None, key_mask: Tensor | None = None) -> Tensor:
    """Return φ(x) for x (B, heads, N, d), zero where key_mask (B, N) is False."""
    x = F.relu(zero_masked(x, key_mask)) + EPSILON
    if scale is not None:
        x = x / scale[:, None]
    # f_p does not change if x^p is rescaled. Dividing by the largest channel keeps the power in range.
    largest = x.detach().amax(dim=TOKEN_DIMS, keepdim=True)
    sharpened = (x / largest) ** power
    norm, sharpened_norm = (torch.linalg.vector_norm(t, dim=TOKEN_DIMS, keepdim=True) for t in (x, sharpened))
    return zero_masked(sharpened * (norm / sharpened_norm), key_mask)


def _focus_naive(x: Tensor, power: int, scale: Tensor | None) -> Tensor:
    x = x.clamp(min=0) + EPSILON
    x = x if scale is None else x / scale[None, :, None, :]
    norm, sharpened_norm = ((x ** (2 * p)).sum(dim=(1, 3), keepdim=True).sqrt() for p in (1, power))
    return norm / sharpened_norm * x**power
