from torch import Tensor
from typing_extensions import Unpack

from inline.models.mixers.base import ALL_QUERIES, AttentionMixer, MixerOptions, Part
from inline.models.mixers.heads import merge_heads
from inline.models.mixers.registry import register_mixer
from inline.ops import mlla_attention, mlla_attention_weights


@register_mixer('MLLA')
class MLLAMixer(AttentionMixer):
    """The attention of MLLA's block: rotary positions and LePE, see :mod:`inline.ops.mlla_attention`.

    Of that block the linear attention is here. Its gate, its convolutions before and beside the attention
    and its second depthwise convolution are not: a family's own block stands around the mixer. The values
    are projected as in every mixer; in MLLA a projection and a convolution before the attention give them.

    Args:
        dim, num_heads, shared: see :class:`AttentionMixer`; lepe is on unless it is switched off.
    """

    position_free = False

    def __init__(self, dim: int, num_heads: int, **shared: Unpack[MixerOptions]) -> None:
        shared.setdefault('lepe', True)
        super().__init__(dim, num_heads, **shared)

    def attend(self, part: Part) -> Tensor:
        return merge_heads(mlla_attention(*part.heads(), part.hw, key_mask=part.key_mask))

    def weights(self, part: Part, queries: slice = ALL_QUERIES) -> Tensor:
        q, k, _ = part.heads()
        return mlla_attention_weights(q, k, part.hw, queries=queries, key_mask=part.key_mask)
