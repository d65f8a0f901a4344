"""Nyströmformer's attention: an approximation of softmax attention with landmarks.

The sequence is split into m segments of nearly equal length; the landmarks q̃ and k̃ are the mean query and
the mean key of each segment. With S(a, b) = softmax(s · a bᵀ) over the rows,

    out = S(q, k̃) · S(q̃, k̃)⁺ · S(q̃, k) v        cost O(N·m·d) per head

The pseudo-inverse of A = S(q̃, k̃) is computed iteratively, with six iterations in the paper:

    Z ← Z (13 − AZ (15 − AZ (7 − AZ))) / 4        from Z = Aᵀ / (‖A‖₁ ‖A‖∞)

The norms are taken per matrix, so that images of a batch are independent. With at most m tokens the result is
exact softmax attention. Masked tokens are removed before the sequence is split into segments. If fewer than m
tokens remain, some segments are empty and are masked.

Reference: Xiong, Zeng, Chakraborty, Tan, Fung, Li, Singh, "Nyströmformer: A Nyström-Based Algorithm for
Approximating Self-Attention", AAAI 2021, arXiv 2102.03902.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from inline.ops.softmax_attention import softmax_attention, softmax_attention_weights
from inline.ops.tokens import ALL_QUERIES, no_autocast, zero_masked


class Landmarks(NamedTuple):
    """Segment means (B, heads, m, d), and a mask of the non-empty segments (B, m); None if all are."""

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
    """Compute Nyström attention with cost linear in the number of tokens.

    Args:
        q: Queries (B, heads, N, d).
        k: Keys of the same tokens.
        v: Values (B, heads, N, e).
        num_landmarks: m.
        iterations: Iterations of the pseudo-inverse.
        key_mask: (B, N), True for the tokens to attend to; None for all.

    Returns:
        (B, heads, N, e).
    """
    if k.shape[-2] <= num_landmarks:
        return softmax_attention(q, k, v, key_mask=key_mask)
    landmarks = compute_landmarks(q, k, num_landmarks, key_mask)
    gathered = softmax_attention(landmarks.q, k, v, key_mask=key_mask)
    inverse = pseudo_inverse(_landmark_weights(landmarks), iterations).to(v.dtype)
    return softmax_attention(q, landmarks.k, inverse @ gathered, key_mask=landmarks.mask)


def nystrom_attention_naive(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    num_landmarks: int = 64,
    iterations: int = 6,
    key_mask: Tensor | None = None,
) -> Tensor:
    """Naive reference of :func:`nystrom_attention`, image by image, with explicit N×N weights."""
    outs = []
    for i in range(q.shape[0]):
        kept = [t for t in range(k.shape[-2]) if key_mask is None or key_mask[i, t]]
        image_q, image_k, image_v = q[i], k[i][:, kept], v[i][:, kept]
        if k.shape[-2] <= num_landmarks:
            outs.append(softmax_attention_weights(image_q, image_k) @ image_v)
            continue
        segments: dict[int, list[int]] = {}
        for rank, token in enumerate(kept):
            segments.setdefault(rank * num_landmarks // len(kept), []).append(token)
        mean_q, mean_k = (
            torch.stack([x[i][:, tokens].mean(dim=1) for tokens in segments.values()], dim=1) for x in (q, k)
        )
        inverse = pseudo_inverse(softmax_attention_weights(mean_q, mean_k), iterations)
        weights = softmax_attention_weights(image_q, mean_k) @ inverse
        outs.append(weights @ softmax_attention_weights(mean_q, image_k) @ image_v)
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
    """Return the weight of every key for the selected queries, (B, heads, M, N); 0 for masked keys."""
    if k.shape[-2] <= num_landmarks:
        return softmax_attention_weights(q[:, :, queries], k, key_mask=key_mask)
    landmarks = compute_landmarks(q, k, num_landmarks, key_mask)
    inverse = pseudo_inverse(_landmark_weights(landmarks), iterations).to(q.dtype)
    to_landmarks = softmax_attention_weights(q[:, :, queries], landmarks.k, key_mask=landmarks.mask)
    return to_landmarks @ inverse @ softmax_attention_weights(landmarks.q, k, key_mask=key_mask)


def compute_landmarks(q: Tensor, k: Tensor, count: int, key_mask: Tensor | None) -> Landmarks:
    """Return ``count`` landmarks of queries and keys (B, heads, N, d) of the same tokens."""
    tokens = k.shape[-2]
    if key_mask is None:
        segment = torch.arange(tokens, device=k.device)[None] * count // tokens
    else:
        rank = key_mask.cumsum(dim=1) - 1
        segment = rank * count // key_mask.sum(dim=1, keepdim=True).clamp(min=1)
        segment = segment.masked_fill(~key_mask, -1)
    member = segment[:, None, :] == torch.arange(count, device=k.device)[:, None]
    size = member.sum(dim=-1, keepdim=True)
    mean_q, mean_k = (
        member[:, None].to(x.dtype) @ zero_masked(x, key_mask) / size[:, None].clamp(min=1).to(x.dtype)
        for x in (q, k)
    )
    return Landmarks(mean_q, mean_k, None if key_mask is None else size.squeeze(-1) > 0)


def pseudo_inverse(matrix: Tensor, iterations: int) -> Tensor:
    """Return the pseudo-inverse of non-zero matrices (…, m, m), in at least float32."""
    # Half-precision rounding errors would grow with every iteration.
    with no_autocast(matrix.device):
        matrix = matrix.to(torch.promote_types(matrix.dtype, torch.float32))
        identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
        magnitude = matrix.abs()
        norms = magnitude.sum(dim=-2).amax(dim=-1) * magnitude.sum(dim=-1).amax(dim=-1)
        inverse = matrix.transpose(-2, -1) / norms[..., None, None]
        for _ in range(iterations):
            product = matrix @ inverse
            inner = 15 * identity - product @ (7 * identity - product)
            inverse = inverse @ (13 * identity - product @ inner) / 4
    return inverse


def _landmark_weights(landmarks: Landmarks) -> Tensor:
    """Return S(q̃, k̃), zero in the rows and columns of empty segments."""
    weights = softmax_attention_weights(landmarks.q, landmarks.k, key_mask=landmarks.mask)
    return zero_masked(weights, landmarks.mask)
