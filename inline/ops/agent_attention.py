"""Agent attention: a few agent tokens collect the values, and queries attend to the agents.

The agents are the average-pooled queries of the map, on a grid of √n × √n cells. With scale s = d^(-1/2) and
learned biases B₁ (agents × keys) and B₂ (queries × agents) that depend on positions only,

    out = softmax(s · q aᵀ + B₂) · softmax(s · a kᵀ + B₁) v,        a = pool(q)        cost O(N·n·d) per head

Cell i of a side of length L covers places ⌊i·L/√n⌋ to ⌈(i+1)·L/√n⌉ − 1, so cells may overlap, and any map
has the same number of agents. Prefix tokens (such as a class token) are queries and keys but not pooled.
Masked tokens are not pooled either: an agent is the mean of the unmasked tokens of its cell, and an agent of
an empty cell is masked. If the whole map is masked, all agents are zero. The paper's depthwise convolution of
the values is a local term of the mixer.

Reference: Han, Ye, Han, Xia, Pan, Wan, Song, Huang, "Agent Attention: On the Integration of Softmax and
Linear Attention", ECCV 2024, arXiv 2312.08874.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from inline.ops.softmax_attention import softmax_attention, softmax_attention_weights
from inline.ops.tokens import ALL_QUERIES, count_prefix, zero_masked


class Agents(NamedTuple):
    """Agents (B, heads, n, d), and a mask of those with tokens (B, n); None if all have."""

    q: Tensor
    mask: Tensor | None


def agent_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    hw: tuple[int, int],
    *,
    num_agents: int = 49,
    key_bias: Tensor | None = None,
    query_bias: Tensor | None = None,
    key_mask: Tensor | None = None,
) -> Tensor:
    """Compute agent attention with cost linear in the number of tokens.

    Args:
        q: Queries (B, heads, P + H·W, d): P prefix tokens, then the map in row-major order.
        k: Keys (B, heads, N, d); they may be fewer than the queries.
        v: Values (B, heads, N, e).
        hw: Height and width of the map of the queries.
        num_agents: n, a square number.
        key_bias: B₁; broadcasts to (B, heads, n, N). None for none.
        query_bias: B₂; broadcasts to (B, heads, P + H·W, n). None for none.
        key_mask: (B, P + H·W), True for the tokens to attend to; None for all.

    Returns:
        (B, heads, P + H·W, e).
    """
    agents = pool_agents(q, hw, num_agents, key_mask)
    agent_values = softmax_attention(agents.q, k, v, bias=key_bias, key_mask=key_mask)
    return softmax_attention(q, agents.q, agent_values, bias=query_bias, key_mask=agents.mask)


def agent_attention_naive(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    hw: tuple[int, int],
    *,
    num_agents: int = 49,
    key_bias: Tensor | None = None,
    query_bias: Tensor | None = None,
    key_mask: Tensor | None = None,
) -> Tensor:
    """Naive reference of :func:`agent_attention`, image by image, with the cells of the grid one by one."""
    prefix, side, scale = count_prefix(q.shape[-2], hw), math.isqrt(num_agents), q.shape[-1] ** -0.5
    bias_1, bias_2 = (0 if bias is None else bias for bias in (key_bias, query_bias))
    outs = []
    for i in range(q.shape[0]):
        kept = [t for t in range(k.shape[-2]) if key_mask is None or key_mask[i, t]]
        agents, present = [], []
        for cell in range(num_agents):
            rows, columns = (
                range(place * length // side, -(-(place + 1) * length // side))
                for place, length in zip(divmod(cell, side), hw, strict=True)
            )
            tokens = [prefix + y * hw[1] + x for y in rows for x in columns]
            tokens = [t for t in tokens if key_mask is None or key_mask[i, t]]
            if tokens:
                agents.append(q[i][:, tokens].mean(dim=1))
                present.append(cell)
        if not agents:
            agents, present = [torch.zeros_like(q[i, :, 0])] * num_agents, list(range(num_agents))
        agent = torch.stack(agents, dim=1)
        zeros = q.new_zeros(q.shape[1], 1, 1)
        own_1 = (bias_1 + zeros).expand(-1, num_agents, k.shape[-2])[:, present][:, :, kept]
        own_2 = (bias_2 + zeros).expand(-1, q.shape[-2], num_agents)[:, :, present]
        collect = (scale * agent @ k[i][:, kept].transpose(-2, -1) + own_1).softmax(dim=-1)
        spread = (scale * q[i] @ agent.transpose(-2, -1) + own_2).softmax(dim=-1)
        outs.append(spread @ collect @ v[i][:, kept])
    return torch.stack(outs)


def agent_attention_weights(
    q: Tensor,
    k: Tensor,
    hw: tuple[int, int],
    *,
    num_agents: int = 49,
    key_bias: Tensor | None = None,
    query_bias: Tensor | None = None,
    queries: slice = ALL_QUERIES,
    key_mask: Tensor | None = None,
) -> Tensor:
    """Return the weight of every key for the selected queries, (B, heads, M, N); 0 for masked keys."""
    agents = pool_agents(q, hw, num_agents, key_mask)
    collect = softmax_attention_weights(agents.q, k, bias=key_bias, key_mask=key_mask)
    query_bias = None if query_bias is None else query_bias[..., queries, :]
    spread = softmax_attention_weights(q[:, :, queries], agents.q, bias=query_bias, key_mask=agents.mask)
    return spread @ collect


def pool_agents(q: Tensor, hw: tuple[int, int], count: int, key_mask: Tensor | None = None) -> Agents:
    """Return the mean query of each cell of a grid of √count × √count cells over the map of q."""
    prefix, side = count_prefix(q.shape[-2], hw), math.isqrt(count)
    maps = zero_masked(q, key_mask)[:, :, prefix:].transpose(-2, -1).unflatten(-1, hw)
    # Heads are merged into the channels: pooling takes maps (B, C, H, W).
    pooled = F.adaptive_avg_pool2d(maps.flatten(1, 2), side).flatten(2)
    agents = pooled.unflatten(1, (q.shape[1], -1)).transpose(-2, -1)
    if key_mask is None:
        return Agents(agents, None)
    on_map = key_mask[:, prefix:].unflatten(1, hw).to(torch.promote_types(q.dtype, torch.float32))
    # The share of unmasked tokens in each cell.
    share = F.adaptive_avg_pool2d(on_map[:, None], side).flatten(1)
    divisor = torch.where(share > 0, share, 1)[:, None, :, None]
    # Without any token of the map, all agents stay: a softmax over none would be NaN.
    present = (share > 0) | (share == 0).all(dim=-1, keepdim=True)
    return Agents((agents / divisor).to(q.dtype), present)
