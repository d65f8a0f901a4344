"""Between tokens (B, H·W, C) and maps (B, C, H, W)."""

from torch import Tensor


def map_to_tokens(x: Tensor) -> Tensor:
    return x.flatten(2).transpose(1, 2)


def tokens_to_map(x: Tensor, hw: tuple[int, int]) -> Tensor:
    return x.transpose(1, 2).unflatten(2, hw)
