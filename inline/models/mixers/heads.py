"""Channels to heads and back."""

from torch import Tensor


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """(B, N, heads·d) → (B, heads, N, d)."""
    return x.view(*x.shape[:-1], num_heads, -1).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(B, heads, N, d) → (B, N, heads·d)."""
    return x.transpose(1, 2).flatten(2)
