"""Locality: the share of attention that stays in the 3×3 neighbourhood of a query.

The share of a query is Σ|w| over the keys of its neighbourhood, itself included, divided by Σ|w| over all
its keys. Softmax weights are positive and sum to 1, so it is their sum there; InLine's can be negative, and
sums of signed weights would cancel and could exceed 1. Prefix tokens are keys but have no neighbourhood.

With local terms, which are InLine's residual and LePE, channel c gives a neighbour w + r_c; the share then
is of |w + r_c|, as a mean over the channels. Convolutions of other mixers are not counted. The chance level
is what equal weights give: neighbours, fewer at the border, divided by keys.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from inline.analysis.places import (
    MAX_WEIGHTS,
    attended_keys,
    count_images,
    has_neighbours,
    neighbours,
    query_blocks,
    valid_queries,
)
from inline.models.mixers import AttentionMixer
from inline.models.mixers.base import Part
from inline.models.mixers.inline import ResidualKernel

SIDE = 3


@dataclass(frozen=True)
class Locality:
    """Shares of each image, (images,): of attention, of attention with local terms if any, of chance."""

    attention: Tensor
    with_local_terms: Tensor | None
    chance: Tensor


def layer_locality(
    mixer: AttentionMixer, parts: Sequence[Part], max_weights: int = MAX_WEIGHTS
) -> Locality | None:
    """The mean over heads and queries; None where keys are not places of the same map."""
    if not all(map(has_neighbours, parts)):
        return None
    # All parts have equally many heads.
    each = [part_locality(mixer, part, max_weights) for part in parts]
    with_terms = [one.with_local_terms for one in each if one.with_local_terms is not None]
    return Locality(
        torch.stack([one.attention for one in each]).mean(dim=0),
        torch.stack(with_terms).mean(dim=0) if with_terms else None,
        torch.stack([one.chance for one in each]).mean(dim=0),
    )


def part_locality(mixer: AttentionMixer, part: Part, max_weights: int = MAX_WEIGHTS) -> Locality:
    kernels = local_kernels(mixer, part)
    images = count_images(part)
    index, near = (t.repeat(images, 1, 1) for t in neighbours(part, SIDE))
    # Nine neighbours of every channel must fit as well as the keys.
    widest = max(part.k.shape[1], 9 * part.q.shape[-1] // part.num_heads)
    blocks = query_blocks(part, max_weights * part.k.shape[1] // widest)
    sums = [
        _sum_shares(mixer.weights(part, rows), part, rows, index[:, rows], near[:, rows], kernels)
        for rows in blocks
    ]
    # A query counts if it has a neighbourhood: the place itself, at least.
    queries = near.any(dim=-1).sum(dim=1).unflatten(0, (images, -1)).sum(dim=1)
    attention, with_terms, chance = (
        torch.stack(each).sum(dim=0).unflatten(0, (images, -1)).sum(dim=1) / queries
        for each in zip(*sums, strict=True)
    )
    return Locality(attention, None if kernels is None else with_terms, chance)


def local_kernels(mixer: AttentionMixer, part: Part) -> Tensor | None:
    """What the local terms give the 3×3 neighbours in each channel (b, c, 9), row by row; None if nothing."""
    kernels = [residual_kernels(mixer, part)]
    if mixer.lepe is not None:
        lepe = mixer.lepe.conv.weight[part.channels].flatten(1)
        kernels.append(lepe.expand(part.q.shape[0], -1, -1))
    found = [kernel for kernel in kernels if kernel is not None]
    return torch.stack(found).sum(dim=0) if found else None


def residual_kernels(mixer: AttentionMixer, part: Part) -> Tensor | None:
    """The 3×3 kernels of the local residual (b, c, 9), row by row; None if the mixer has none."""
    residual = getattr(mixer, 'residual', None)
    if not isinstance(residual, ResidualKernel):
        return None
    kernels: list[Tensor] = []
    # Which mean token they are made from is the mixer's business: they are read while it uses them.
    with residual.register_forward_hook(lambda _module, _args, out: kernels.append(out)):
        mixer.local(part)
    return kernels[0][:, part.channels]


def _sum_shares(
    weights: Tensor, part: Part, rows: slice, index: Tensor, near: Tensor, kernels: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Shares of attention, of attention with local terms and of chance, summed over the queries, (b,).

    Args:
        weights: Of a block of queries (b, heads, M, N).
        part: What they are of.
        rows: Which queries they are.
        index, near: Their neighbours (b, M, 9) and which of them are near on the map.
        kernels: Local terms (b, c, 9).
    """
    counted = near.any(dim=-1)
    own = weights.gather(3, index[:, None].expand(-1, weights.shape[1], -1, -1))
    total = weights.abs().sum(dim=-1)
    inside = (own.abs() * near[:, None]).sum(dim=-1)
    attention = _sum_queries(_divide(inside, total).mean(dim=1), counted)
    keys = attended_keys(part, weights, rows).sum(dim=-1)
    chance = _sum_queries(near.sum(dim=-1).double() / keys, counted)
    if kernels is None:
        return attention, attention, chance
    # A kernel follows the region's rows, where a shift may have put places that are not near on the map,
    # and gives nothing to places beyond the region or in its padding.
    present = _in_region(part, rows, index)
    mixed = own[:, :, None] + kernels.unflatten(1, (part.num_heads, -1))[:, :, :, None]
    change = (mixed.abs() - own.abs()[:, :, None]) * present[:, None, None]
    near = near[:, None, None]
    inside, total = inside[:, :, None] + (change * near).sum(dim=-1), total[:, :, None] + change.sum(dim=-1)
    return attention, _sum_queries(_divide(inside, total).mean(dim=(1, 2)), counted), chance


def _in_region(part: Part, rows: slice, index: Tensor) -> Tensor:
    """Whether the 3×3 neighbours (b, M, 9) of some queries are tokens of their region, not padding."""
    (height, width), tokens = part.regions.window, part.q.shape[1]
    own = torch.arange(tokens, device=index.device)[rows, None] - (tokens - height * width)
    t = torch.arange(SIDE**2, device=index.device)
    y, x = own // width + t // SIDE - 1, own % width + t % SIDE - 1
    inside = (own >= 0) & (y >= 0) & (y < height) & (x >= 0) & (x < width)
    return inside & valid_queries(part).gather(1, index.flatten(1)).view_as(index)


def _divide(inside: Tensor, total: Tensor) -> Tensor:
    # A query that gives no key any weight has nothing local either.
    return torch.where(total > 0, inside / total, 0)


def _sum_queries(shares: Tensor, counted: Tensor) -> Tensor:
    return (shares.double() * counted).sum(dim=-1)
