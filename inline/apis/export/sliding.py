"""Sliding-window inference as one computation on all windows, for any image size.

mmseg's loop over windows depends on the size of the image. Here, all windows are gathered by index and form
one batch, and each pixel gathers its logits from the windows that contain it.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from inline.ops.symint import ceil_div, is_symbolic


def slide(
    network: Callable[[Tensor], Tensor], image: Tensor, crop: tuple[int, int], stride: tuple[int, int]
) -> Tensor:
    """Average the logits of overlapping windows, like mmseg's ``slide_inference``.

    Args:
        network: Maps windows (B, C, h, w) to logits (B, classes, h, w).
        image: (B, C, H, W). A symbolic height or width must not be smaller than the window's.
        crop: Height and width of a window; those of a smaller image are used instead.
        stride: Distance between windows. The last one is moved to end at the border.

    Returns:
        Logits (B, classes, H, W).
    """
    height, width = image.shape[-2:]
    rows, columns = _Windows(height, crop[0], stride[0]), _Windows(width, crop[1], stride[1])
    # (B, C, grid rows, h, grid columns, w)
    windows = image[:, :, rows.pixels][..., columns.pixels]
    grid = (image.shape[0], rows.count, columns.count)
    logits = network(windows.permute(0, 2, 4, 1, 3, 5).flatten(0, 2))
    logits = logits.unflatten(0, grid).permute(0, 3, 1, 4, 2, 5)
    logits = columns.merge(rows.merge(logits.flatten(4, 5).flatten(2, 3), 2), 3)
    return logits / (rows.overlap()[:, None] * columns.overlap()[None])


class _Windows:
    """Overlapping windows along one axis.

    Args:
        side: Length of the axis.
        crop: Length of a window.
        stride: Distance between windows.
    """

    def __init__(self, side: int, crop: int, stride: int) -> None:
        if not is_symbolic(side):
            crop = min(crop, side)
        self.side, self.crop, self.stride = side, crop, stride
        self.count = ceil_div(side - crop, stride) + 1
        self.last_start = torch.scalar_tensor(side - crop, dtype=torch.int64)
        starts = torch.minimum(torch.arange(self.count) * stride, self.last_start)
        # Indices of shape (count, crop).
        self.pixels = starts[:, None] + torch.arange(crop)

    def _covering(self) -> list[tuple[Tensor, Tensor]]:
        """Return indices into the flattened windows (side,) and whether they are valid, for each overlap.

        A pixel is in at most crop / stride regular windows, rounded up, and in the last one.
        """
        pixel = torch.arange(self.side)
        # Rounded up, with positive operands only: ONNX rounds negative quotients towards zero.
        first = (pixel - self.crop + self.stride).clamp(min=0) // self.stride
        covering = []
        for slot in range(ceil_div(self.crop, self.stride)):
            window = first + slot
            offset = pixel - window * self.stride
            valid = (window < self.count - 1) & (offset >= 0)
            covering.append((torch.where(valid, window * self.crop + offset, 0), valid))
        offset = pixel - self.last_start
        valid = offset >= 0
        covering.append((torch.where(valid, (self.count - 1) * self.crop + offset, 0), valid))
        return covering

    def merge(self, x: Tensor, dim: int) -> Tensor:
        """Sum the windows, flattened along `dim`, at each pixel."""
        shape = [1] * x.ndim
        shape[dim] = -1
        total = torch.zeros(())
        for index, valid in self._covering():
            total = total + x.index_select(dim, index) * valid.to(x.dtype).view(shape)
        return total

    def overlap(self) -> Tensor:
        """Return the number of windows (side,) that contain each pixel."""
        return torch.stack([valid.float() for _, valid in self._covering()]).sum(dim=0)
