"""Agent Attention (:mod:`inline.ops.agent_attention`) with its position biases."""

import math

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from inline.models.layers import MAX_WIDTH, PositionEmbedding, returns_new_tensor
from inline.models.mixers.base import ALL_QUERIES, AttentionInputs, MixerOptions, merge_heads
from inline.models.mixers.reduction import ReducedMixer
from inline.models.mixers.registry import register_mixer
from inline.ops import agent_attention, agent_attention_weights
from inline.ops.tokens import count_prefix
from inline.utils.arguments import check_range
from inline.utils.errors import UserError

# Side of the square bias tables, as in the authors' models.
TABLE_SIZE = 7
# Sanity limit: larger values are almost certainly typos.
MAX_BIAS_SIZE = 1024


@register_mixer('Agent')
class AgentMixer(ReducedMixer):
    """Agent Attention, and its 3×3 depthwise convolution of the values, which is LePE.

    See :mod:`inline.ops.agent_attention`. The authors' tables for rows and columns have the size of the map
    at the training resolution, which must be a square. Here they have ``bias_size`` entries and are
    interpolated to the size of the map, which may be any, as the authors do with their 7×7 tables.

    Args:
        dim, num_heads, shared: see :class:`AttentionMixer`; lepe defaults to True.
        num_agents: Number of agents, a square number.
        bias_size: Entries of the bias tables for rows and for columns: the authors' models have as many as
            the map has rows, 14 in a DeiT at 224 pixels.
        class_token: Whether prefix tokens have biases of their own, which all of them share; requires prefix
            tokens. The DeiT family sets it.
        sr_ratio: see :class:`inline.models.mixers.reduction.ReducedMixer`; the values are stretched to the
            map of the queries before the convolution.
    """

    permutation_equivariant = False

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        num_agents: int = 49,
        bias_size: int = 14,
        class_token: bool = False,
        sr_ratio: int = 1,
        **shared: Unpack[MixerOptions],
    ) -> None:
        shared.setdefault('lepe', True)
        super().__init__(dim, num_heads, sr_ratio=sr_ratio, **shared)
        check_range('num_agents', num_agents, 1, MAX_WIDTH)
        check_range('bias_size', bias_size, 1, MAX_BIAS_SIZE)
        if math.isqrt(num_agents) ** 2 != num_agents:
            raise UserError(f'num_agents {num_agents}: must be a square number')
        if class_token and not self.supports_prefix:
            raise UserError('class_token True: not supported with windows, stripes or spatial reduction')
        self.num_agents = num_agents
        key_size = max(bias_size // sr_ratio, 1)
        self.key_bias = AgentBias(num_heads, num_agents, key_size, class_token)
        self.query_bias = AgentBias(num_heads, num_agents, bias_size, class_token)

    @returns_new_tensor
    def attend(self, inputs: AttentionInputs) -> Tensor:
        q, k, v = inputs.heads()
        key_bias, query_bias = self._biases(inputs, q)
        out = agent_attention(
            q,
            k,
            v,
            inputs.hw,
            num_agents=self.num_agents,
            key_bias=key_bias,
            query_bias=query_bias,
            key_mask=inputs.key_mask,
        )
        return merge_heads(out)

    def weights(self, inputs: AttentionInputs, queries: slice = ALL_QUERIES) -> Tensor:
        q, k, _ = inputs.heads()
        key_bias, query_bias = self._biases(inputs, q)
        return agent_attention_weights(
            q,
            k,
            inputs.hw,
            num_agents=self.num_agents,
            key_bias=key_bias,
            query_bias=query_bias,
            queries=queries,
            key_mask=inputs.key_mask,
        )

    def _biases(self, inputs: AttentionInputs, q: Tensor) -> tuple[Tensor, Tensor]:
        """Return the biases of agents on keys (heads, n, N) and of queries on agents (heads, M, n)."""
        first = inputs.channels.start // q.shape[-1]
        heads = slice(first, first + inputs.num_heads)
        prefix = count_prefix(q.shape[-2], inputs.hw)
        on_keys = self.key_bias(self.key_hw(inputs), heads, prefix)
        on_agents = self.query_bias(inputs.hw, heads, prefix).transpose(-2, -1)
        return on_keys.to(q.dtype), on_agents.to(q.dtype)


class AgentBias(nn.Module):
    """Learned bias between each agent and each token: a table of blocks, one of rows and one of columns.

    Args:
        num_heads: Number of heads.
        num_agents: Number of agents.
        size: Entries of the tables of rows and columns.
        class_token: Whether there is a bias for prefix tokens; else it is 0.
    """

    def __init__(self, num_heads: int, num_agents: int, size: int, class_token: bool) -> None:
        super().__init__()
        self.num_agents = num_agents
        channels = num_heads * num_agents
        self.blocks = PositionEmbedding(channels, (TABLE_SIZE, TABLE_SIZE))
        self.rows = PositionEmbedding(channels, (size, 1))
        self.columns = PositionEmbedding(channels, (1, size))
        self.class_token = (
            nn.Parameter(nn.init.trunc_normal_(torch.empty(num_heads, num_agents, 1), std=0.02))
            if class_token
            else None
        )

    def forward(self, hw: tuple[int, int], heads: slice, prefix: int) -> Tensor:
        """Return the bias (heads, agents, P + h·w) of some heads for P prefix tokens and a map of (h, w)."""
        height, width = hw
        tables = self.blocks.table(hw) + self.rows.table((height, 1)) + self.columns.table((1, width))
        on_map = tables.flatten(2).unflatten(1, (-1, self.num_agents))[0, heads]
        if not prefix:
            return on_map
        shape = (*on_map.shape[:2], prefix)
        first = on_map.new_zeros(shape) if self.class_token is None else self.class_token[heads].expand(shape)
        return torch.cat([first, on_map], dim=-1)
