from torch import Tensor
from typing_extensions import Unpack

from inline.models.mixers.base import ALL_QUERIES, AttentionMixer, MixerOptions, Part
from inline.models.mixers.heads import merge_heads
from inline.models.mixers.kernel import make_kernel
from inline.models.mixers.registry import register_mixer
from inline.ops import linear_attention, linear_attention_weights


@register_mixer('Linear')
class LinearMixer(AttentionMixer):
    """Plain linear attention, see :mod:`inline.ops.linear_attention`.

    Args:
        dim, num_heads, shared: see :class:`AttentionMixer`.
        kernel: φ, a name of :data:`inline.ops.KERNELS` or affine_relu, see :class:`AffineReLU`.
    """

    normalisation = 'division'

    def __init__(
        self, dim: int, num_heads: int, *, kernel: str = 'relu', **shared: Unpack[MixerOptions]
    ) -> None:
        super().__init__(dim, num_heads, **shared)
        self.kernel = make_kernel(kernel, dim // num_heads)

    def attend(self, part: Part) -> Tensor:
        return merge_heads(linear_attention(*part.heads(), kernel=self.kernel, key_mask=part.key_mask))

    def weights(self, part: Part, queries: slice = ALL_QUERIES) -> Tensor:
        q, k, _ = part.heads()
        return linear_attention_weights(q[:, :, queries], k, kernel=self.kernel, key_mask=part.key_mask)
