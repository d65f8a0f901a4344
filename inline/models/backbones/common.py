"""Arguments and inputs that every family checks in the same way, and how weights begin."""

from collections.abc import Sequence

from torch import Tensor, nn

from inline.errors import TooSmallError, UserError
from inline.models.layers import ClassToken, PositionEmbedding, RelativePositionBias
from inline.models.limits import MAX_IMAGE

MIN_SIZE = 32


def check_out_indices(out_indices: Sequence[int], num_stages: int) -> tuple[int, ...]:
    out_indices = tuple(out_indices)
    if not out_indices or list(out_indices) != sorted(set(out_indices) & set(range(num_stages))):
        raise UserError(f'out_indices {out_indices}: must be increasing stages out of 0..{num_stages - 1}')
    return out_indices


def check_image_size(x: Tensor) -> None:
    height, width = x.shape[-2:]
    if height < MIN_SIZE or width < MIN_SIZE:
        raise TooSmallError(f'image of {height}×{width} pixels: each side must be at least {MIN_SIZE}')


def init_weights(module: nn.Module) -> None:
    """Truncated normal for linear layers and learned positions, torch's own default for the rest."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, ClassToken | PositionEmbedding | RelativePositionBias):
        for parameter in module.parameters():
            nn.init.trunc_normal_(parameter, std=0.02)


def resolve_img_size(img_size: int | Sequence[int]) -> tuple[int, int]:
    """``img_size`` as (H, W)."""
    size = (img_size, img_size) if isinstance(img_size, int) else tuple(img_size)
    if len(size) != 2 or min(size) < MIN_SIZE or max(size) > MAX_IMAGE:
        raise UserError(
            f'img_size {img_size}: must be one size or (height, width), each from {MIN_SIZE} to {MAX_IMAGE}'
        )
    return size[0], size[1]
