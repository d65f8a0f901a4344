from torch import Tensor, nn

from inline.models.layers.depthwise import depthwise


class LocallyEnhancedPosition(nn.Module):
    """CSwin's LePE: a depthwise 3×3 convolution of the values within each region."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(dim, dim, kernel_size=3, padding=1, groups=dim)

    def forward(self, v: Tensor, hw: tuple[int, int], channels: slice) -> Tensor:
        """v (B, P + h·w, c), which are these channels of all, to (B, h·w, c)."""
        bias = None if self.conv.bias is None else self.conv.bias[channels]
        return depthwise(v, hw, self.conv.weight[channels], bias)
