"""Attention maps: what one query of an image gives every place, and what the local residual adds to it."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from inline.analysis.layers import Layer
from inline.analysis.locality import residual_kernels
from inline.analysis.places import NOWHERE, attended_keys, has_neighbours, places
from inline.errors import UserError
from inline.models.mixers.base import Part

Pixel = tuple[int, int]


@dataclass(frozen=True)
class LayerMaps:
    """What is drawn of one layer.

    Args:
        layer: Which one.
        stride: Pixels that a place of the map is wide and high.
        weights: Of each query, the mean over the chosen heads (queries, h, w); NaN at places that it cannot
            see.
        key_stride: Pixels that a place of the weights is wide and high: more with spatial reduction.
        residual: Kernels of the local residual in the query's region, the mean over the channels of the
            chosen heads (queries, 3, 3); None if there is none.
    """

    layer: Layer
    stride: int
    weights: Tensor
    key_stride: int
    residual: Tensor | None


@dataclass(frozen=True)
class TokenResidual:
    """What the local residual adds to one token, as lengths over the channels of the chosen heads.

    Args:
        neighbours: Of what each of the nine neighbours adds, ‖r_t ∘ v_t‖ (3, 3); NaN where there is none.
        residual: Of their sum.
        attention: Of what attention gives the token.
    """

    neighbours: Tensor
    residual: float
    attention: float


def check_query(query: Pixel, size: tuple[int, int]) -> None:
    (y, x), (height, width) = query, size
    if not (0 <= y < height and 0 <= x < width):
        raise UserError(
            f'query {y} {x} is outside the image: as the model sees it, '
            f'it has {height} rows and {width} columns of pixels'
        )


def layer_maps(
    layer: Layer,
    parts: Sequence[Part],
    queries: Sequence[Pixel],
    size: tuple[int, int],
    head: int | None = None,
) -> LayerMaps:
    """The maps of queries, given as pixels (y, x) of one image of this size, (height, width).

    Of one head, counted from 0 over all parts, or of all if None.
    """
    heads = sum(part.num_heads for part in parts)
    if head is not None and not 0 <= head < heads:
        raise UserError(f'head {head + 1} of {layer.name}: it has {heads} heads')
    hw = parts[0].regions.hw
    stride = tell_stride(size, hw)
    tokens = [y * hw[1] + x for y, x in (find_token(query, size, hw) for query in queries)]
    reduction = 1 if has_neighbours(parts[0]) else tell_reduction(hw, parts[0].k.shape[1])
    drawn = [_weight_map(layer, parts, token, reduction, head) for token in tokens]
    kernels = [_residual(layer, parts, token, head) for token in tokens]
    found = [kernel for kernel in kernels if kernel is not None]
    return LayerMaps(
        layer, stride, torch.stack(drawn), stride * reduction, torch.stack(found) if found else None
    )


def token_residual(
    layer: Layer, parts: Sequence[Part], token: tuple[int, int], head: int | None = None
) -> TokenResidual | None:
    """What the residual adds to the token at (row, column); None if the layer has no residual.

    Of one head, counted from 0 over all parts, or of all if None.
    """
    index = token[0] * parts[0].regions.hw[1] + token[1]
    added, attended = [], []
    for part, heads in _choose_heads(parts, head):
        kernels = residual_kernels(layer.mixer, part)
        if kernels is None:
            return None
        region, row = _find(part, index)
        around = _around(part, region, row) * kernels[region].T.unflatten(0, (3, 3))
        added.append(around.unflatten(-1, (part.num_heads, -1))[:, :, heads].flatten(2))
        given = layer.mixer.attend(part)[region, row]
        attended.append(given.unflatten(0, (part.num_heads, -1))[heads].flatten())
    # Stripes of two directions may have different neighbours: one is missing where it is in neither.
    terms = torch.cat(added, dim=-1).double().cpu()
    missing = terms.isnan().all(dim=-1)
    terms = terms.nan_to_num()
    return TokenResidual(
        terms.norm(dim=-1).masked_fill(missing, math.nan),
        float(terms.sum(dim=(0, 1)).norm()),
        float(torch.cat(attended).double().norm()),
    )


def find_token(query: Pixel, size: tuple[int, int], hw: tuple[int, int]) -> tuple[int, int]:
    """Row and column of the token that has a pixel (y, x) of an image of this size, on a map of `hw`."""
    stride = tell_stride(size, hw)
    # A convolution may leave out the last pixels: they belong to the last token.
    return min(query[0] // stride, hw[0] - 1), min(query[1] // stride, hw[1] - 1)


def tell_stride(size: tuple[int, int], hw: tuple[int, int]) -> int:
    """Pixels to a token, from an image's size and its map's; the last row and column may be cut off."""

    sides = list(zip(size, hw, strict=True))
    # The strides of our families are powers of two, and an embedding may pad the image or leave pixels out.
    for stride in (2**i for i in range(11)):
        if all(abs(pixels / stride - tokens) < 1 for pixels, tokens in sides):
            return stride
    # A DeiT may have other patches, and pads.
    for stride in range(1, max(size) + 1):
        if all(math.ceil(pixels / stride) == tokens for pixels, tokens in sides):
            return stride
    raise UserError(f'a map of {hw[0]}×{hw[1]} tokens does not fit an image of {size[0]}×{size[1]} pixels')


def tell_reduction(hw: tuple[int, int], keys: int) -> int:
    """Tokens to a key along each axis, where keys are fewer than tokens."""
    for ratio in range(2, max(hw) + 1):
        if math.ceil(hw[0] / ratio) * math.ceil(hw[1] / ratio) == keys:
            return ratio
    raise UserError(f'{keys} keys are no map over {hw[0]}×{hw[1]} tokens: they cannot be drawn')


def _weight_map(layer: Layer, parts: Sequence[Part], token: int, reduction: int, head: int | None) -> Tensor:
    """(h, w) of the keys."""
    height, width = (math.ceil(side / reduction) for side in parts[0].regions.hw)
    total = torch.zeros(height * width, dtype=torch.float64)
    seen = torch.zeros(height * width, dtype=torch.bool)
    count = 0
    for part, heads in _choose_heads(parts, head):
        count += heads.stop - heads.start
        region, row = _find(part, token)
        weights = layer.mixer.weights(part, slice(row, row + 1))
        keys = attended_keys(part, weights, slice(row, row + 1))[region, 0].cpu()
        where = places(part)[region].cpu() if reduction == 1 else torch.arange(height * width)
        # Keys without a place, as the class token, cannot be drawn.
        drawn = keys & (where != NOWHERE)
        total[where[drawn]] += weights[region, heads, 0].double().sum(dim=0).cpu()[drawn]
        seen[where[drawn]] = True
    total /= count
    return total.masked_fill(~seen, math.nan).view(height, width)


def _residual(layer: Layer, parts: Sequence[Part], token: int, head: int | None) -> Tensor | None:
    """(3, 3), the mean over the channels of the chosen heads."""
    kernels = []
    for part, heads in _choose_heads(parts, head):
        found = residual_kernels(layer.mixer, part)
        if found is not None:
            own = found[_find(part, token)[0]]
            kernels.append(own.unflatten(0, (part.num_heads, -1))[heads].flatten(0, 1))
    return torch.cat(kernels).double().mean(dim=0).view(3, 3).cpu() if kernels else None


def _around(part: Part, region: int, row: int) -> Tensor:
    """The values of a token's nine neighbours in its region (3, 3, c); NaN beyond it and in its padding."""
    height, width = part.hw
    prefix = part.v.shape[1] - height * width
    values = part.v[region]
    if part.key_mask is not None:
        values = values.masked_fill(~part.key_mask[region, :, None], math.nan)
    padded = F.pad(values[prefix:].unflatten(0, part.hw), (0, 0, 1, 1, 1, 1), value=math.nan)
    y, x = divmod(row - prefix, width)
    return padded[y : y + 3, x : x + 3]


def _choose_heads(parts: Sequence[Part], head: int | None) -> Iterator[tuple[Part, slice]]:
    """The parts that have one of the chosen heads, and which of their heads these are."""
    first = 0
    for part in parts:
        if head is None:
            yield part, slice(0, part.num_heads)
        elif first <= head < first + part.num_heads:
            yield part, slice(head - first, head - first + 1)
        first += part.num_heads


def _find(part: Part, token: int) -> tuple[int, int]:
    """Region and row of a token of the map."""
    region, row = (places(part) == token).nonzero()[0].tolist()
    return region, row
