"""Attention whose weights a test writes down, and parts to measure."""

import torch
from torch import Tensor

from inline.models.layers import Regions, whole_map
from inline.models.mixers import AttentionMixer
from inline.models.mixers.base import ALL_QUERIES, Part
from inline.models.mixers.heads import merge_heads


class WrittenMixer(AttentionMixer):
    """Gives the weights (b, heads, M, N) that it was made with, whatever the tokens are."""

    def __init__(self, weights: Tensor) -> None:
        super().__init__(dim=2 * weights.shape[1], num_heads=weights.shape[1])
        self.written = weights

    def attend(self, part: Part) -> Tensor:
        return merge_heads(self.written @ part.heads()[2])

    def weights(self, part: Part, queries: slice = ALL_QUERIES) -> Tensor:  # noqa: ARG002 (they are written)
        return self.written[:, :, queries]


def written(
    weights: Tensor, hw: tuple[int, int], regions: Regions | None = None, prefix: int = 0
) -> tuple[WrittenMixer, Part]:
    """A mixer of these weights (b, heads, n, n), and the part of a map that they are of."""
    mixer = WrittenMixer(weights)
    regions = regions or whole_map(hw)
    images = weights.shape[0] // regions.count
    x = torch.zeros(images, prefix + hw[0] * hw[1], 2 * weights.shape[1], dtype=weights.dtype)
    tokens = regions.cut(x)
    part = Part(
        v=tokens,
        make_qk=lambda: (tokens, tokens),
        num_heads=weights.shape[1],
        regions=regions,
        key_mask=regions.key_mask(images, x.device),
        channels=slice(0, x.shape[-1]),
        x=x,
        unnormed=None,
    )
    return mixer, part


def rows(*values: list[float]) -> Tensor:
    """Weights of one image and head, a row for each query."""
    return torch.tensor(values, dtype=torch.float64)[None, None]


def tokens(hw: tuple[int, int], channels: int = 8, prefix: int = 0, images: int = 2) -> Tensor:
    size = (images, prefix + hw[0] * hw[1], channels)
    return torch.randn(size, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
