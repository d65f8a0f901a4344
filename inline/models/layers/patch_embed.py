import torch.nn.functional as F
from torch import Tensor, nn

from inline.models.layers.maps import map_to_tokens


class PatchEmbed(nn.Module):
    """Cut a map into patches that do not overlap, and project each to a token.

    A size that is not a whole number of patches is padded with zeros below and on the right, so a map
    of H×W gives ceil(H / patch_size) × ceil(W / patch_size) tokens.
    """

    def __init__(self, in_channels: int, dim: int, patch_size: int) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.proj = nn.Conv2d(in_channels, dim, kernel_size=patch_size, stride=patch_size)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """(B, C, H, W) → tokens (B, h·w, dim) and (h, w)."""
        height, width = x.shape[-2:]
        x = F.pad(x, (0, -width % self.patch_size, 0, -height % self.patch_size))
        x = self.proj(x)
        return self.norm(map_to_tokens(x)), (x.shape[-2], x.shape[-1])
