import torch.nn.functional as F
from torch import Tensor, nn

from inline.models.layers.maps import map_to_tokens, tokens_to_map


class LocallyEnhancedPosition(nn.Module):
    """CSwin's LePE: a depthwise 3×3 convolution of the values within each region."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(dim, dim, kernel_size=3, padding=1, groups=dim)

    def forward(self, v: Tensor, hw: tuple[int, int], channels: slice) -> Tensor:
        """v (B, P + h·w, c), which are these channels of all, to the same shape: zero at the prefix."""
        prefix = v.shape[1] - hw[0] * hw[1]
        maps = tokens_to_map(v[:, prefix:], hw)
        bias = None if self.conv.bias is None else self.conv.bias[channels]
        out = map_to_tokens(F.conv2d(maps, self.conv.weight[channels], bias, padding=1, groups=v.shape[2]))
        return F.pad(out, (0, 0, prefix, 0)) if prefix else out
