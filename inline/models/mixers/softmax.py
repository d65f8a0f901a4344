import torch.nn.functional as F
from torch import Tensor, nn

from inline.errors import UserError
from inline.models.layers import PatchEmbed, tokens_to_map
from inline.models.mixers.heads import merge_heads, split_heads
from inline.models.mixers.registry import register_mixer
from inline.ops import softmax_attention


@register_mixer('Softmax')
class SoftmaxMixer(nn.Module):
    """Softmax attention over the whole map, or over keys and values of a reduced map.

    Args:
        dim: Channels of a token.
        num_heads: Heads of the attention.
        qkv_bias: Whether queries, keys and values have a bias.
        sr_ratio: Spatial reduction of PVT: keys and values come from patches of sr_ratio × sr_ratio.
    """

    def __init__(self, dim: int, num_heads: int, qkv_bias: bool = True, sr_ratio: int = 1) -> None:
        super().__init__()
        if sr_ratio < 1:
            raise UserError(f'sr_ratio {sr_ratio}: must be at least 1')
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.reduction = PatchEmbed(dim, dim, sr_ratio) if sr_ratio > 1 else None
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, hw: tuple[int, int]) -> Tensor:
        """x (B, P + H·W, C) to the same shape; prefix tokens are allowed where nothing is reduced."""
        q, k, v = (split_heads(t, self.num_heads) for t in self._project(x, hw))
        return self.proj(merge_heads(softmax_attention(q, k, v)))

    def _project(self, x: Tensor, hw: tuple[int, int]) -> tuple[Tensor, ...]:
        if self.reduction is None:
            return self.qkv(x).chunk(3, dim=-1)
        # One parameter serves both cases, so that weights do not depend on the reduction.
        dim = x.shape[-1]
        weight, bias = self.qkv.weight, self.qkv.bias
        q = F.linear(x, weight[:dim], None if bias is None else bias[:dim])
        reduced, _ = self.reduction(tokens_to_map(x, hw))
        kv = F.linear(reduced, weight[dim:], None if bias is None else bias[dim:])
        return q, *kv.chunk(2, dim=-1)
