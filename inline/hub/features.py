"""Feature description as in timm: the available features, and those that a call returns."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from inline.models.backbones.common import Intermediate, init_weights
from inline.utils.arguments import check_choice
from inline.utils.errors import UserError

# Formats of intermediate features: maps (B, C, h, w), or tokens (B, h·w, C).
OUTPUT_FORMATS = ('NCHW', 'NLC')
Indices = int | Sequence[int] | None
Intermediates = list[Tensor] | list[tuple[Tensor, Tensor]]


class FeatureInfo:
    """Channels, reduction (stride with respect to the image) and module name of each level, as in timm.

    A level is a stage, or a block of a DeiT. Methods without `idx` describe the levels that the model
    returns, ``out_indices``.

    Args:
        info: A dict with num_chs, reduction and module for each level.
        out_indices: The levels that the model returns, from 0.
    """

    def __init__(self, info: Sequence[dict[str, Any]], out_indices: Sequence[int]) -> None:
        self.info = [{**level, 'index': i} for i, level in enumerate(info)]
        self.out_indices = tuple(out_indices)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.info[index]

    def __len__(self) -> int:
        return len(self.info)

    def get(self, key: str, idx: int | Sequence[int] | None = None) -> Any:
        """Return the value of `key` at level `idx`, or a list of values for several levels."""
        if isinstance(idx, int):
            return self.info[idx][key]
        return [self.info[i][key] for i in (self.out_indices if idx is None else idx)]

    def get_dicts(
        self, keys: Sequence[str] | None = None, idx: int | Sequence[int] | None = None
    ) -> dict[str, Any] | list[dict[str, Any]]:
        """Return the dict of level `idx`, or of several levels, with all keys or with `keys`."""
        if isinstance(idx, int):
            return {key: self.info[idx][key] for key in keys or self.info[idx]}
        levels = [self.info[i] for i in (self.out_indices if idx is None else idx)]
        return [{key: level[key] for key in keys or level} for level in levels]

    def channels(self, idx: int | Sequence[int] | None = None) -> Any:
        return self.get('num_chs', idx)

    def reduction(self, idx: int | Sequence[int] | None = None) -> Any:
        return self.get('reduction', idx)

    def module_name(self, idx: int | Sequence[int] | None = None) -> Any:
        return self.get('module', idx)


class LinearHead(nn.Module):
    """The classifier of the released models: one linear layer."""

    def __init__(self, dim: int, num_classes: int) -> None:
        super().__init__()
        self.fc = nn.Linear(dim, num_classes)
        self.apply(init_weights)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C) → (B, classes)."""
        return self.fc(x)


def take_indices(indices: Indices, count: int) -> list[int]:
    """Return levels from 0, in the given order: all for None, the last n for a number, or those of a list."""
    if indices is None:
        return list(range(count))
    chosen = list(range(-indices, 0)) if isinstance(indices, int) else list(indices)
    if not chosen or not all(-count <= i < count for i in chosen):
        raise UserError(
            f'indices {indices}: must be from {-count} to {count - 1}, or how many of the last, 1 to {count}'
        )
    return [i % count for i in chosen]


def format_intermediates(
    taken: Sequence[Intermediate], output_fmt: str, return_prefix_tokens: bool
) -> Intermediates:
    """Return maps or tokens, and with `return_prefix_tokens` pairs of them and the prefix tokens."""
    check_choice('output_fmt', output_fmt, OUTPUT_FORMATS)
    is_map = output_fmt == 'NCHW'
    features = [out.feature_map if is_map else out.feature_map.flatten(2).transpose(1, 2) for out in taken]
    if not return_prefix_tokens:
        return features
    pairs = [(x, out.prefix) for x, out in zip(features, taken, strict=True) if out.prefix is not None]
    if len(pairs) < len(features):
        raise UserError('return_prefix_tokens=True: only a DeiT has a class token')
    return pairs


def adapt_input_channels(weight: Tensor, channels: int) -> Tensor:
    """Convert the weight (C, 3, k, k) of an RGB patch embedding to another number of channels, as in timm.

    For one channel the three are summed, so that a grey image has the same output as its RGB copy. For more,
    they are repeated and scaled to keep the magnitude of the output.
    """
    if channels == 1:
        return weight.sum(dim=1, keepdim=True)
    repeats = -(-channels // weight.shape[1])
    return weight.repeat(1, repeats, 1, 1)[:, :channels] * (weight.shape[1] / channels)
