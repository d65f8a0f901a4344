"""Where tokens stand: P prefix tokens (a class token), then a map row by row."""

import torch
import torch.nn.functional as F
from torch import Tensor

ALL_QUERIES = slice(None)


def count_prefix(tokens: int, hw: tuple[int, int]) -> int:
    """P, the tokens that come before those of a map of ``hw``."""
    prefix = tokens - hw[0] * hw[1]
    if prefix < 0:
        raise ValueError(f'{tokens} tokens cannot hold a map of {hw[0]}×{hw[1]} = {hw[0] * hw[1]} tokens')
    return prefix


def add_to_map(x: Tensor, term: Tensor) -> Tensor:
    """x (B, P + H·W, C) with term (B, H·W, C) added to all but its prefix tokens.

    Where no gradient is wanted x itself takes the sum, so it must be the caller's own.
    """
    prefix = x.shape[1] - term.shape[1]
    if torch.is_grad_enabled():
        return x + (F.pad(term, (0, 0, prefix, 0)) if prefix else term)
    x[:, prefix:].add_(term)
    return x


def count_along(length: int, like: Tensor) -> Tensor:
    """0, 1, … length − 1 on the device of ``like``, in a precision that tells large numbers apart."""
    return torch.arange(length, device=like.device, dtype=torch.promote_types(like.dtype, torch.float32))
