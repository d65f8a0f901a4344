"""Masking: attention without some keys of each query, either its neighbours or as many random keys.

A masked key gets no weight, and the remaining keys are renormalised as if it did not exist:

    division (softmax, linear):   w'_j = w_j / Σ_rest w
    subtraction (InLine):         w'_j = (N (w_j − mean_rest w) + 1) / N'        N keys, N' of them remain

The second line is InLine's formula with mean, count and sums taken over the remaining keys: N·w_j equals
s·φ(q)·φ(k_j) up to a constant per query, which the new mean removes. A query whose keys are all masked gets a
zero output. Local terms of the mixer (residual and LePE) are unchanged.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from inline.analysis.layers import (
    MAX_WEIGHTS,
    NO_POSITION,
    Layer,
    attended_keys,
    count_images,
    find_neighbors,
    has_spatial_reduction,
    map_positions,
    query_chunks,
)
from inline.models.mixers import merge_heads, split_heads
from inline.models.mixers.base import AttentionInputs
from inline.ops.tokens import zero_masked
from inline.utils.errors import UserError

Renormalize = Callable[[Tensor, Tensor, Tensor], Tensor]


def renormalize_by_division(weights: Tensor, attended: Tensor, kept: Tensor) -> Tensor:  # noqa: ARG001 (shared)
    """Return the weights (b, heads, M, N) without masked keys.

    Args:
        weights: Weights over all keys (b, heads, M, N).
        attended: Keys that the weights were normalised over (b, M, N).
        kept: Keys that remain (b, M, N).
    """
    rest = weights * kept[:, None]
    total = rest.sum(dim=-1, keepdim=True)
    return torch.where(total != 0, rest / total, 0)


def renormalize_by_subtraction(weights: Tensor, attended: Tensor, kept: Tensor) -> Tensor:
    """Return the weights without masked keys, with the arguments of :func:`renormalize_by_division`."""
    before = attended.sum(dim=-1)[:, None, :, None]
    after = kept.sum(dim=-1)[:, None, :, None].clamp(min=1)
    mean = (weights * kept[:, None]).sum(dim=-1, keepdim=True) / after
    return (before * (weights - mean) + 1) / after * kept[:, None]


# By `normalization` of a mixer.
RENORMALIZE: dict[str, Renormalize] = {
    'division': renormalize_by_division,
    'subtraction': renormalize_by_subtraction,
}


@dataclass(frozen=True)
class Mask:
    """Which keys are masked for each query.

    Args:
        side: Side of the window around the query whose keys are masked.
        random: Mask the same number of random keys of the map instead, never prefix tokens. Heads share the
            random keys; queries, layers and images do not. They do not depend on the batch size.
        seed: Seed of the random keys.
    """

    side: int
    random: bool = False
    seed: int = 0


@contextmanager
def masked_attention(layers: Sequence[Layer], mask: Mask, first_image: int) -> Iterator[None]:
    """Run these layers with masked attention inside the context.

    Args:
        layers: Layers of a model.
        mask: Which keys to mask.
        first_image: Index of the first image of the batch, for the random keys.
    """
    try:
        for index, layer in enumerate(layers):
            # Large factors keep the seeds of different (seed, layer, image) apart in practice.
            first_seed = (mask.seed * 1_000_003 + index) * 10_000_019 + first_image
            # An instance attribute hides the method of the class until it is deleted.
            layer.mixer.attend = partial(  # type: ignore[method-assign]
                attend_masked, layer, layer.mixer.attend, mask, first_seed
            )
        yield
    finally:
        for layer in layers:
            vars(layer.mixer).pop('attend', None)


def check_maskable(layers: Sequence[Layer]) -> None:
    """Raise a UserError if masking is not defined for the normalisation of a layer."""
    for layer in layers:
        _find_renormalize(layer)


def attend_masked(
    layer: Layer,
    attend: Callable[[AttentionInputs], Tensor],
    mask: Mask,
    first_seed: int,
    inputs: AttentionInputs,
    max_weights: int = MAX_WEIGHTS,
) -> Tensor:
    """Return the masked output (b, n, c): `attend(inputs)` plus the effect of the changed weights.

    Image i of the batch has the seed `first_seed` + i.
    """
    if has_spatial_reduction(inputs):
        raise UserError(
            f'{layer.name} has {inputs.k.shape[1]} keys for {inputs.q.shape[1]} queries (spatial reduction), '
            'so keys have no distance to a query: select layers without it by --layers'
        )
    renormalize = _find_renormalize(layer)
    images = count_images(inputs)
    index, _, is_adjacent = find_neighbors(inputs, mask.side)
    on_map = (map_positions(inputs) != NO_POSITION).repeat(images, 1)
    v = split_heads(zero_masked(inputs.v, inputs.key_mask), inputs.num_heads)
    generators = [torch.Generator().manual_seed(first_seed + i) for i in range(images)]
    changes = []
    for rows in query_chunks(inputs, max_weights):
        weights = layer.mixer.weights(inputs, rows)
        attended = attended_keys(inputs, weights, rows)
        masked = _index_to_mask(index[:, rows], is_adjacent[:, rows], attended)
        if mask.random:
            masked = sample_keys(masked.sum(dim=-1), attended & on_map[:, None], generators)
        changes.append((renormalize(weights, attended, attended & ~masked) - weights) @ v)
    return attend(inputs) + merge_heads(torch.cat(changes, dim=2))


def sample_keys(counts: Tensor, candidates: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
    """Choose `counts` (b, M) random candidates (b, M, N) per query, with one generator per image."""
    largest = int(counts.max())
    windows, queries, keys = candidates.shape
    # Queries come first: the random numbers of a query then do not depend on the chunk size.
    size = (queries, windows // len(generators), keys)
    scores = torch.cat([torch.rand(size, generator=generator).transpose(0, 1) for generator in generators])
    scores = scores.to(candidates.device).masked_fill(~candidates, 2)
    chosen = scores.topk(largest, dim=-1, largest=False).indices
    is_used = torch.arange(largest, device=counts.device) < counts[..., None]
    return _index_to_mask(chosen, is_used, candidates)


def _index_to_mask(index: Tensor, is_used: Tensor, like: Tensor) -> Tensor:
    """Return a mask shaped as `like` (b, M, N) that is True at the used indices (b, M, K)."""
    counts = torch.zeros_like(like, dtype=torch.uint8)
    return counts.scatter_add(2, index, is_used.to(torch.uint8)).bool()


def _find_renormalize(layer: Layer) -> Renormalize:
    normalization = layer.mixer.normalization
    if normalization is None:
        raise UserError(
            f'{layer.name} is a {type(layer.mixer).__name__}: masking is only defined for weights that are '
            f'normalised by {" or ".join(RENORMALIZE)}'
        )
    return RENORMALIZE[normalization]
