from torch import Tensor

from inline.models.mixers.base import ALL_QUERIES, AttentionMixer, Part
from inline.models.mixers.heads import merge_heads
from inline.models.mixers.registry import register_mixer
from inline.ops import transnormer_attention, transnormer_attention_weights


@register_mixer('TransNormer')
class TransNormerMixer(AttentionMixer):
    """TransNormer's NormAttention, see :mod:`inline.ops.transnormer_attention`.

    The block-diagonal softmax of TransNormer's early layers is another attention: ``dict(type='Softmax',
    window_size=…)`` is its like for maps. In stripes the heads of each direction are normed by themselves.
    """

    def attend(self, part: Part) -> Tensor:
        return merge_heads(transnormer_attention(*part.heads(), key_mask=part.key_mask))

    def weights(self, part: Part, queries: slice = ALL_QUERIES) -> Tensor:
        q, k, v = part.heads()
        return transnormer_attention_weights(q[:, :, queries], k, v, key_mask=part.key_mask)
