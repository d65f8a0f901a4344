"""Masking: attention in which every query is denied some keys, the near ones or as many random ones.

A masked key gets no weight, and the others are weighed as if it had never been there:

    division (softmax, linear):   w'_j = w_j / Σ_rest w
    subtraction (InLine):         w'_j = (N (w_j − mean_rest w) + 1) / N'        N keys, N' of them left

The second is the mean, the count and the sums of InLine's formula taken over the rest: N·w_j is s·φ(q)·φ(k_j)
up to a constant of the query, which the new mean takes away. A query whose keys are all masked gets nothing
from attention. What a mixer adds to attention, the local residual and LePE, stays as it is.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from unittest import mock

import torch
from torch import Tensor

from inline.analysis.layers import Layer
from inline.analysis.places import (
    MAX_WEIGHTS,
    NOWHERE,
    attended_keys,
    count_images,
    has_neighbours,
    neighbours,
    places,
    query_blocks,
)
from inline.errors import UserError
from inline.models.mixers.base import Part
from inline.models.mixers.heads import merge_heads, split_heads
from inline.ops.masking import zero_masked

Renormalise = Callable[[Tensor, Tensor, Tensor], Tensor]


def divide_by_rest(weights: Tensor, keys: Tensor, kept: Tensor) -> Tensor:  # noqa: ARG001 (see the other)
    """Weights (b, heads, M, N) over the keys that are kept out of those attended to, both (b, M, N)."""
    rest = weights * kept[:, None]
    total = rest.sum(dim=-1, keepdim=True)
    return torch.where(total != 0, rest / total, 0)


def subtract_mean_of_rest(weights: Tensor, keys: Tensor, kept: Tensor) -> Tensor:
    """Weights (b, heads, M, N) over the keys that are kept out of those attended to, both (b, M, N)."""
    before = keys.sum(dim=-1)[:, None, :, None]
    left = kept.sum(dim=-1)[:, None, :, None].clamp(min=1)
    mean = (weights * kept[:, None]).sum(dim=-1, keepdim=True) / left
    return (before * (weights - mean) + 1) / left * kept[:, None]


# By a mixer's normalisation, what its weights are without some keys.
RENORMALISE: dict[str, Renormalise] = {'division': divide_by_rest, 'subtraction': subtract_mean_of_rest}


@dataclass(frozen=True)
class Mask:
    """Which keys a query is denied: those of the side × side places around it, or as many at random.

    Random ones are drawn from the map, prefix tokens apart, for each query, layer and image anew; all
    heads share them. They depend on the seed and the image's number, not on batches or blocks.
    """

    side: int
    random: bool = False
    seed: int = 0


@contextmanager
def masked(
    layers: Sequence[Layer], mask: Mask, first_image: int, max_weights: int = MAX_WEIGHTS
) -> Iterator[None]:
    """Let the model of these layers run with masked attention; the batch starts with this image."""
    with ExitStack() as patches:
        for number, layer in enumerate(layers):
            generators = partial(_seeded, mask.seed, number, first_image)
            attend = partial(
                masked_attend, layer, layer.mixer.attend, mask, generators, max_weights=max_weights
            )
            patches.enter_context(mock.patch.object(layer.mixer, 'attend', attend))
        yield


def check_maskable(layers: Sequence[Layer]) -> None:
    for layer in layers:
        _renormalise(layer)


def masked_attend(
    layer: Layer,
    attend: Callable[[Part], Tensor],
    mask: Mask,
    generators: Callable[[int], list[torch.Generator]],
    part: Part,
    max_weights: int = MAX_WEIGHTS,
) -> Tensor:
    """What each query of a part gets (b, n, c): what it got, and what the change of weights makes of it."""
    if not has_neighbours(part):
        raise UserError(
            f'{layer.name} has {part.k.shape[1]} keys for {part.q.shape[1]} queries (spatial reduction): '
            'no key is near or far from a query there; name layers without it by --layers'
        )
    renormalise = _renormalise(layer)
    images = count_images(part)
    index, near = (t.repeat(images, 1, 1) for t in neighbours(part, mask.side))
    on_map = (places(part) != NOWHERE).repeat(images, 1)
    v = split_heads(zero_masked(part.v, part.key_mask), part.num_heads)
    draws = generators(images)
    changes = []
    for rows in query_blocks(part, max_weights):
        weights = layer.mixer.weights(part, rows)
        keys = attended_keys(part, weights, rows)
        denied = _scatter(index[:, rows], near[:, rows], keys)
        if mask.random:
            denied = draw_keys(denied.sum(dim=-1), keys & on_map[:, None], draws)
        changes.append((renormalise(weights, keys, keys & ~denied) - weights) @ v)
    return attend(part) + merge_heads(torch.cat(changes, dim=2))


def draw_keys(counts: Tensor, candidates: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
    """As many of each query's candidates (b, M, N) as counts (b, M) says, drawn by the image's generator."""
    most = int(counts.max())
    regions, queries, keys = candidates.shape
    # Query after query: what is drawn for one must not depend on the blocks.
    size = (queries, regions // len(generators), keys)
    scores = torch.cat([torch.rand(size, generator=one).transpose(0, 1) for one in generators])
    scores = scores.to(candidates.device).masked_fill(~candidates, 2)
    chosen = scores.topk(most, dim=-1, largest=False).indices
    return _scatter(chosen, torch.arange(most, device=counts.device) < counts[..., None], candidates)


def _scatter(index: Tensor, chosen: Tensor, like: Tensor) -> Tensor:
    """A mask shaped as `like` (b, M, N), True at those of the indices (b, M, K) that are chosen."""
    counts = torch.zeros_like(like, dtype=torch.uint8)
    return counts.scatter_add(2, index, chosen.to(torch.uint8)).bool()


def _renormalise(layer: Layer) -> Renormalise:
    kind = layer.mixer.normalisation
    if kind is None:
        raise UserError(
            f'{layer.name} is a {type(layer.mixer).__name__}: masking is defined for weights that are '
            f'normalised by {" or ".join(RENORMALISE)}, which its are not'
        )
    return RENORMALISE[kind]


def _seeded(seed: int, layer: int, first_image: int, images: int) -> list[torch.Generator]:
    """A generator for each image of a batch in some layer."""
    # Far apart by odd factors, so that no two of (seed, layer, image) share a stream in practice.
    return [
        torch.Generator().manual_seed((seed * 1_000_003 + layer) * 10_000_019 + first_image + i)
        for i in range(images)
    ]
