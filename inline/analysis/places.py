"""Where the tokens of a part stand on the map, who their neighbours are, and which keys they attend to.

The regions of an image come one after another, so a part of b regions holds b / count images. Tokens
without a place on the map are prefix tokens (a class token) and padding.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from inline.models.mixers.base import Part

NOWHERE = -1
# Weights that are held at once: 32 MB in float32, 64 MB in float64.
MAX_WEIGHTS = 2**23


def query_blocks(part: Part, max_weights: int = MAX_WEIGHTS) -> Iterator[slice]:
    """Slices of the queries whose weights are at most so many numbers, but at least one query each."""
    regions, queries, _ = part.q.shape
    rows = max(max_weights // (regions * part.num_heads * part.k.shape[1]), 1)
    for start in range(0, queries, rows):
        yield slice(start, min(start + rows, queries))


def count_images(part: Part) -> int:
    return part.q.shape[0] // part.regions.count


def has_neighbours(part: Part) -> bool:
    """Whether keys are tokens of the same map as the queries; with spatial reduction they are not."""
    return part.k.shape[1] == part.q.shape[1]


def places(part: Part) -> Tensor:
    """For each token of each region of one image its place y·W + x on the map, or NOWHERE, (count, n)."""
    height, width = part.regions.hw
    prefix = part.x.shape[1] - height * width
    # Cut as float, in which padding works; in double, which counts far enough.
    indices = torch.arange(height * width, dtype=torch.float64, device=part.q.device)
    cut = part.regions.cut(indices[None, :, None], fill=NOWHERE).squeeze(-1).long()
    return torch.cat([cut.new_full((cut.shape[0], prefix), NOWHERE), cut], dim=1)


def neighbours(part: Part, side: int) -> tuple[Tensor, Tensor]:
    """The tokens of the side × side places around each token, row by row: those of the same region.

    Returns:
        Index of the token within its region (count, n, side²), and whether it is one (count, n, side²):
        not beyond the border of the map or the region, and near on the map, not by wrapping around.
    """
    (height, width), (rows, columns) = part.regions.hw, part.regions.window
    here = places(part)
    tokens = here.shape[1]
    prefix = tokens - rows * columns
    reach = torch.arange(side, device=here.device) - side // 2
    down, right = (offset.flatten() for offset in torch.meshgrid(reach, reach, indexing='ij'))
    own = torch.arange(tokens, device=here.device)[:, None] - prefix
    y, x = own // columns + down, own % columns + right
    inside = (own >= 0) & (y >= 0) & (y < rows) & (x >= 0) & (x < columns)
    index = torch.where(inside, prefix + y * columns + x, 0)
    there = here[:, index]
    map_y, map_x = here[..., None] // width + down, here[..., None] % width + right
    on_map = (map_y >= 0) & (map_y < height) & (map_x >= 0) & (map_x < width)
    near = inside & (here[..., None] != NOWHERE) & on_map & (there == map_y * width + map_x)
    return index.expand_as(near), near


def attended_keys(part: Part, weights: Tensor, queries: slice) -> Tensor:
    """Whether a query attends to a key at all, (b, M, N), for the weights (b, heads, M, N) of a block.

    It does not attend to padding, nor, where the mixer heeds that, to tokens that a shift wrapped around.
    """
    regions, _, rows, keys = weights.shape
    allowed = part.regions.pairs(weights.device) if has_neighbours(part) else None
    if allowed is None:
        return weights.new_ones(regions, rows, keys, dtype=torch.bool)
    allowed = allowed[:, queries].repeat(count_images(part), 1, 1)
    return allowed | (weights != 0).any(dim=1)


def valid_queries(part: Part) -> Tensor:
    """(b, n), False for padding."""
    if part.key_mask is None:
        return torch.ones(part.q.shape[:2], dtype=torch.bool, device=part.q.device)
    return part.key_mask
