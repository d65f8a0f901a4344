"""FLatten's focused linear attention: a kernel that pulls queries and keys towards their main directions.

    w_ij = φ(q_i)·φ(k_j) / Σ_j φ(q_i)·φ(k_j),        φ(x) = f_p((relu(x) + 1e-6) / scale)
    f_p(x) = ‖x‖ / ‖x^p‖ · x^p        with the power taken of each channel

f_p keeps the length of x and sharpens its direction; p = 3 in the paper. As in the authors' models the
lengths are of a whole token, all heads together, and ``scale`` is one learned positive number for each
channel. The depthwise convolution of the values that the paper adds is a local term of the mixer. The
learned positions that the authors add to the keys are left out: they fix the size of the map.

Reference: Han, Pan, Han, Song, Huang, "FLatten Transformer: Vision Transformer using Focused Linear
Attention", ICCV 2023, arXiv 2308.00442.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from inline.ops.features import divide, mean_score, weigh_values
from inline.ops.masking import count_keys, zero_masked

# Keeps the length of a token off zero; the authors'.
FLOOR = 1e-6
# A token is all heads and channels of (B, heads, N, d).
TOKEN = (1, 3)


def flatten_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    power: int = 3,
    scale: Tensor | None = None,
    key_mask: Tensor | None = None,
) -> Tensor:
    """Linear in the number of tokens.

    Args:
        q: Queries (B, heads, M, d).
        k: Keys (B, heads, N, d).
        v: Values (B, heads, N, e).
        power: p.
        scale: Positive divisors (heads, d); None for 1.
        key_mask: (B, N), True for the keys that take part; None for all.

    Returns:
        (B, heads, M, e).
    """
    phi_q, phi_k = focus(q, power, scale), focus(k, power, scale, key_mask)
    return divide(weigh_values(phi_q, phi_k, v, key_mask), mean_score(phi_q, phi_k, key_mask))


def flatten_attention_naive(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    power: int = 3,
    scale: Tensor | None = None,
    key_mask: Tensor | None = None,
) -> Tensor:
    """The twin of :func:`flatten_attention` with the M×N weights and the focused kernel written out."""
    phi_q, phi_k = _focus_naive(q, power, scale), _focus_naive(zero_masked(k, key_mask), power, scale)
    scores = phi_q @ zero_masked(phi_k, key_mask).transpose(-2, -1) / count_keys(k, key_mask)
    return divide(scores, scores.sum(dim=-1, keepdim=True)) @ zero_masked(v, key_mask)


def flatten_attention_weights(
    q: Tensor, k: Tensor, *, power: int = 3, scale: Tensor | None = None, key_mask: Tensor | None = None
) -> Tensor:
    """The weights of every query on every key, (B, heads, M, N); a masked key has weight 0."""
    phi_q, phi_k = focus(q, power, scale), focus(k, power, scale, key_mask)
    scores = phi_q @ phi_k.transpose(-2, -1) / count_keys(k, key_mask)
    return divide(scores, scores.sum(dim=-1, keepdim=True))


def focus(x: Tensor, power: int, scale: Tensor | None = None, key_mask: Tensor | None = None) -> Tensor:
    """φ(x) for x (B, heads, N, d), zero where key_mask (B, N) is False."""
    x = F.relu(zero_masked(x, key_mask)) + FLOOR
    if scale is not None:
        x = x / scale[:, None]
    # f_p is the same for any multiple of x^p: against its largest channel no power leaves the range.
    largest = x.detach().amax(dim=TOKEN, keepdim=True)
    sharpened = (x / largest) ** power
    length, sharpened_length = (torch.linalg.vector_norm(t, dim=TOKEN, keepdim=True) for t in (x, sharpened))
    return zero_masked(sharpened * (length / sharpened_length), key_mask)


def _focus_naive(x: Tensor, power: int, scale: Tensor | None) -> Tensor:
    x = x.clamp(min=0) + FLOOR
    x = x if scale is None else x / scale[None, :, None, :]
    length, sharpened_length = ((x ** (2 * p)).sum(dim=(1, 3), keepdim=True).sqrt() for p in (1, power))
    return length / sharpened_length * x**power
