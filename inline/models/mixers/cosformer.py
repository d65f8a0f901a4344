from torch import Tensor

from inline.models.mixers.base import ALL_QUERIES, AttentionMixer, Part
from inline.models.mixers.heads import merge_heads
from inline.models.mixers.registry import register_mixer
from inline.ops import cosformer_attention, cosformer_attention_weights


@register_mixer('CosFormer')
class CosFormerMixer(AttentionMixer):
    """cosFormer's attention along the rows of each region, see :mod:`inline.ops.cosformer_attention`."""

    position_free = False
    normalisation = 'division'

    def attend(self, part: Part) -> Tensor:
        return merge_heads(cosformer_attention(*part.heads(), part.hw, key_mask=part.key_mask))

    def weights(self, part: Part, queries: slice = ALL_QUERIES) -> Tensor:
        q, k, _ = part.heads()
        return cosformer_attention_weights(q, k, part.hw, queries=queries, key_mask=part.key_mask)
