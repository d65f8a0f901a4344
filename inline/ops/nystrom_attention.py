"""Nyströmformer's attention: an approximation of softmax attention with landmarks.

The sequence is split into m segments; the landmarks q̃ and k̃ are the mean query and the mean key of each
segment. If m does not divide the N tokens, the last N mod m segments have one token more than the others, as
in the authors' code. With S(a, b) = softmax(s · a bᵀ) over the rows,

    out = S(q, k̃) · S(q̃, k̃)⁺ · S(q̃, k) v        cost O(N·m·d) per head

The pseudo-inverse of A = S(q̃, k̃) is computed iteratively, with six iterations in the paper:

    Z ← Z (13 − AZ (15 − AZ (7 − AZ))) / 4        from Z = Aᵀ / (‖A‖₁ ‖A‖∞)

The rows of A sum to 1, so ‖A‖∞ = 1. By default ‖A‖₁ is that of each matrix. The authors' code for the Long
Range Arena divides by the largest norm in the batch instead (``inverse_init='batch'``); then the images of a
batch affect each other, which is why it is not the default here. With at most m tokens the result is exact
softmax attention. Masked tokens are removed before the sequence is split into segments. If fewer than m
tokens remain, some segments are empty and are masked.

Reference: Xiong, Zeng, Chakraborty, Tan, Fung, Li, Singh, "Nyströmformer: A Nyström-Based Algorithm for
Approximating Self-Attention", AAAI 2021, arXiv 2102.03902.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from inline.ops.softmax_attention import softmax_attention, softmax_attention_weights
from inline.ops.tokens import ALL_QUERIES, no_autocast, zero_masked

# Over which matrices the norm of the starting value is taken: each image and head, or the whole batch.
InverseInit = Literal['image', 'batch']


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
    inverse_init: InverseInit = 'image',
    key_mask: Tensor | None = None,
) -> Tensor:
    """Compute Nyström attention with cost linear in the number of tokens.

    Args:
        q: Queries (B, heads, N, d).
        k: Keys of the same tokens.
        v: Values (B, heads, N, e).
        num_landmarks: m.
        iterations: Iterations of the pseudo-inverse.
        inverse_init: Whether its starting value is scaled per image and head, or per batch.
        key_mask: (B, N), True for the tokens to attend to; None for all.

    Returns:
        (B, heads, N, e).
    """
    if k.shape[-2] <= num_landmarks:
        return softmax_attention(q, k, v, key_mask=key_mask)
    landmarks = compute_landmarks(q, k, num_landmarks, key_mask)
    gathered = softmax_attention(landmarks.q, k, v, key_mask=key_mask)
    inverse = pseudo_inverse(_landmark_weights(landmarks), iterations, inverse_init).to(v.dtype)
    return softmax_attention(q, landmarks.k, inverse @ gathered, key_mask=landmarks.mask)


def nystrom_attention_naive(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    num_landmarks: int = 64,
    iterations: int = 6,
    inverse_init: InverseInit = 'image',
    key_mask: Tensor | None = None,
) -> Tensor:
    """Naive reference of :func:`nystrom_attention`, image by image, with explicit N×N weights."""

    def softmax_rows(a: Tensor, b: Tensor) -> Tensor:
        return (a @ b.transpose(-2, -1) / a.shape[-1] ** 0.5).softmax(dim=-1)

    kept = [[t for t in range(k.shape[-2]) if key_mask is None or key_mask[i, t]] for i in range(len(q))]
    if k.shape[-2] <= num_landmarks:
        return torch.stack([softmax_rows(q[i], k[i][:, own]) @ v[i][:, own] for i, own in enumerate(kept)])
    landmarks = []
    for i, own in enumerate(kept):
        # The shorter segments come first; empty ones are omitted.
        short, extra = divmod(len(own), num_landmarks)
        sizes = [short] * (num_landmarks - extra) + [short + 1] * extra
        ends = [sum(sizes[: j + 1]) for j in range(num_landmarks)]
        segments = [own[end - size : end] for size, end in zip(sizes, ends, strict=True) if size]
        landmarks.append([torch.stack([x[i][:, s].mean(dim=1) for s in segments], dim=1) for x in (q, k)])
    between = [softmax_rows(mean_q, mean_k) for mean_q, mean_k in landmarks]
    norms = [a.sum(dim=-2).amax(dim=-1)[:, None, None] for a in between]
    if inverse_init == 'batch':
        norms = [torch.stack([norm.max() for norm in norms]).max()] * len(norms)
    outs = []
    for i, (mean_q, mean_k) in enumerate(landmarks):
        a, eye = between[i], torch.eye(between[i].shape[-1], dtype=q.dtype)
        z = a.transpose(-2, -1) / norms[i]
        for _ in range(iterations):
            z = 0.25 * z @ (13 * eye - a @ z @ (15 * eye - a @ z @ (7 * eye - a @ z)))
        outs.append(
            softmax_rows(q[i], mean_k) @ z @ softmax_rows(mean_q, k[i][:, kept[i]]) @ v[i][:, kept[i]]
        )
    return torch.stack(outs)


def nystrom_attention_weights(
    q: Tensor,
    k: Tensor,
    *,
    num_landmarks: int = 64,
    iterations: int = 6,
    inverse_init: InverseInit = 'image',
    queries: slice = ALL_QUERIES,
    key_mask: Tensor | None = None,
) -> Tensor:
    """Return the weight of every key for the selected queries, (B, heads, M, N); 0 for masked keys."""
    if k.shape[-2] <= num_landmarks:
        return softmax_attention_weights(q[:, :, queries], k, key_mask=key_mask)
    landmarks = compute_landmarks(q, k, num_landmarks, key_mask)
    inverse = pseudo_inverse(_landmark_weights(landmarks), iterations, inverse_init).to(q.dtype)
    to_landmarks = softmax_attention_weights(q[:, :, queries], landmarks.k, key_mask=landmarks.mask)
    return to_landmarks @ inverse @ softmax_attention_weights(landmarks.q, k, key_mask=key_mask)


def compute_landmarks(q: Tensor, k: Tensor, count: int, key_mask: Tensor | None) -> Landmarks:
    """Return ``count`` landmarks of queries and keys (B, heads, N, d) of the same tokens."""
    if key_mask is None:
        rank, tokens = torch.arange(k.shape[-2], device=k.device)[None], k.shape[-2]
        segment = _segments(rank, tokens, count)
    else:
        segment = _segments(key_mask.cumsum(dim=1) - 1, key_mask.sum(dim=1, keepdim=True), count)
        segment = segment.masked_fill(~key_mask, -1)
    member = segment[:, None, :] == torch.arange(count, device=k.device)[:, None]
    size = member.sum(dim=-1, keepdim=True)
    mean_q, mean_k = (
        member[:, None].to(x.dtype) @ zero_masked(x, key_mask) / size[:, None].clamp(min=1).to(x.dtype)
        for x in (q, k)
    )
    return Landmarks(mean_q, mean_k, None if key_mask is None else size.squeeze(-1) > 0)


def _segments(rank: Tensor, tokens: int | Tensor, count: int) -> Tensor:
    """Return the segment of each token from its ``rank`` among the ``tokens`` that are not masked."""
    # The first segments have `size` tokens and the others one more. With fewer tokens than segments it is 0.
    size = tokens // count
    first_longer = (size + 1) * count - tokens
    in_shorter = rank // (size.clamp(min=1) if isinstance(size, Tensor) else size)
    in_longer = first_longer + (rank - first_longer * size) // (size + 1)
    return torch.where(rank < first_longer * size, in_shorter, in_longer)


def pseudo_inverse(matrix: Tensor, iterations: int, inverse_init: InverseInit = 'image') -> Tensor:
    """Return the pseudo-inverse of non-zero matrices (B, heads, m, m), in at least float32."""
    # Half-precision rounding errors would grow with every iteration.
    with no_autocast(matrix.device):
        matrix = matrix.to(torch.promote_types(matrix.dtype, torch.float32))
        identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
        magnitude = matrix.abs()
        axes = -1 if inverse_init == 'image' else tuple(range(matrix.dim() - 1))
        norms = magnitude.sum(dim=-2).amax(dim=axes) * magnitude.sum(dim=-1).amax(dim=axes)
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
