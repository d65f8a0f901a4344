"""Locality: the share of attention on the 3×3 neighbourhood of a query.

The share of a query is Σ|w| over the keys in its neighbourhood (including itself) divided by Σ|w| over all
its keys. Softmax weights are positive and sum to 1, so the share is their sum. InLine weights can be
negative: signed sums would cancel and could exceed 1. Prefix tokens are keys but have no neighbourhood.

With local terms (InLine's residual and LePE), channel c gives a neighbour the weight w + r_c. The share then
uses |w + r_c| and is averaged over the channels. Convolutions of other mixers are not included. The chance
level is the share under uniform weights: neighbours (fewer at the border) divided by keys.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from inline.analysis.layers import (
    MAX_WEIGHTS,
    Neighbors,
    attended_keys,
    count_images,
    find_neighbors,
    has_spatial_reduction,
    query_chunks,
)
from inline.models.mixers import AttentionMixer
from inline.models.mixers.base import AttentionInputs
from inline.models.mixers.inline import ResidualKernel

KERNEL_SIZE = 3


class Locality(NamedTuple):
    """Shares per image, each (images,).

    Args:
        attention: Share of the attention weights.
        with_local_terms: Share of attention plus local terms; None if the mixer has no local terms.
        chance: Share under uniform weights.
    """

    attention: Tensor
    with_local_terms: Tensor | None
    chance: Tensor


def layer_locality(
    mixer: AttentionMixer, inputs_list: Sequence[AttentionInputs], max_weights: int = MAX_WEIGHTS
) -> Locality | None:
    """Return the mean over heads and queries, or None if the layer has spatial reduction.

    The inputs of a layer have the same number of heads, so their means have the same weight.
    """
    if any(map(has_spatial_reduction, inputs_list)):
        return None
    results = [compute_locality(mixer, inputs, max_weights) for inputs in inputs_list]
    # Only the second field can be None.
    return Locality(
        *(  # type: ignore[arg-type]
            None if values[0] is None else torch.stack(values).mean(dim=0)
            for values in zip(*results, strict=True)
        )
    )


def compute_locality(
    mixer: AttentionMixer, inputs: AttentionInputs, max_weights: int = MAX_WEIGHTS
) -> Locality:
    kernels = local_kernels(mixer, inputs)
    images = count_images(inputs)
    neighbors = find_neighbors(inputs, KERNEL_SIZE)
    # The memory per query is that of its keys, or of nine neighbours per channel if these are more.
    widest = max(inputs.k.shape[1], KERNEL_SIZE**2 * inputs.q.shape[-1] // inputs.num_heads)
    sums = [
        _sum_shares(mixer.weights(inputs, rows), inputs, rows, neighbors, kernels)
        for rows in query_chunks(inputs, max_weights * inputs.k.shape[1] // widest)
    ]
    # Queries on the map have at least themselves as a neighbour; prefix tokens and padding are excluded.
    queries = neighbors.is_adjacent.any(dim=-1).sum(dim=1).unflatten(0, (images, -1)).sum(dim=1)
    attention, with_terms, chance = (
        torch.stack(chunk_sums).sum(dim=0).unflatten(0, (images, -1)).sum(dim=1) / queries
        for chunk_sums in zip(*sums, strict=True)
    )
    return Locality(attention, None if kernels is None else with_terms, chance)


def local_kernels(mixer: AttentionMixer, inputs: AttentionInputs) -> Tensor | None:
    """Return the sum of all 3×3 kernels that the mixer applies to the values, (b, c, 9), or None."""
    kernels = [residual_kernels(mixer, inputs)]
    if mixer.lepe is not None:
        lepe = mixer.lepe.conv.weight[inputs.channels].flatten(1)
        kernels.append(lepe.expand(inputs.q.shape[0], -1, -1))
    found = [kernel for kernel in kernels if kernel is not None]
    return torch.stack(found).sum(dim=0) if found else None


def residual_kernels(mixer: AttentionMixer, inputs: AttentionInputs) -> Tensor | None:
    """Return the 3×3 kernels of the local residual (b, c, 9), or None if the mixer has no residual."""
    residual = getattr(mixer, 'residual', None)
    if not isinstance(residual, ResidualKernel):
        return None
    kernels: list[Tensor] = []
    # The mean token depends on the mixer, so capture the kernels while the mixer computes them.
    with residual.register_forward_hook(lambda _module, _args, out: kernels.append(out)):
        mixer.local(inputs)
    return kernels[0][:, inputs.channels]


def _sum_shares(
    weights: Tensor,
    inputs: AttentionInputs,
    rows: slice,
    neighbors: Neighbors,
    kernels: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the three shares of :class:`Locality`, summed over the queries of a chunk, each (b,).

    Args:
        weights: Attention weights of the chunk (b, heads, M, N).
        inputs: The inputs of the layer.
        rows: The queries of the chunk.
        neighbors: The 3×3 neighbours of all queries.
        kernels: Local terms (b, c, 9).
    """
    index, in_window, is_adjacent = (t[:, rows] for t in neighbors)
    on_map = is_adjacent.any(dim=-1)
    near_weights = weights.gather(3, index[:, None].expand(-1, weights.shape[1], -1, -1))
    total = weights.abs().sum(dim=-1)
    inside = (near_weights.abs() * is_adjacent[:, None]).sum(dim=-1)
    attention = _sum_queries(_divide(inside, total).mean(dim=1), on_map)
    keys = attended_keys(inputs, weights, rows).sum(dim=-1)
    chance = _sum_queries(is_adjacent.sum(dim=-1).double() / keys, on_map)
    if kernels is None:
        return attention, attention, chance
    # A kernel acts on the rows of the window. With a cyclic shift, these may contain tokens that are not
    # adjacent on the map. Outside the window and on padding the kernel has no effect.
    combined = near_weights[:, :, None] + kernels.unflatten(1, (inputs.num_heads, -1))[:, :, :, None]
    change = (combined.abs() - near_weights.abs()[:, :, None]) * in_window[:, None, None]
    inside = inside[:, :, None] + (change * is_adjacent[:, None, None]).sum(dim=-1)
    total = total[:, :, None] + change.sum(dim=-1)
    return attention, _sum_queries(_divide(inside, total).mean(dim=(1, 2)), on_map), chance


def _divide(inside: Tensor, total: Tensor) -> Tensor:
    # A query whose weights are all zero has no local share.
    return torch.where(total > 0, inside / total, 0)


def _sum_queries(shares: Tensor, on_map: Tensor) -> Tensor:
    return (shares.double() * on_map).sum(dim=-1)
