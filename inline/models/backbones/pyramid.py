"""What the pyramid families share: stages one after another, features out of the chosen ones."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from inline.arguments import check_range
from inline.errors import UserError
from inline.models.archs import check_mlp_ratio, check_same_length
from inline.models.backbones.common import check_image_size, check_out_indices, init_weights
from inline.models.block import Block
from inline.models.layers import drop_path_rates, tokens_to_map
from inline.models.limits import MAX_DEPTH, MAX_WIDTH
from inline.models.mixers import build_mixer, default_mixers, expand_mixers
from inline.models.mixers.registry import MixerConfig, MixersConfig


@dataclass(frozen=True)
class PyramidArch:
    """Sizes of each stage; of its blocks the first ``inline_depths`` have InLine, all of them if None."""

    embed_dims: tuple[int, ...]
    depths: tuple[int, ...]
    num_heads: tuple[int, ...]
    inline_depths: tuple[int, ...] | None = None
    mlp_ratios: tuple[float, ...] = (4, 4, 4, 4)

    def __post_init__(self) -> None:
        check_same_length(
            embed_dims=self.embed_dims,
            depths=self.depths,
            num_heads=self.num_heads,
            mlp_ratios=self.mlp_ratios,
            inline_depths=self.depths if self.inline_depths is None else self.inline_depths,
        )
        for dim, depth, ratio in zip(self.embed_dims, self.depths, self.mlp_ratios, strict=True):
            check_range('embed_dims', dim, 1, MAX_WIDTH)
            check_range('depths', depth, 1, MAX_DEPTH)
            check_mlp_ratio(ratio, dim)
        for inline_depth, depth in zip(self.inline_depths or (), self.depths, strict=False):
            if not 0 <= inline_depth <= depth:
                raise UserError(
                    f'inline_depths {self.inline_depths}: each must be from 0 to its depth of {self.depths}'
                )


class Place(NamedTuple):
    """Where a block stands, both counted from 0."""

    stage: int
    block: int


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
        self.depths = tuple(len(stage.blocks) for stage in stages)
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

    def get_layer_depth(self, param_name: str, prefix: str = '') -> tuple[int, int]:
        """For layer-wise learning-rate decay: a parameter's depth, and how many depths there are.

        What reads the image has depth 0, the first block 1; a stage's downsampling goes with the block
        before it, norms of the outputs come last.
        """
        words = param_name.removeprefix(prefix).split('.')
        last = sum(self.depths) + 1
        if words[0] != 'stages':
            return last, last + 1
        before = sum(self.depths[: int(words[1])])
        return before + (int(words[3]) + 1 if words[2] == 'blocks' else 0), last + 1

    def _normalise(self, x: Tensor, stage: int) -> Tensor:
        if not self.out_norms:
            return x
        return self.out_norms[str(stage)](x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2).contiguous()


def build_blocks(
    arch: PyramidArch,
    mixers: MixersConfig | None,
    complete: Callable[[MixerConfig, Place], MixerConfig],
    drop_path_rate: float,
    norm_eps: float = 1e-5,
) -> list[list[Block]]:
    """The blocks of each stage.

    Args:
        arch: Sizes of the stages.
        mixers: As the backbone got them; None for the arch's own mix.
        complete: Adds the family's habits to the config of the mixer at some place.
        drop_path_rate: Stochastic depth of the last block.
        norm_eps: Of the blocks' norms.
    """
    if mixers is None:
        mixers = default_mixers(arch.inline_depths or arch.depths, arch.depths)
    configs = expand_mixers(mixers, arch.depths)
    rates = drop_path_rates(drop_path_rate, arch.depths)
    return [
        [
            Block(
                dim,
                build_mixer(complete(configs[i][j], Place(i, j)), dim, arch.num_heads[i]),
                arch.mlp_ratios[i],
                rates[i][j],
                norm_eps,
            )
            for j in range(arch.depths[i])
        ]
        for i, dim in enumerate(arch.embed_dims)
    ]


def stage_sizes(hw: tuple[int, int], num_stages: int) -> list[tuple[int, int]]:
    """Height and width of each stage's map for an image of ``hw``."""
    return [(-(-hw[0] // stride), -(-hw[1] // stride)) for stride in (4 * 2**i for i in range(num_stages))]
