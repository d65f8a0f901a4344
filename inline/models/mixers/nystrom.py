from torch import Tensor, nn
from typing_extensions import Unpack

from inline.arguments import check_range
from inline.models.layers import check_conv_size, depthwise
from inline.models.limits import MAX_ITERATIONS, MAX_WIDTH
from inline.models.mixers.base import ALL_QUERIES, AttentionMixer, MixerOptions, Part
from inline.models.mixers.heads import merge_heads
from inline.models.mixers.registry import register_mixer
from inline.ops import nystrom_attention, nystrom_attention_weights
from inline.ops.masking import zero_masked


@register_mixer('Nystrom')
class NystromMixer(AttentionMixer):
    """Nyströmformer's attention, and its convolution of the values.

    See :mod:`inline.ops.nystrom_attention`. Segments are runs of tokens row by row; a class token is in
    the first one. The convolution has one kernel for each head and no bias, as in the paper. There it is
    33 tokens long on text; on a map the neighbours are in two directions, so it is 3×3 here.

    Args:
        dim, num_heads, shared: see :class:`AttentionMixer`.
        num_landmarks: Segments whose means stand for all tokens. A region of no more tokens than that
            gets plain softmax attention.
        iterations: Steps towards the pseudo-inverse.
        conv_size: Side of the convolution's kernels, odd; None for no convolution.
    """

    position_free = False

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        num_landmarks: int = 64,
        iterations: int = 6,
        conv_size: int | None = 3,
        **shared: Unpack[MixerOptions],
    ) -> None:
        super().__init__(dim, num_heads, **shared)
        check_range('num_landmarks', num_landmarks, 1, MAX_WIDTH)
        check_range('iterations', iterations, 1, MAX_ITERATIONS)
        check_conv_size(conv_size)
        self.num_landmarks = num_landmarks
        self.iterations = iterations
        self.conv = (
            nn.Conv2d(num_heads, num_heads, conv_size, groups=num_heads, bias=False) if conv_size else None
        )

    def attend(self, part: Part) -> Tensor:
        out = nystrom_attention(
            *part.heads(),
            num_landmarks=self.num_landmarks,
            iterations=self.iterations,
            key_mask=part.key_mask,
        )
        return merge_heads(out)

    def weights(self, part: Part, queries: slice = ALL_QUERIES) -> Tensor:
        q, k, _ = part.heads()
        return nystrom_attention_weights(
            q,
            k,
            num_landmarks=self.num_landmarks,
            iterations=self.iterations,
            queries=queries,
            key_mask=part.key_mask,
        )

    def local(self, part: Part) -> Tensor | None:
        if self.conv is None:
            return None
        head_dim = part.v.shape[-1] // part.num_heads
        weight = self.conv.weight.repeat_interleave(head_dim, dim=0)[part.channels]
        return depthwise(zero_masked(part.v, part.key_mask), part.hw, weight)
