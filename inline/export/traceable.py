"""Parts of the toolboxes that ask sizes for numbers, written so that sizes may stay open."""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class BinPool(nn.Module):
    """:class:`torch.nn.AdaptiveAvgPool2d` as two products, since ONNX has it for fixed sizes only."""

    def __init__(self, bins: tuple[int, int]) -> None:
        super().__init__()
        self.bins = bins

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) → (B, C, rows, columns) of bins."""
        if self.bins == (1, 1):
            return x.mean(dim=(-2, -1), keepdim=True)
        return _shares(self.bins[0], x.shape[-2], x) @ x @ _shares(self.bins[1], x.shape[-1], x).T


class ScaleUp(nn.Module):
    """Resizing by a whole number; mmseg's own multiplies sizes by a float."""

    def __init__(self, factor: int, mode: str, align_corners: bool | None) -> None:
        super().__init__()
        self.factor, self.mode, self.align_corners = factor, mode, align_corners

    def forward(self, x: Tensor) -> Tensor:
        size = (x.shape[-2] * self.factor, x.shape[-1] * self.factor)
        return F.interpolate(x, size, mode=self.mode, align_corners=self.align_corners)


def make_traceable(model: nn.Module) -> nn.Module:
    """A copy of the model with such parts replaced. It computes the same."""
    model = copy.deepcopy(model)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            replacement = _replace(child)
            if replacement is not None:
                setattr(parent, name, replacement)
    return model


def _replace(module: nn.Module) -> nn.Module | None:
    if isinstance(module, nn.AdaptiveAvgPool2d):
        size = module.output_size
        rows, columns = (size, size) if isinstance(size, int) or size is None else size
        return None if rows is None or columns is None else BinPool((rows, columns))
    # By name, so that mmseg is imported for segmentors only.
    if type(module).__module__.startswith('mmseg.') and type(module).__name__ == 'Upsample':
        factor = module.scale_factor
        if not module.size and isinstance(factor, float) and factor.is_integer():
            return ScaleUp(int(factor), str(module.mode), module.align_corners)  # type: ignore[arg-type]
    return None


def _shares(bins: int, side: int, like: Tensor) -> Tensor:
    """What each place gives to each bin, (bins, side): bins overlap where they do not divide the side."""
    number = torch.arange(bins, device=like.device)
    first, last = number * side // bins, ((number + 1) * side + bins - 1) // bins
    place = torch.arange(side, device=like.device)
    inside = ((place >= first[:, None]) & (place < last[:, None])).to(like.dtype)
    return inside / inside.sum(dim=1, keepdim=True)
