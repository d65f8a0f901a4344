"""Linear-cost baselines: linear attention, Efficient, cosFormer, FLatten and Nyström.

Others are in :mod:`inline.models.mixers.mlla` and :mod:`inline.models.mixers.transnormer`.
"""

import warnings
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import Unpack

from inline.models.layers import MAX_WIDTH, PositionEmbedding, is_plain, map_to_tokens, returns_new_tensor
from inline.models.mixers.base import (
    ALL_QUERIES,
    MAX_WINDOW,
    AttentionInputs,
    AttentionMixer,
    MixerOptions,
    merge_heads,
    split_heads,
)
from inline.models.mixers.convolutions import convolve_heads, depthwise, make_depthwise, value_maps
from inline.models.mixers.inline import make_kernel
from inline.models.mixers.reduction import ReducedMixer
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
    nystrom_attention,
    nystrom_attention_weights,
)
from inline.ops.nystrom_attention import InverseInit
from inline.ops.tokens import add_to_map
from inline.utils.arguments import check_range
from inline.utils.errors import UserError

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
class FLattenMixer(ReducedMixer):
    """FLatten's focused linear attention, and its depthwise convolution of the values.

    See :mod:`inline.ops.flatten_attention`. The convolution has one kernel per channel of a head, shared by
    all heads, as in the authors' models. With ``sr_ratio`` the values are first stretched to the number of
    queries, by linear interpolation along the sequence, as in the authors' PVT.

    Args:
        dim, num_heads, shared: see :class:`ReducedMixer`.
        power: How strongly queries and keys are focused.
        conv_size: Kernel size of the convolution, odd; None for no convolution.
        sr_ratio: PVT's spatial reduction, see :class:`ReducedMixer`.
        position_size: Side, or height and width, of a learned table that is added to the keys of a map or a
            window, and interpolated for other sizes. None for no table: the authors' models have one, which
            fixes the size of the map, and a mixer does not know that size. The families embed positions.
    """

    normalization = 'division'

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        power: int = 3,
        conv_size: int | None = 5,
        sr_ratio: int = 1,
        position_size: int | tuple[int, int] | None = None,
        **shared: Unpack[MixerOptions],
    ) -> None:
        super().__init__(dim, num_heads, sr_ratio=sr_ratio, **shared)
        check_range('power', power, 1, MAX_POWER)
        self.power = power
        self.scale = nn.Parameter(torch.zeros(dim))
        self.conv = make_depthwise(dim // num_heads, conv_size)
        self.key_position = None
        if position_size is not None:
            height, width = (position_size,) * 2 if isinstance(position_size, int) else position_size
            for side in (height, width):
                check_range('position_size', side, 1, MAX_WINDOW, ', or None for no table')
            self.key_position = PositionEmbedding(dim, (height, width))
            self.permutation_equivariant = False

    @returns_new_tensor
    def attend(self, inputs: AttentionInputs) -> Tensor:
        q, k, v = self._positioned_heads(inputs)
        out = flatten_attention(
            q, k, v, power=self.power, scale=self._scale(inputs), key_mask=inputs.key_mask
        )
        return merge_heads(out)

    def weights(self, inputs: AttentionInputs, queries: slice = ALL_QUERIES) -> Tensor:
        q, k, _ = self._positioned_heads(inputs)
        return flatten_attention_weights(
            q[:, :, queries], k, power=self.power, scale=self._scale(inputs), key_mask=inputs.key_mask
        )

    def local(self, inputs: AttentionInputs) -> Tensor | None:
        if self.conv is None:
            return None
        if self.reduction is None:
            maps = value_maps(inputs)
        else:
            tokens = inputs.hw[0] * inputs.hw[1]
            sequence = F.interpolate(inputs.v.transpose(1, 2), size=tokens, mode='linear')
            maps = sequence.unflatten(2, inputs.hw)
        return convolve_heads(self.conv, maps, inputs.num_heads)

    def _positioned_heads(self, inputs: AttentionInputs) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys with their positions, and values, as (b, heads, n, d)."""
        q, k, v = inputs.heads()
        if self.key_position is not None:
            table = map_to_tokens(self.key_position.table(self.key_hw(inputs)))
            k = split_heads(add_to_map(inputs.k, table[..., inputs.channels]), inputs.num_heads)
        return q, k, v

    def _scale(self, inputs: AttentionInputs) -> Tensor:
        """Return the positive divisors of the input channels, (heads, d)."""
        return F.softplus(self.scale)[inputs.channels].unflatten(0, (inputs.num_heads, -1))


@register_mixer('Nystrom')
class NystromMixer(AttentionMixer):
    """Nyströmformer's attention, and optionally its convolution of the values.

    See :mod:`inline.ops.nystrom_attention`. Segments are runs of tokens in row-major order; a class token
    belongs to the first one. The authors' image model (T2T-ViT) has no convolution, so there is none by
    default. Their text models have one, with a kernel per head and no bias, along the sequence.

    Earlier versions had a convolution by default. They also split the tokens into other segments if
    `num_landmarks` does not divide their number, so that weights trained on such maps give other outputs now.
    A warning reports such weights if the metadata of the file shows their age; safetensors files have none.

    Args:
        dim, num_heads, shared: see :class:`AttentionMixer`.
        num_landmarks: Number of segments. A window with at most that many tokens gets exact softmax
            attention.
        iterations: Iterations of the pseudo-inverse.
        inverse_init: 'image', or 'batch' for the starting value of the authors' text models, with which the
            images of a batch affect each other.
        conv_size: Kernel size of the convolution, odd; None for no convolution. Earlier versions had 3.
        conv_axes: Whether the kernel is conv_size × conv_size tokens of the 'map', or conv_size tokens of the
            'sequence' as in the authors' text models.
    """

    permutation_equivariant = False
    # Stored by `state_dict`. 1 is torch's default, of the versions with other segments.
    _version = 2

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        num_landmarks: int = 64,
        iterations: int = 6,
        inverse_init: InverseInit = 'image',
        conv_size: int | None = None,
        conv_axes: Literal['map', 'sequence'] = 'map',
        **shared: Unpack[MixerOptions],
    ) -> None:
        super().__init__(dim, num_heads, **shared)
        check_range('num_landmarks', num_landmarks, 1, MAX_WIDTH)
        check_range('iterations', iterations, 1, MAX_ITERATIONS)
        self.num_landmarks = num_landmarks
        self.iterations = iterations
        self.inverse_init: InverseInit = inverse_init
        self.conv_axes = conv_axes
        self.conv = make_depthwise(num_heads, conv_size, bias=False, columns=conv_axes == 'map')
        self.register_load_state_dict_pre_hook(check_old_weights)

    @returns_new_tensor
    def attend(self, inputs: AttentionInputs) -> Tensor:
        out = nystrom_attention(
            *inputs.heads(),
            num_landmarks=self.num_landmarks,
            iterations=self.iterations,
            inverse_init=self.inverse_init,
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
            inverse_init=self.inverse_init,
            queries=queries,
            key_mask=inputs.key_mask,
        )

    def local(self, inputs: AttentionInputs) -> Tensor | None:
        if self.conv is None:
            return None
        maps, heads = value_maps(inputs), inputs.num_heads
        if self.conv_axes == 'sequence':
            maps = maps.flatten(2).unsqueeze(3)
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


def check_old_weights(
    module: nn.Module, state_dict: dict[str, Any], prefix: str, metadata: dict[str, Any], *_: Any
) -> None:
    """Raise for the weights of a Nyström mixer with a convolution in one without; warn of other segments.

    The attention would load, and the missing convolution would change the results silently.
    """
    weight = state_dict.get(f'{prefix}conv.weight')
    # FLatten's convolution has a bias; its weights may be moved to this mixer.
    if weight is None or f'{prefix}conv.bias' in state_dict:
        return
    if module.conv is not None:
        if metadata.get('version', NystromMixer._version) < NystromMixer._version:
            warnings.warn(
                f'weights {prefix}conv.weight: an earlier version trained them; if num_landmarks '
                f'({module.num_landmarks}) does not divide the tokens, segments and outputs differ now',
                stacklevel=2,
            )
        return
    size = weight.shape[2]
    raise UserError(
        f'weights {prefix}conv.weight: they were trained with a convolution of the values; set '
        f'conv_size={size} in the config of the Nystrom mixer (the default of earlier versions was 3)'
    )
