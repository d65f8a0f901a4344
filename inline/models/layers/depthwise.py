import torch.nn.functional as F
from torch import Tensor

from inline.errors import UserError
from inline.models.layers.maps import map_to_tokens, tokens_to_map
from inline.models.limits import MAX_KERNEL


def depthwise(v: Tensor, hw: tuple[int, int], weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Convolve each channel of v (B, P + h·w, C) with its kernel of weight (C, 1, side, side), side odd.

    Zeros stand beyond the border. The P prefix tokens have no place on the map: the result is (B, h·w, C).
    """
    prefix = v.shape[1] - hw[0] * hw[1]
    maps = tokens_to_map(v[:, prefix:], hw)
    return map_to_tokens(F.conv2d(maps, weight, bias, padding=weight.shape[-1] // 2, groups=v.shape[2]))


def check_conv_size(conv_size: int | None) -> None:
    if conv_size is not None and (not 1 <= conv_size <= MAX_KERNEL or conv_size % 2 == 0):
        raise UserError(
            f'conv_size {conv_size}: must be odd and from 1 to {MAX_KERNEL}, or None for no convolution'
        )
