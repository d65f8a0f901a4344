"""Nyströmformer's attention: softmax attention through a few landmarks.

The sequence is cut into m segments of nearly equal length; the landmarks q̃ and k̃ are the means of the
queries and of the keys of each. With S(a, b) = softmax(s · a bᵀ) over the rows,

    out = S(q, k̃) · S(q̃, k̃)⁺ · S(q̃, k) v        cost O(N·m·d) per head

The pseudo-inverse of A = S(q̃, k̃) is found by iteration, six times in the paper:

    Z ← Z (13 − AZ (15 − AZ (7 − AZ))) / 4        from Z = Aᵀ / (‖A‖₁ ‖A‖∞)

Norms are of each matrix by itself, so that images of a batch do not touch. With no more tokens than
landmarks nothing is approximated: that is softmax attention. Masked tokens are left out before the
segments are cut. Where fewer than m tokens then remain, some segments are empty and take no part.

Reference: Xiong, Zeng, Chakraborty, Tan, Fung, Li, Singh, "Nyströmformer: A Nyström-Based Algorithm for
Approximating Self-Attention", AAAI 2021, arXiv 2102.03902.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from inline.ops.covariance import no_autocast
from inline.ops.masking import zero_masked
from inline.ops.places import ALL_QUERIES
from inline.ops.softmax_attention import softmax_attention, softmax_attention_weights


class Landmarks(NamedTuple):
    """Means of segments (B, heads, m, d), and which segments hold a token (B, m), None if all do."""

    q: Tensor
    k: Tensor
    mask: Tensor | None


def nystrom_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    num_landmarks: int = 64,
    iterations: int = 6,
    key_mask: Tensor | None = None,
) -> Tensor:
    """Linear in the number of tokens.

    Args:
        q: Queries (B, heads, N, d).
        k: Keys of the same tokens.
        v: Values (B, heads, N, e).
        num_landmarks: m.
        iterations: Steps towards the pseudo-inverse.
        key_mask: (B, N), True for the tokens that take part; None for all.

    Returns:
        (B, heads, N, e).
    """
    if k.shape[-2] <= num_landmarks:
        return softmax_attention(q, k, v, key_mask=key_mask)
    marks = find_landmarks(q, k, num_landmarks, key_mask)
    gathered = softmax_attention(marks.q, k, v, key_mask=key_mask)
    inverse = pseudo_inverse(_between(marks), iterations).to(v.dtype)
    return softmax_attention(q, marks.k, inverse @ gathered, key_mask=marks.mask)


def nystrom_attention_naive(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    num_landmarks: int = 64,
    iterations: int = 6,
    key_mask: Tensor | None = None,
) -> Tensor:
    """The twin of :func:`nystrom_attention`, one image after another, with the N×N weights written out."""
    outs = []
    for i in range(q.shape[0]):
        kept = [t for t in range(k.shape[-2]) if key_mask is None or key_mask[i, t]]
        own_q, own_k, own_v = q[i], k[i][:, kept], v[i][:, kept]
        if k.shape[-2] <= num_landmarks:
            outs.append(softmax_attention_weights(own_q, own_k) @ own_v)
            continue
        segments: dict[int, list[int]] = {}
        for rank, token in enumerate(kept):
            segments.setdefault(rank * num_landmarks // len(kept), []).append(token)
        mark_q, mark_k = (
            torch.stack([x[i][:, tokens].mean(dim=1) for tokens in segments.values()], dim=1) for x in (q, k)
        )
        inverse = pseudo_inverse(softmax_attention_weights(mark_q, mark_k), iterations)
        weights = softmax_attention_weights(own_q, mark_k) @ inverse
        outs.append(weights @ softmax_attention_weights(mark_q, own_k) @ own_v)
    return torch.stack(outs)


def nystrom_attention_weights(
    q: Tensor,
    k: Tensor,
    *,
    num_landmarks: int = 64,
    iterations: int = 6,
    queries: slice = ALL_QUERIES,
    key_mask: Tensor | None = None,
) -> Tensor:
    """The weights of the chosen queries on every key, (B, heads, M, N); a masked key has weight 0."""
    if k.shape[-2] <= num_landmarks:
        return softmax_attention_weights(q[:, :, queries], k, key_mask=key_mask)
    marks = find_landmarks(q, k, num_landmarks, key_mask)
    inverse = pseudo_inverse(_between(marks), iterations).to(q.dtype)
    to_marks = softmax_attention_weights(q[:, :, queries], marks.k, key_mask=marks.mask)
    return to_marks @ inverse @ softmax_attention_weights(marks.q, k, key_mask=key_mask)


def find_landmarks(q: Tensor, k: Tensor, count: int, key_mask: Tensor | None) -> Landmarks:
    """The landmarks of queries and keys (B, heads, N, d), which are of the same tokens."""
    tokens = k.shape[-2]
    if key_mask is None:
        segment = torch.arange(tokens, device=k.device)[None] * count // tokens
    else:
        rank = key_mask.cumsum(dim=1) - 1
        segment = rank * count // key_mask.sum(dim=1, keepdim=True).clamp(min=1)
        segment = segment.masked_fill(~key_mask, -1)
    member = segment[:, None, :] == torch.arange(count, device=k.device)[:, None]
    size = member.sum(dim=-1, keepdim=True)
    own_q, own_k = (
        member[:, None].to(x.dtype) @ zero_masked(x, key_mask) / size[:, None].clamp(min=1).to(x.dtype)
        for x in (q, k)
    )
    return Landmarks(own_q, own_k, None if key_mask is None else size.squeeze(-1) > 0)


def pseudo_inverse(matrix: Tensor, iterations: int) -> Tensor:
    """Of matrices (…, m, m), none of them all zero, in float32 or better."""
    # Rounding to half precision would grow in every step.
    with no_autocast(matrix.device):
        matrix = matrix.to(torch.promote_types(matrix.dtype, torch.float32))
        identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
        size = matrix.abs()
        norms = size.sum(dim=-2).amax(dim=-1) * size.sum(dim=-1).amax(dim=-1)
        inverse = matrix.transpose(-2, -1) / norms[..., None, None]
        for _ in range(iterations):
            product = matrix @ inverse
            inner = 15 * identity - product @ (7 * identity - product)
            inverse = inverse @ (13 * identity - product @ inner) / 4
    return inverse


def _between(marks: Landmarks) -> Tensor:
    """S(q̃, k̃), zero in the rows and columns of empty segments."""
    weights = softmax_attention_weights(marks.q, marks.k, key_mask=marks.mask)
    return zero_masked(weights, marks.mask)
