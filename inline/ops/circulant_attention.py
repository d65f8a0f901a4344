"""Circulant attention: every channel has one weight per shift of the map, computed by Fourier transforms.

The map is a torus: rows and columns wrap around. In each channel, with N = H·W tokens at positions p,

    A(t) = softmax over all shifts t of N^(-1/2) Σ_p q(p) k(p + t),        out(p) = Σ_t A(t) v(p + t)

so the weight of a key depends on its offset to the query only, w_ij = A(p_j − p_i), and the weight matrix is
block-circulant. Both sums are correlations, which fast Fourier transforms compute in O(N log N).

The authors' maps are squares; a rectangular torus needs nothing else. They have no class token. Prefix tokens
have no position on the torus: each attends to all tokens with softmax attention per head, and the map does
not attend to them. Masked tokens have zero queries, keys and values on the torus, and N is the number of the
others: the weight of shifts that reach a masked token is lost, as with zero padding.

Reference: Han et al., "Vision Transformers are Circulant Attention Learners", AAAI 2026, arXiv 2512.21542.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from inline.ops.softmax_attention import softmax_attention, softmax_attention_weights
from inline.ops.tokens import ALL_QUERIES, count_keys, count_prefix, full_precision, zero_masked


@full_precision
def circulant_attention(
    q: Tensor, k: Tensor, v: Tensor, hw: tuple[int, int], *, key_mask: Tensor | None = None
) -> Tensor:
    """Compute circulant attention with cost O(N log N) in the number of tokens.

    Args:
        q: Queries (B, heads, P + H·W, d): P prefix tokens, then the map in row-major order. Heads matter
            for prefix tokens only.
        k: Keys of the same tokens.
        v: Values of the same tokens and channels.
        hw: Height and width of the map.
        key_mask: (B, P + H·W), True for the tokens to attend to; None for all.

    Returns:
        (B, heads, P + H·W, d).
    """
    prefix = count_prefix(q.shape[-2], hw)
    weights = shift_weights(q, k, hw, key_mask)
    values = torch.fft.rfft2(_to_maps(v, hw, key_mask))
    out = torch.fft.irfft2(torch.fft.rfft2(weights).conj() * values, s=hw).flatten(-2).transpose(-2, -1)
    if not prefix:
        return out
    first = softmax_attention(q[:, :, :prefix], k, v, key_mask=key_mask)
    return torch.cat([first, out], dim=2)


def circulant_attention_naive(
    q: Tensor, k: Tensor, v: Tensor, hw: tuple[int, int], *, key_mask: Tensor | None = None
) -> Tensor:
    """Naive reference of :func:`circulant_attention`, shift by shift, without Fourier transforms."""
    prefix = count_prefix(q.shape[-2], hw)
    q_map, k_map, v_map = (zero_masked(x, key_mask)[:, :, prefix:].unflatten(2, hw) for x in (q, k, v))
    count = q_map[0, 0, ..., 0].numel() if key_mask is None else key_mask[:, prefix:].sum(dim=1).clamp(min=1)
    scale = torch.as_tensor(count, dtype=q.dtype).view(-1, 1, 1) ** -0.5
    shifts = [(down, right) for down in range(hw[0]) for right in range(hw[1])]
    moved = [[x.roll((-down, -right), dims=(2, 3)) for x in (k_map, v_map)] for down, right in shifts]
    scores = torch.stack([scale * (q_map * keys).sum(dim=(2, 3)) for keys, _ in moved])
    weights = scores.softmax(dim=0)
    out = sum(weight[:, :, None, None] * values for weight, (_, values) in zip(weights, moved, strict=True))
    assert isinstance(out, Tensor)
    first = softmax_attention_weights(q[:, :, :prefix], k, key_mask=key_mask) @ zero_masked(v, key_mask)
    return torch.cat([first, out.flatten(2, 3)], dim=2)


@full_precision
def circulant_attention_weights(
    q: Tensor,
    k: Tensor,
    hw: tuple[int, int],
    *,
    queries: slice = ALL_QUERIES,
    key_mask: Tensor | None = None,
) -> Tensor:
    """Return the weight of every key for the selected queries, (B, heads·d, M, N), a matrix per channel."""
    prefix, tokens = count_prefix(q.shape[-2], hw), q.shape[-2]
    rows = torch.arange(tokens, device=q.device)[queries]
    first, on_map = rows[rows < prefix], rows[rows >= prefix] - prefix
    keys = torch.arange(hw[0] * hw[1], device=q.device)
    down = (keys // hw[1] - on_map[:, None] // hw[1]) % hw[0]
    right = (keys % hw[1] - on_map[:, None] % hw[1]) % hw[1]
    circulant = shift_weights(q, k, hw, key_mask).flatten(-2)[..., down * hw[1] + right].flatten(1, 2)
    circulant = F.pad(circulant, (prefix, 0))
    if key_mask is not None:
        circulant = circulant.masked_fill(~key_mask[:, None, None, :], 0)
    of_prefix = softmax_attention_weights(q[:, :, first], k, key_mask=key_mask)
    return torch.cat([of_prefix.repeat_interleave(q.shape[-1], dim=1), circulant], dim=2)


def shift_weights(q: Tensor, k: Tensor, hw: tuple[int, int], key_mask: Tensor | None = None) -> Tensor:
    """Return A for each channel, (B, heads, d, H, W)."""
    prefix = count_prefix(q.shape[-2], hw)
    q_map, k_map = _to_maps(q, hw, key_mask), _to_maps(k, hw, key_mask)
    scores = torch.fft.irfft2(torch.fft.rfft2(q_map).conj() * torch.fft.rfft2(k_map), s=hw)
    count = count_keys(k[:, :, prefix:], None if key_mask is None else key_mask[:, prefix:])
    count = count.unsqueeze(-1) if isinstance(count, Tensor) else count
    return (scores * count**-0.5).flatten(-2).softmax(dim=-1).unflatten(-1, hw)


def _to_maps(x: Tensor, hw: tuple[int, int], key_mask: Tensor | None) -> Tensor:
    """(B, heads, P + H·W, d) → (B, heads, d, H, W), zero at masked tokens."""
    prefix = count_prefix(x.shape[-2], hw)
    return zero_masked(x, key_mask)[:, :, prefix:].transpose(-2, -1).unflatten(-1, hw)
