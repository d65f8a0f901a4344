"""MHLA, token-level multi-head linear attention: blocks of tokens share their sums of keys and values.

The map is cut into a grid of g × g blocks of equal size. Each block r sums its keys and values, and the
queries of block p read a mixture of these sums with coefficients M (g² × g²), shared by all heads. With
φ(x) = relu(x) + 1e-6, i a token of block p and j a token of block r,

    w_ij = M_pr φ(q_i)·φ(k_j) / D_i,        D_i = Σ_r M_pr φ(q_{r,i})·s_r,        s_r = Σ_{j in r} φ(k_j)

where q_{r,i} is the query of block r at the same place within its block as i. This is the authors' code: the
divisor mixes the products of every block's own query, not of q_i. So the weights do not sum to 1. As in their
code 1e-6 is added to D.

The authors' maps are squares that the grid divides. Other maps are padded at the bottom and the right until
both sides are multiples of g. Padded and masked tokens have no keys and values. They have no query either: in
D the mean φ(q) of the map takes its place, so that a divisor is not smaller where other blocks have padding.
Prefix tokens (such as a class token) are outside the grid. They attend to every token, and every token to
them, with the coefficient 1/g², the mean of a normalised initial M. For a prefix token this is plain linear
attention.

Reference: Zhang, Huang, Deng, Yu, Chen, Ling, Xie, Zhou, "MHLA: Restoring Expressivity of Linear Attention
via Token-Level Multi-Head", ICLR 2026, arXiv 2601.07832.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from inline.ops.kernels import divide_by_score
from inline.ops.symint import ceil_div
from inline.ops.tokens import ALL_QUERIES, count_prefix, full_precision, masked_mean, zero_masked

# Keeps φ above zero; value from the authors' code.
EPSILON = 1e-6


@full_precision
def mhla_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    hw: tuple[int, int],
    mixing: Tensor,
    *,
    key_mask: Tensor | None = None,
) -> Tensor:
    """Compute token-level multi-head linear attention with cost linear in the number of tokens.

    Args:
        q: Queries (B, heads, P + H·W, d): P prefix tokens, then the map in row-major order.
        k: Keys of the same tokens.
        v: Values (B, heads, P + H·W, e).
        hw: Height and width of the map.
        mixing: M (g², g²), rows for the blocks of the queries; blocks are in row-major order.
        key_mask: (B, P + H·W), True for the tokens to attend to; None for all.

    Returns:
        (B, heads, P + H·W, e).
    """
    prefix, grid = count_prefix(q.shape[-2], hw), math.isqrt(mixing.shape[0])
    phi_q, phi_k = relu_kernel(q), relu_kernel(k, key_mask)
    # With a channel of ones, the sums of keys are the last column of the sums of keys and values.
    v = F.pad(zero_masked(v, key_mask), (0, 1), value=1)
    blocks_q, blocks_k, blocks_v = (to_blocks(x[:, :, prefix:], hw, grid) for x in (phi_q, phi_k, v))
    sums = blocks_k.transpose(-2, -1) @ blocks_v
    mixed = (mixing @ sums.flatten(-2)).unflatten(-1, sums.shape[-2:])
    own = (_divisor_queries(phi_q, hw, grid, key_mask) @ sums[..., -1:]).squeeze(-1)
    scores = (mixing @ own).unsqueeze(-1)
    out = from_blocks(torch.cat([blocks_q @ mixed[..., :-1], scores], dim=-1), hw, grid)
    if prefix:
        uniform = 1 / mixing.shape[0]
        first_sum = phi_k[:, :, :prefix].transpose(-2, -1) @ v[:, :, :prefix]
        first = uniform * phi_q[:, :, :prefix] @ (first_sum + sums.sum(dim=2))
        out = torch.cat([first, out + uniform * phi_q[:, :, prefix:] @ first_sum], dim=2)
    return divide_by_score(out[..., :-1], out[..., -1:])


def mhla_attention_naive(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    hw: tuple[int, int],
    mixing: Tensor,
    *,
    key_mask: Tensor | None = None,
) -> Tensor:
    """Naive reference of :func:`mhla_attention`, query by query."""
    batch, heads, tokens, _ = q.shape
    prefix, grid = count_prefix(tokens, hw), math.isqrt(mixing.shape[0])
    sides = [-(-side // grid) for side in hw]
    places: dict[tuple[int, int], int] = {}
    for token in range(prefix, tokens):
        (row, top), (column, left) = (
            divmod(position, side)
            for position, side in zip(divmod(token - prefix, hw[1]), sides, strict=True)
        )
        places[row * grid + column, top * sides[1] + left] = token
    block_of = {token: place for place, token in places.items()}
    outs = []
    for i in range(batch):
        kept = [t for t in range(tokens) if key_mask is None or key_mask[i, t]]
        phi_q, phi_k = (x[i].clamp(min=0) + 1e-6 for x in (q, k))
        on_map = [t for t in kept if t >= prefix]
        mean_q = phi_q[:, on_map].mean(dim=1) if on_map else q.new_zeros(heads, q.shape[-1])
        rows = []
        for query in range(tokens):
            coefficients, asked = [], []
            for key in kept:
                if query < prefix or key < prefix:
                    coefficients.append(mixing.new_tensor(1 / grid**2))
                    asked.append(phi_q[:, query])
                    continue
                (block, place), (other, _) = block_of[query], block_of[key]
                twin = places.get((other, place))
                coefficients.append(mixing[block, other])
                asked.append(phi_q[:, twin] if twin in kept else mean_q)
            own_k, coefficient = phi_k[:, kept], torch.stack(coefficients)
            scores = coefficient * (phi_q[:, query, None] * own_k).sum(dim=-1)
            divisor = (coefficient * (torch.stack(asked, dim=1) * own_k).sum(dim=-1)).sum(dim=-1)
            shifted = divisor + 1e-6 * torch.where(divisor < 0, -1.0, 1.0)
            rows.append((scores[..., None] * v[i][:, kept]).sum(dim=1) / shifted[:, None])
        outs.append(torch.stack(rows, dim=1))
    return torch.stack(outs)


@full_precision
def mhla_attention_weights(
    q: Tensor,
    k: Tensor,
    hw: tuple[int, int],
    mixing: Tensor,
    *,
    queries: slice = ALL_QUERIES,
    key_mask: Tensor | None = None,
) -> Tensor:
    """Return the weight of every key for the selected queries, (B, heads, M, N); 0 for masked keys."""
    prefix, grid = count_prefix(q.shape[-2], hw), math.isqrt(mixing.shape[0])
    phi_q, phi_k = relu_kernel(q), relu_kernel(k, key_mask)
    block, place = block_indices(hw, grid, q.device)
    coefficients = F.pad(mixing[block[:, None], block], (prefix, 0, prefix, 0), value=1 / mixing.shape[0])
    scores = coefficients[queries] * (phi_q[:, :, queries] @ phi_k.transpose(-2, -1))
    divisor_q = _divisor_queries(phi_q, hw, grid, key_mask)
    key_sums = to_blocks(phi_k[:, :, prefix:], hw, grid).sum(dim=-2)
    # D of each token from the queries of all blocks at its place, (B, heads, H·W, blocks, d).
    twins = divisor_q[:, :, :, place].transpose(2, 3)
    on_map = (mixing[block] * (twins * key_sums.unsqueeze(2)).sum(dim=-1)).sum(dim=-1, keepdim=True)
    to_prefix = (phi_q @ phi_k[:, :, :prefix].sum(dim=2).unsqueeze(-1)) / mixing.shape[0]
    of_prefix = (phi_q[:, :, :prefix] @ key_sums.sum(dim=2).unsqueeze(-1)) / mixing.shape[0]
    divisor = to_prefix + torch.cat([of_prefix, on_map], dim=2)
    return divide_by_score(scores, divisor[:, :, queries])


def relu_kernel(x: Tensor, key_mask: Tensor | None = None) -> Tensor:
    """Return φ(x) for x (B, heads, N, d), zero where key_mask (B, N) is False."""
    return zero_masked(F.relu(zero_masked(x, key_mask)) + EPSILON, key_mask)


def to_blocks(x: Tensor, hw: tuple[int, int], grid: int, fill: Tensor | None = None) -> Tensor:
    """(B, heads, H·W, d) → (B, heads, blocks, places, d).

    ``fill`` (B, heads, 1, d) is the value of padding; None for 0.
    """
    height, width = (ceil_div(side, grid) for side in hw)
    bottom, right = height * grid - hw[0], width * grid - hw[1]
    x = F.pad(x.unflatten(2, hw), (0, 0, 0, right, 0, bottom))
    if fill is not None and (bottom or right):
        is_padding = F.pad(x.new_zeros(*hw, 1), (0, 0, 0, right, 0, bottom), value=1).bool()
        x = torch.where(is_padding, fill.unsqueeze(2), x)
    x = x.unflatten(3, (grid, width)).unflatten(2, (grid, height))
    return x.transpose(3, 4).flatten(4, 5).flatten(2, 3)


def from_blocks(x: Tensor, hw: tuple[int, int], grid: int) -> Tensor:
    """(B, heads, blocks, places, d) → (B, heads, H·W, d), without padding."""
    height, width = (ceil_div(side, grid) for side in hw)
    x = x.unflatten(3, (height, width)).unflatten(2, (grid, grid)).transpose(3, 4)
    return x.flatten(4, 5).flatten(2, 3)[:, :, : hw[0], : hw[1]].flatten(2, 3)


def block_indices(hw: tuple[int, int], grid: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the block of each token of the map and its place within the block, each (H·W)."""
    height, width = (ceil_div(side, grid) for side in hw)
    rows, columns = (torch.arange(side, device=device) for side in hw)
    block = (rows // height * grid)[:, None] + columns // width
    place = (rows % height * width)[:, None] + columns % width
    return block.flatten(), place.flatten()


def initial_mixing(grid: int, transform: str = 'linear', sigma: float = 3.0) -> Tensor:
    """Return the initial M (grid², grid²) from distances of blocks on the grid.

    Args:
        grid: g.
        transform: A name of :data:`TRANSFORMS`. All but gaussian are divided by their column sums.
        sigma: Width of exp.
    """
    position = torch.stack(torch.meshgrid(torch.arange(grid), torch.arange(grid), indexing='ij'), dim=-1)
    position = position.flatten(0, 1).double()
    distance = torch.cdist(position, position, compute_mode='donot_use_mm_for_euclid_dist')
    largest = max(math.sqrt(2) * (grid - 1), 1)
    mixing = TRANSFORMS[transform](distance, largest, sigma)
    return mixing if transform == 'gaussian' else mixing / mixing.sum(dim=0, keepdim=True)


# Functions of the distances, the largest of them, and sigma.
TRANSFORMS = {
    'linear': lambda distance, largest, _: 1 - distance / largest,
    'cos': lambda distance, largest, _: torch.cos(distance / largest * math.pi / 4),
    'exp': lambda distance, _, sigma: torch.exp(-distance / sigma),
    'local': lambda distance, _, __: (distance <= 1.5).to(distance.dtype),
    'gaussian': lambda distance, largest, _: torch.exp(-(distance**2) / (2 * (largest / 3) ** 2)),
}


def _divisor_queries(phi_q: Tensor, hw: tuple[int, int], grid: int, key_mask: Tensor | None) -> Tensor:
    """Return φ(q) by block (B, heads, blocks, places, d), with the mean φ(q) at masked and padded tokens."""
    prefix = count_prefix(phi_q.shape[-2], hw)
    on_map, mask = phi_q[:, :, prefix:], None if key_mask is None else key_mask[:, prefix:]
    mean = masked_mean(on_map, mask)
    if mask is not None:
        on_map = torch.where(mask[:, None, :, None], on_map, mean)
    return to_blocks(on_map, hw, grid, mean)
