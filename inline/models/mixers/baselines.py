"""Linear-cost baselines: linear attention, Efficient, cosFormer, FLatten, MLLA, Nyström, TransNormer."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import Unpack

from inline.models.layers import MAX_WIDTH, is_plain, map_to_tokens, returns_new_tensor
from inline.models.mixers.base import (
    ALL_QUERIES,
    AttentionInputs,
    AttentionMixer,
    MixerOptions,
    merge_heads,
)
from inline.models.mixers.convolutions import convolve_heads, depthwise, make_depthwise, value_maps
from inline.models.mixers.inline import make_kernel
from inline.models.mixers.registry import register_mixer
from inline.ops import (
    cosformer_attention,
    cosformer_attention_weights,
    efficient_attention,
    efficient_attention_weights,
    flatten_attention,
    flatten_attention_weights,
    linear_attention,
    linear_attention_weights,
    mlla_attention,
    mlla_attention_weights,
    nystrom_attention,
    nystrom_attention_weights,
    transnormer_attention,
    transnormer_attention_weights,
)
from inline.utils.arguments import check_range

# Sanity limits: larger values are almost certainly typos.
MAX_POWER = 16
MAX_ITERATIONS = 100


@register_mixer('Linear')
class LinearMixer(AttentionMixer):
    """Plain linear attention, see :mod:`inline.ops.linear_attention`.

    Args:
        dim, num_heads, shared: see :class:`AttentionMixer`.
        kernel: φ, a name of :data:`inline.ops.KERNELS` or affine_relu, see
            :class:`inline.models.mixers.inline.AffineReLU`.
    """

    normalization = 'division'

    def __init__(
        self, dim: int, num_heads: int, *, kernel: str = 'relu', **shared: Unpack[MixerOptions]
    ) -> None:
        super().__init__(dim, num_heads, **shared)
        self.kernel = make_kernel(kernel, dim // num_heads)

    @returns_new_tensor
    def attend(self, inputs: AttentionInputs) -> Tensor:
        return merge_heads(linear_attention(*inputs.heads(), kernel=self.kernel, key_mask=inputs.key_mask))

    def weights(self, inputs: AttentionInputs, queries: slice = ALL_QUERIES) -> Tensor:
        q, k, _ = inputs.heads()
        return linear_attention_weights(q[:, :, queries], k, kernel=self.kernel, key_mask=inputs.key_mask)


@register_mixer('Efficient')
class EfficientMixer(AttentionMixer):
    """Efficient attention, see :mod:`inline.ops.efficient_attention`."""

    @returns_new_tensor
    def attend(self, inputs: AttentionInputs) -> Tensor:
        return merge_heads(efficient_attention(*inputs.heads(), key_mask=inputs.key_mask))

    def weights(self, inputs: AttentionInputs, queries: slice = ALL_QUERIES) -> Tensor:
        q, k, _ = inputs.heads()
        return efficient_attention_weights(q[:, :, queries], k, key_mask=inputs.key_mask)


@register_mixer('CosFormer')
class CosFormerMixer(AttentionMixer):
    """cosFormer attention along the rows of each window, see :mod:`inline.ops.cosformer_attention`."""

    permutation_equivariant = False
    normalization = 'division'

    @returns_new_tensor
    def attend(self, inputs: AttentionInputs) -> Tensor:
        return merge_heads(cosformer_attention(*inputs.heads(), inputs.hw, key_mask=inputs.key_mask))

    def weights(self, inputs: AttentionInputs, queries: slice = ALL_QUERIES) -> Tensor:
        q, k, _ = inputs.heads()
        return cosformer_attention_weights(q, k, inputs.hw, queries=queries, key_mask=inputs.key_mask)


@register_mixer('FLatten')
class FLattenMixer(AttentionMixer):
    """FLatten's focused linear attention, and its depthwise convolution of the values.

    See :mod:`inline.ops.flatten_attention`. The convolution has one kernel per channel of a head, shared by
    all heads, as in the authors' models.

    Args:
        dim, num_heads, shared: see :class:`AttentionMixer`.
        power: How strongly queries and keys are focused.
        conv_size: Kernel size of the convolution, odd; None for no convolution.
    """

    normalization = 'division'

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        power: int = 3,
        conv_size: int | None = 5,
        **shared: Unpack[MixerOptions],
    ) -> None:
        super().__init__(dim, num_heads, **shared)
        check_range('power', power, 1, MAX_POWER)
        self.power = power
        self.scale = nn.Parameter(torch.zeros(dim))
        self.conv = make_depthwise(dim // num_heads, conv_size)

    @returns_new_tensor
    def attend(self, inputs: AttentionInputs) -> Tensor:
        out = flatten_attention(
            *inputs.heads(), power=self.power, scale=self._scale(inputs), key_mask=inputs.key_mask
        )
        return merge_heads(out)

    def weights(self, inputs: AttentionInputs, queries: slice = ALL_QUERIES) -> Tensor:
        q, k, _ = inputs.heads()
        return flatten_attention_weights(
            q[:, :, queries], k, power=self.power, scale=self._scale(inputs), key_mask=inputs.key_mask
        )

    def local(self, inputs: AttentionInputs) -> Tensor | None:
        if self.conv is None:
            return None
        return convolve_heads(self.conv, value_maps(inputs), inputs.num_heads)

    def _scale(self, inputs: AttentionInputs) -> Tensor:
        """Return the positive divisors of the input channels, (heads, d)."""
        return F.softplus(self.scale)[inputs.channels].unflatten(0, (inputs.num_heads, -1))


@register_mixer('MLLA')
class MLLAMixer(AttentionMixer):
    """The attention of MLLA's block: rotary positions and LePE, see :mod:`inline.ops.mlla_attention`.

    Only the linear attention of that block is included, not its gate, its second depthwise convolution or
    the convolutions before and beside the attention. The values are a projection of the tokens as in every
    mixer; in MLLA they come from a projection and a convolution.

    Args:
        dim, num_heads, shared: see :class:`AttentionMixer`; lepe defaults to True.
    """

    permutation_equivariant = False

    def __init__(self, dim: int, num_heads: int, **shared: Unpack[MixerOptions]) -> None:
        shared.setdefault('lepe', True)
        super().__init__(dim, num_heads, **shared)

    @returns_new_tensor
    def attend(self, inputs: AttentionInputs) -> Tensor:
        return merge_heads(mlla_attention(*inputs.heads(), inputs.hw, key_mask=inputs.key_mask))

    def weights(self, inputs: AttentionInputs, queries: slice = ALL_QUERIES) -> Tensor:
        q, k, _ = inputs.heads()
        return mlla_attention_weights(q, k, inputs.hw, queries=queries, key_mask=inputs.key_mask)


@register_mixer('Nystrom')
class NystromMixer(AttentionMixer):
    """Nyströmformer's attention, and its convolution of the values.

    See :mod:`inline.ops.nystrom_attention`. Segments are runs of tokens in row-major order; a class token
    belongs to the first one. The convolution has one kernel per head and no bias, as in the paper. The paper
    uses a kernel of 33 tokens on text; here it is two-dimensional, 3×3 by default.

    Args:
        dim, num_heads, shared: see :class:`AttentionMixer`.
        num_landmarks: Number of segments. A window with at most that many tokens gets exact softmax
            attention.
        iterations: Iterations of the pseudo-inverse.
        conv_size: Kernel size of the convolution, odd; None for no convolution.
    """

    permutation_equivariant = False

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
        self.num_landmarks = num_landmarks
        self.iterations = iterations
        self.conv = make_depthwise(num_heads, conv_size, bias=False)

    @returns_new_tensor
    def attend(self, inputs: AttentionInputs) -> Tensor:
        out = nystrom_attention(
            *inputs.heads(),
            num_landmarks=self.num_landmarks,
            iterations=self.iterations,
            key_mask=inputs.key_mask,
        )
        return merge_heads(out)

    def weights(self, inputs: AttentionInputs, queries: slice = ALL_QUERIES) -> Tensor:
        q, k, _ = inputs.heads()
        return nystrom_attention_weights(
            q,
            k,
            num_landmarks=self.num_landmarks,
            iterations=self.iterations,
            queries=queries,
            key_mask=inputs.key_mask,
        )

    def local(self, inputs: AttentionInputs) -> Tensor | None:
        if self.conv is None:
            return None
        maps, heads = value_maps(inputs), inputs.num_heads
        head_dim = maps.shape[1] // heads
        if is_plain(self.conv, nn.Conv2d):
            weight = self.conv.weight.repeat_interleave(head_dim, dim=0)
            return depthwise(maps, weight[inputs.channels], None)
        # The channels of a head share a kernel, so they are folded into the batch: (b·d, heads, h, w).
        # Stripes have half of the heads each; the convolution takes all of them.
        maps = maps.unflatten(1, (heads, -1)).transpose(1, 2).flatten(0, 1)
        first = inputs.channels.start // head_dim
        others = (first, self.num_heads - first - heads)
        out = self.conv(F.pad(maps, (0, 0, 0, 0, *others)))[:, first : first + heads]
        return map_to_tokens(out.unflatten(0, (-1, head_dim)).transpose(1, 2).flatten(1, 2))


@register_mixer('TransNormer')
class TransNormerMixer(AttentionMixer):
    """TransNormer's NormAttention, see :mod:`inline.ops.transnormer_attention`.

    For the block-diagonal softmax of TransNormer's early layers use ``dict(type='Softmax', window_size=…)``.
    With stripes, the heads of each direction are normalised separately.
    """

    @returns_new_tensor
    def attend(self, inputs: AttentionInputs) -> Tensor:
        return merge_heads(transnormer_attention(*inputs.heads(), key_mask=inputs.key_mask))

    def weights(self, inputs: AttentionInputs, queries: slice = ALL_QUERIES) -> Tensor:
        q, k, v = inputs.heads()
        return transnormer_attention_weights(q[:, :, queries], k, v, key_mask=inputs.key_mask)
