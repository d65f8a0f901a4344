from torch import Tensor

from inline.models.mixers.base import ALL_QUERIES, AttentionMixer, Part
from inline.models.mixers.heads import merge_heads
from inline.models.mixers.registry import register_mixer
from inline.ops import efficient_attention, efficient_attention_weights


@register_mixer('Efficient')
class EfficientMixer(AttentionMixer):
    """Efficient attention, see :mod:`inline.ops.efficient_attention`."""

    def attend(self, part: Part) -> Tensor:
        return merge_heads(efficient_attention(*part.heads(), key_mask=part.key_mask))

    def weights(self, part: Part, queries: slice = ALL_QUERIES) -> Tensor:
        q, k, _ = part.heads()
        return efficient_attention_weights(q[:, :, queries], k, key_mask=part.key_mask)
