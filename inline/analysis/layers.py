"""The attention layers of a model, and the layout of the tokens they attend over.

The windows of an image are consecutive in the batch dimension, so inputs of b windows contain b / num_windows
images. Prefix tokens (such as a class token) and padding have no position on the map.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from inline.models.mixers import AttentionMixer
from inline.models.mixers.base import AttentionInputs
from inline.utils.errors import UserError

# Position of tokens that are not on the map.
NO_POSITION = -1
# Attention weights held in memory at once: 32 MB in float32, 64 MB in float64.
MAX_WEIGHTS = 2**23


@dataclass(frozen=True)
class Layer:
    """An attention layer.

    Args:
        key: Short identifier for the command line, such as ``1.2`` (stage.block) or ``7`` (block).
        name: Readable name for tables and figures.
        mixer: The module.
    """

    key: str
    name: str
    mixer: AttentionMixer


def find_layers(model: nn.Module) -> list[Layer]:
    """Return all attention layers of a backbone, or of a model that contains one, from input to output."""
    layers = [
        _make_layer(path, module)
        for path, module in model.named_modules()
        if isinstance(module, AttentionMixer)
    ]
    if not layers:
        raise UserError(
            f'{type(model).__name__} has no attention layer of this package: its backbone must be an InLine '
            'backbone'
        )
    return layers


def choose_layers(layers: Sequence[Layer], keys: Sequence[str] | None) -> list[Layer]:
    """Return the layers with these keys in the order of the model, or all layers if `keys` is None."""
    if keys is None:
        return list(layers)
    known = [layer.key for layer in layers]
    for key in keys:
        if key not in known:
            raise UserError(f'layer {key!r} does not exist: choose from {", ".join(known)}')
    return [layer for layer in layers if layer.key in keys]


@contextmanager
def capture_inputs(
    layers: Sequence[Layer], callback: Callable[[Layer, list[AttentionInputs]], None]
) -> Iterator[None]:
    """Call `callback` with a layer and its attention inputs before each forward pass of the layer.

    The list has one element, or two for the two stripe directions of CSwin.
    """

    def hook(layer: Layer, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        callback(layer, list(layer.mixer.partition_inputs(*args, **kwargs)))

    with ExitStack() as hooks:
        for layer in layers:
            hooks.enter_context(layer.mixer.register_forward_pre_hook(partial(hook, layer), with_kwargs=True))
        yield


def query_chunks(inputs: AttentionInputs, max_weights: int = MAX_WEIGHTS) -> Iterator[slice]:
    """Yield slices of the queries, each with at most `max_weights` attention weights or a single query."""
    windows, queries, _ = inputs.q.shape
    rows = max(max_weights // (windows * inputs.num_heads * inputs.k.shape[1]), 1)
    for start in range(0, queries, rows):
        yield slice(start, min(start + rows, queries))


def count_images(inputs: AttentionInputs) -> int:
    return inputs.q.shape[0] // inputs.windows.num_windows


def has_spatial_reduction(inputs: AttentionInputs) -> bool:
    """Return whether there are fewer keys than tokens; such keys have no position on the map."""
    return inputs.k.shape[1] != inputs.q.shape[1]


def map_positions(inputs: AttentionInputs) -> Tensor:
    """Return the map position y·W + x of each token, or NO_POSITION, for one image: (windows, n)."""
    height, width = inputs.windows.hw
    prefix = inputs.x.shape[1] - height * width
    # Padding needs a floating point type; float64 represents all indices exactly.
    indices = torch.arange(height * width, dtype=torch.float64, device=inputs.q.device)
    on_map = inputs.windows.partition(indices[None, :, None], fill=NO_POSITION).squeeze(-1).long()
    return torch.cat([on_map.new_full((on_map.shape[0], prefix), NO_POSITION), on_map], dim=1)


class Neighbors(NamedTuple):
    """The side × side neighbours of each token in row-major order, each (b, n, side²).

    Args:
        indices: Index of the neighbour within the window.
        in_window: Whether the neighbour is a token of the window; False outside the window and on padding.
        is_adjacent: Whether the neighbour is also adjacent on the map; False across a cyclic shift.
    """

    indices: Tensor
    in_window: Tensor
    is_adjacent: Tensor


def find_neighbors(inputs: AttentionInputs, side: int) -> Neighbors:
    (height, width), (rows, columns) = inputs.windows.hw, inputs.windows.window
    positions = map_positions(inputs)[..., None]
    prefix = positions.shape[1] - rows * columns
    offsets = torch.arange(side, device=positions.device) - side // 2
    down, right = (offset.flatten() for offset in torch.meshgrid(offsets, offsets, indexing='ij'))
    token = torch.arange(positions.shape[1], device=positions.device)[:, None] - prefix
    y, x = token // columns + down, token % columns + right
    inside = (token >= 0) & (y >= 0) & (y < rows) & (x >= 0) & (x < columns)
    index = torch.where(inside, prefix + y * columns + x, 0)
    neighbor_positions = positions.squeeze(-1)[:, index]
    in_window = inside & (neighbor_positions != NO_POSITION)
    map_y, map_x = positions // width + down, positions % width + right
    inside_map = (map_y >= 0) & (map_y < height) & (map_x >= 0) & (map_x < width)
    is_adjacent = in_window & inside_map & (neighbor_positions == map_y * width + map_x)
    is_adjacent &= positions != NO_POSITION
    per_image = (index.expand_as(is_adjacent), in_window, is_adjacent)
    return Neighbors(*(t.repeat(count_images(inputs), 1, 1) for t in per_image))


def attended_keys(inputs: AttentionInputs, weights: Tensor, queries: slice) -> Tensor:
    """Return which keys each query attends to (b, M, N), given the weights (b, heads, M, N) of a chunk.

    Queries never attend to padding. Some mixers also exclude tokens that a cyclic shift wrapped around.
    """
    windows, _, rows, keys = weights.shape
    allowed = None if has_spatial_reduction(inputs) else inputs.windows.attention_mask(weights.device)
    if allowed is None:
        return weights.new_ones(windows, rows, keys, dtype=torch.bool)
    allowed = allowed[:, queries].repeat(count_images(inputs), 1, 1)
    return allowed | (weights != 0).any(dim=1)


def valid_queries(inputs: AttentionInputs) -> Tensor:
    """Return a mask of the queries (b, n) that is False for padding."""
    if inputs.key_mask is None:
        return torch.ones(inputs.q.shape[:2], dtype=torch.bool, device=inputs.q.device)
    return inputs.key_mask


def _make_layer(path: str, mixer: AttentionMixer) -> Layer:
    """Name a layer by its module path: ``stages.0.blocks.1.mixer`` is "stage 1 block 2"."""
    match = re.search(r'(?:^|\.)(?:stages\.(\d+)\.)?blocks\.(\d+)\.mixer$', path)
    if match is None:
        return Layer(path, path, mixer)
    block = int(match[2]) + 1
    if match[1] is None:
        return Layer(str(block), f'block {block}', mixer)
    stage = int(match[1]) + 1
    return Layer(f'{stage}.{block}', f'stage {stage} block {block}', mixer)
