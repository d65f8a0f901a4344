"""What the pyramid families share: stages one after another, features out of the chosen ones."""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from inline.errors import UserError
from inline.models.layers import tokens_to_map

MIN_SIZE = 32


class Stage(nn.Module):
    """Shrink the map, add positions if the family has them, run the blocks."""

    def __init__(
        self, downsample: nn.Module, position: nn.Module | None, blocks: Sequence[nn.Module]
    ) -> None:
        super().__init__()
        self.downsample = downsample
        self.position = position
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor, with_cp: bool) -> Tensor:
        """(B, C, H, W) → (B, C', h, w). ``with_cp`` recomputes each block in the backward pass."""
        tokens, hw = self.downsample(x)
        if self.position is not None:
            tokens = self.position(tokens, hw)
        for block in self.blocks:
            tokens = checkpoint(block, tokens, hw, use_reentrant=False) if with_cp else block(tokens, hw)
        return tokens_to_map(tokens, hw)


class Pyramid(nn.Module):
    """A backbone of stages, each of which halves the map or more.

    Args:
        stages: The stages, first the one that reads the image.
        dims: Channels of each stage's output.
        out_indices: Stages whose features are returned, counted from 0.
        out_norm: Whether each returned level passes a LayerNorm of its own.
        with_cp: Whether to trade time for memory: blocks are recomputed in the backward pass.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        dims: Sequence[int],
        out_indices: Sequence[int],
        out_norm: bool,
        with_cp: bool,
    ) -> None:
        super().__init__()
        self.dims = tuple(dims)
        self.out_indices = check_out_indices(out_indices, len(stages))
        self.with_cp = with_cp
        self.stages = nn.ModuleList(stages)
        self.out_norms = nn.ModuleDict(
            {str(i): nn.LayerNorm(dims[i]) for i in self.out_indices} if out_norm else {}
        )
        self.apply(init_weights)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Images (B, 3, H, W) → a feature map (B, C, h, w) for each of ``out_indices``."""
        check_image_size(x)
        outs = []
        for i, stage in enumerate(self.stages):
            x = stage(x, with_cp=self.with_cp and self.training)
            if i in self.out_indices:
                outs.append(self._normalise(x, i))
        return tuple(outs)

    def parts(self) -> list[list[nn.Module]]:
        """The modules from the input on: what reads the image, then a list for each stage."""
        first = self.stages[0]
        stem = [module for name, module in first.named_children() if name != 'blocks']
        return [stem, *[[stage] for stage in self.stages]]

    def _normalise(self, x: Tensor, stage: int) -> Tensor:
        if not self.out_norms:
            return x
        return self.out_norms[str(stage)](x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2).contiguous()


def check_out_indices(out_indices: Sequence[int], num_stages: int) -> tuple[int, ...]:
    out_indices = tuple(out_indices)
    if not out_indices or list(out_indices) != sorted(set(out_indices) & set(range(num_stages))):
        raise UserError(f'out_indices {out_indices}: must be increasing stages out of 0..{num_stages - 1}')
    return out_indices


def check_image_size(x: Tensor) -> None:
    height, width = x.shape[-2:]
    if height < MIN_SIZE or width < MIN_SIZE:
        raise UserError(f'image of {height}×{width} pixels: each side must be at least {MIN_SIZE}')


def init_weights(module: nn.Module) -> None:
    """Truncated normal for linear layers, torch's own default for the rest."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def resolve_img_size(img_size: int | Sequence[int]) -> tuple[int, int]:
    """``img_size`` as (H, W)."""
    size = (img_size, img_size) if isinstance(img_size, int) else tuple(img_size)
    if len(size) != 2 or min(size) < MIN_SIZE:
        raise UserError(f'img_size {img_size}: must be one size or (height, width), each at least {MIN_SIZE}')
    return size[0], size[1]
