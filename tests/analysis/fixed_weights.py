"""A mixer with given attention weights, and inputs for it."""

import torch
from torch import Tensor

from inline.models.layers import WindowPartition, full_map
from inline.models.mixers import AttentionMixer, merge_heads
from inline.models.mixers.base import ALL_QUERIES, AttentionInputs


class FixedWeightsMixer(AttentionMixer):
    """Returns fixed weights (b, heads, M, N), whatever the tokens are."""

    def __init__(self, weights: Tensor) -> None:
        super().__init__(dim=2 * weights.shape[1], num_heads=weights.shape[1])
        self.fixed = weights

    def attend(self, inputs: AttentionInputs) -> Tensor:
        return merge_heads(self.fixed @ inputs.heads()[2])

    def weights(self, inputs: AttentionInputs, queries: slice = ALL_QUERIES) -> Tensor:  # noqa: ARG002 (fixed)
        return self.fixed[:, :, queries]


def make_fixed(
    weights: Tensor, hw: tuple[int, int], windows: WindowPartition | None = None, prefix: int = 0
) -> tuple[FixedWeightsMixer, AttentionInputs]:
    """Return a mixer with the weights (b, heads, n, n), and inputs on a map of `hw` tokens."""
    mixer = FixedWeightsMixer(weights)
    windows = windows or full_map(hw)
    images = weights.shape[0] // windows.num_windows
    x = torch.zeros(images, prefix + hw[0] * hw[1], 2 * weights.shape[1], dtype=weights.dtype)
    tokens = windows.partition(x)
    inputs = AttentionInputs(
        v=tokens,
        make_qk=lambda: (tokens, tokens),
        num_heads=weights.shape[1],
        windows=windows,
        key_mask=windows.key_mask(images, x.device),
        channels=slice(0, x.shape[-1]),
        x=x,
        prenorm_x=None,
    )
    return mixer, inputs


def rows(*values: list[float]) -> Tensor:
    """Return the weights of one image and head, one row per query."""
    return torch.tensor(values, dtype=torch.float64)[None, None]


def random_tokens(hw: tuple[int, int], channels: int = 8, prefix: int = 0, images: int = 2) -> Tensor:
    size = (images, prefix + hw[0] * hw[1], channels)
    return torch.randn(size, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
