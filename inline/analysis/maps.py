"""Attention maps: the weights of single queries over an image, and the contribution of the local residual."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from inline.analysis.layers import NO_POSITION, Layer, attended_keys, has_spatial_reduction, map_positions
from inline.analysis.locality import residual_kernels
from inline.models.mixers.base import AttentionInputs
from inline.utils.errors import UserError

Pixel = tuple[int, int]


@dataclass(frozen=True)
class LayerMaps:
    """Attention maps of one layer.

    Args:
        layer: The layer.
        stride: Pixels per token along each axis.
        weights: Weights of each query, averaged over the chosen heads (queries, h, w); NaN where the query
            cannot attend.
        key_stride: Pixels per key along each axis: larger than `stride` with spatial reduction.
        residual: Kernels of the local residual in the window of the query, averaged over the channels of the
            chosen heads (queries, 3, 3); None if there is no residual.
    """

    layer: Layer
    stride: int
    weights: Tensor
    key_stride: int
    residual: Tensor | None


@dataclass(frozen=True)
class TokenResidual:
    """Contribution of the local residual to one token, as L2 norms over the channels of the chosen heads.

    Args:
        neighbors: Norm of the contribution of each neighbour, ‖r_t ∘ v_t‖ (3, 3); NaN where missing.
        residual: Norm of the sum of all contributions.
        attention: Norm of the attention output of the token.
    """

    neighbors: Tensor
    residual: float
    attention: float


def check_query(query: Pixel, size: tuple[int, int]) -> None:
    (y, x), (height, width) = query, size
    if not (0 <= y < height and 0 <= x < width):
        raise UserError(
            f'query {y} {x} is outside the image: after the test pipeline it has {height} rows and {width} '
            'columns of pixels'
        )


def layer_maps(
    layer: Layer,
    inputs_list: Sequence[AttentionInputs],
    queries: Sequence[Pixel],
    size: tuple[int, int],
    head: int | None = None,
) -> LayerMaps:
    """Return the attention maps of some queries in one image.

    Args:
        layer: The layer.
        inputs_list: Its inputs for a batch of one image.
        queries: Pixels (y, x) of the image.
        size: Height and width of the image.
        head: Index of a head over all inputs; None to average over all heads.
    """
    heads = sum(inputs.num_heads for inputs in inputs_list)
    if head is not None and not 0 <= head < heads:
        raise UserError(f'head {head + 1} of {layer.name} does not exist: it has {heads} heads')
    hw = inputs_list[0].windows.hw
    stride = infer_stride(size, hw)
    tokens = [y * hw[1] + x for y, x in (find_token(query, size, hw) for query in queries)]
    ratio = infer_reduction(hw, inputs_list[0].k.shape[1]) if has_spatial_reduction(inputs_list[0]) else 1
    weights = [_weight_map(layer, inputs_list, token, ratio, head) for token in tokens]
    kernels = [_residual_kernel(layer, inputs_list, token, head) for token in tokens]
    found = [kernel for kernel in kernels if kernel is not None]
    return LayerMaps(
        layer, stride, torch.stack(weights), stride * ratio, torch.stack(found) if found else None
    )


def token_residual(
    layer: Layer, inputs_list: Sequence[AttentionInputs], token: tuple[int, int], head: int | None = None
) -> TokenResidual | None:
    """Return the residual's contribution to the token at (row, column), or None without a residual.

    `head` is the index of a head over all inputs; None includes all heads.
    """
    position = token[0] * inputs_list[0].windows.hw[1] + token[1]
    local_terms, attention_terms = [], []
    for inputs, heads in _select_heads(inputs_list, head):
        kernels = residual_kernels(layer.mixer, inputs)
        if kernels is None:
            return None
        window, row = _find_row(inputs, position)
        terms = _neighbor_values(inputs, window, row) * kernels[window].T.unflatten(0, (3, 3))
        local_terms.append(terms.unflatten(-1, (inputs.num_heads, -1))[:, :, heads].flatten(2))
        output = layer.mixer.attend(inputs)[window, row]
        attention_terms.append(output.unflatten(0, (inputs.num_heads, -1))[heads].flatten())
    # With two stripe directions, a neighbour is missing if it is in neither stripe.
    terms = torch.cat(local_terms, dim=-1).double().cpu()
    missing = terms.isnan().all(dim=-1)
    terms = terms.nan_to_num()
    return TokenResidual(
        terms.norm(dim=-1).masked_fill(missing, math.nan),
        float(terms.sum(dim=(0, 1)).norm()),
        float(torch.cat(attention_terms).double().norm()),
    )


def find_token(query: Pixel, size: tuple[int, int], hw: tuple[int, int]) -> tuple[int, int]:
    """Return row and column of the token that contains a pixel (y, x) of an image of `size`."""
    stride = infer_stride(size, hw)
    # A convolution may drop the last pixels; assign them to the last token.
    return min(query[0] // stride, hw[0] - 1), min(query[1] // stride, hw[1] - 1)


def infer_stride(size: tuple[int, int], hw: tuple[int, int]) -> int:
    """Return the number of pixels per token, given the sizes of an image and of its token map."""
    sides = list(zip(size, hw, strict=True))
    # Strides of the pyramid families are powers of two. Patch embeddings may pad the image or drop pixels.
    for stride in (2**i for i in range(11)):
        if all(abs(pixels / stride - tokens) < 1 for pixels, tokens in sides):
            return stride
    # A DeiT may have any patch size and pads the image.
    for stride in range(1, max(size) + 1):
        if all(math.ceil(pixels / stride) == tokens for pixels, tokens in sides):
            return stride
    raise UserError(f'a map of {hw[0]}×{hw[1]} tokens does not fit an image of {size[0]}×{size[1]} pixels')


def infer_reduction(hw: tuple[int, int], keys: int) -> int:
    """Return the spatial reduction ratio, given the token map and the number of keys."""
    for ratio in range(2, max(hw) + 1):
        if math.ceil(hw[0] / ratio) * math.ceil(hw[1] / ratio) == keys:
            return ratio
    raise UserError(f'{keys} keys do not form a map over {hw[0]}×{hw[1]} tokens, so they cannot be drawn')


def _weight_map(
    layer: Layer, inputs_list: Sequence[AttentionInputs], token: int, ratio: int, head: int | None
) -> Tensor:
    """Return the weights of one token on the map of the keys, (h, w)."""
    height, width = (math.ceil(side / ratio) for side in inputs_list[0].windows.hw)
    total = torch.zeros(height * width, dtype=torch.float64)
    is_seen = torch.zeros(height * width, dtype=torch.bool)
    count = 0
    for inputs, heads in _select_heads(inputs_list, head):
        count += heads.stop - heads.start
        window, row = _find_row(inputs, token)
        weights = layer.mixer.weights(inputs, slice(row, row + 1))
        keys = attended_keys(inputs, weights, slice(row, row + 1))[window, 0].cpu()
        positions = map_positions(inputs)[window].cpu() if ratio == 1 else torch.arange(height * width)
        # Keys that are not on the map, such as the class token, cannot be drawn.
        drawn = keys & (positions != NO_POSITION)
        total[positions[drawn]] += weights[window, heads, 0].double().sum(dim=0).cpu()[drawn]
        is_seen[positions[drawn]] = True
    total /= count
    return total.masked_fill(~is_seen, math.nan).view(height, width)


def _residual_kernel(
    layer: Layer, inputs_list: Sequence[AttentionInputs], token: int, head: int | None
) -> Tensor | None:
    """Return the residual kernel of a token, averaged over the channels of the chosen heads, (3, 3)."""
    kernels = []
    for inputs, heads in _select_heads(inputs_list, head):
        found = residual_kernels(layer.mixer, inputs)
        if found is not None:
            kernel = found[_find_row(inputs, token)[0]]
            kernels.append(kernel.unflatten(0, (inputs.num_heads, -1))[heads].flatten(0, 1))
    return torch.cat(kernels).double().mean(dim=0).view(3, 3).cpu() if kernels else None


def _neighbor_values(inputs: AttentionInputs, window: int, row: int) -> Tensor:
    """Return the values of a token's nine neighbours (3, 3, c); NaN outside the window and on padding."""
    height, width = inputs.hw
    prefix = inputs.v.shape[1] - height * width
    values = inputs.v[window]
    if inputs.key_mask is not None:
        values = values.masked_fill(~inputs.key_mask[window, :, None], math.nan)
    padded = F.pad(values[prefix:].unflatten(0, inputs.hw), (0, 0, 1, 1, 1, 1), value=math.nan)
    y, x = divmod(row - prefix, width)
    return padded[y : y + 3, x : x + 3]


def _select_heads(
    inputs_list: Sequence[AttentionInputs], head: int | None
) -> Iterator[tuple[AttentionInputs, slice]]:
    """Yield the inputs that contain a chosen head, with the slice of their heads."""
    first = 0
    for inputs in inputs_list:
        if head is None:
            yield inputs, slice(0, inputs.num_heads)
        elif first <= head < first + inputs.num_heads:
            yield inputs, slice(head - first, head - first + 1)
        first += inputs.num_heads


def _find_row(inputs: AttentionInputs, position: int) -> tuple[int, int]:
    """Return the window and the row within it of the token at a map position."""
    window, row = (map_positions(inputs) == position).nonzero()[0].tolist()
    return window, row
