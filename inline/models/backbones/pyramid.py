"""Base class of the pyramid families: stages of blocks, feature maps of the chosen stages."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from inline.models.backbones.common import (
    MAX_DEPTH,
    Backbone,
    Intermediate,
    check_image_size,
    check_mlp_ratio,
    init_weights,
    resolve_out_indices,
)
from inline.models.block import Block, drop_path_rates, run_block
from inline.models.layers import MAX_WIDTH, map_to_tokens, tokens_to_map
from inline.models.mixers import build_mixer, default_mixers, expand_mixers
from inline.models.mixers.registry import MixerConfig, MixersConfig
from inline.ops.local_residual import compiles_any_size
from inline.utils.arguments import check_range
from inline.utils.errors import UserError


@dataclass(frozen=True)
class PyramidArch:
    """Sizes per stage. The first ``inline_depths`` blocks of a stage have InLine attention, all if None."""

    embed_dims: tuple[int, ...]
    depths: tuple[int, ...]
    num_heads: tuple[int, ...]
    inline_depths: tuple[int, ...] | None = None
    mlp_ratios: tuple[float, ...] = (4, 4, 4, 4)

    def __post_init__(self) -> None:
        _check_same_length(
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


class BlockIndex(NamedTuple):
    """Position of a block, both indices from 0."""

    stage: int
    block: int


# Adds the family's defaults to the mixer config of a block.
FamilyDefaults = Callable[[MixerConfig, BlockIndex], MixerConfig]


class Stage(nn.Module):
    """Downsampling, an optional position embedding, and blocks."""

    def __init__(
        self, downsample: nn.Module, position: nn.Module | None, blocks: Sequence[nn.Module]
    ) -> None:
        super().__init__()
        self.downsample = downsample
        self.position = position
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor, index: int, with_cp: bool) -> Tensor:
        """(B, C, H, W) → (B, C', h, w).

        Args:
            x: The map of the stage before, or the images.
            index: Number of the stage, from 0.
            with_cp: Whether to recompute each block in the backward pass.
        """
        tokens, hw = self.downsample(x)
        if self.position is not None:
            tokens = self.position(tokens, hw)
        for block in self.blocks:
            tokens = (
                checkpoint(block, tokens, hw, use_reentrant=False)
                if with_cp
                else run_block(block, tokens, hw, index)
            )
        return tokens_to_map(tokens, hw)


class Pyramid(Backbone):
    """A backbone of stages that each reduce the resolution of the map.

    Only the stages up to the last of ``out_indices`` are built and run. Stochastic depth and layer-wise
    learning-rate decay are those of the full depth.

    Args:
        arch: Sizes of all stages.
        make_downsample: Builds the downsampling of a stage; stage 0 takes the image.
        make_position: Builds the position embedding of a stage; None for none.
        with_family_defaults: Adds the family's defaults to the mixer config of a block.
        mixers: Token mixer of each stage or block, see :mod:`inline.models.mixers.registry`; None for those
            of the arch.
        drop_path_rate: Stochastic depth rate of the last block; it grows linearly from 0 at the first.
        norm_eps: Epsilon of the norms in the blocks.
        out_indices: Stages whose features are returned, from 0.
        out_norm: Whether to apply a LayerNorm to each returned feature map.
        with_cp: Whether to recompute blocks in the backward pass, which saves memory.
    """

    def __init__(
        self,
        arch: PyramidArch,
        make_downsample: Callable[[int], nn.Module],
        *,
        make_position: Callable[[int], nn.Module] | None = None,
        with_family_defaults: FamilyDefaults,
        mixers: MixersConfig | None,
        drop_path_rate: float,
        norm_eps: float = 1e-5,
        out_indices: Sequence[int],
        out_norm: bool,
        with_cp: bool,
    ) -> None:
        super().__init__()
        self.dims = arch.embed_dims
        self.depths = arch.depths
        self.out_indices = resolve_out_indices(out_indices, len(arch.depths), 'stages')
        self.with_cp = with_cp
        num_stages = self.out_indices[-1] + 1
        blocks = _build_blocks(arch, mixers, with_family_defaults, drop_path_rate, norm_eps, num_stages)
        self.stages = nn.ModuleList(
            Stage(make_downsample(i), make_position(i) if make_position else None, blocks[i])
            for i in range(num_stages)
        )
        self.out_norms = nn.ModuleDict(
            {str(i): nn.LayerNorm(self.dims[i]) for i in self.out_indices} if out_norm else {}
        )
        self.apply(init_weights)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Images (B, 3, H, W) → a feature map (B, C, h, w) for each of ``out_indices``."""
        check_image_size(x, self._stride)
        outs = []
        for i, stage in enumerate(self.stages):
            x = stage(x, i, with_cp=self.with_cp and self.training)
            if i in self.out_indices:
                x, out = _branch(x)
                outs.append(self._apply_out_norm(out, i))
        return tuple(outs)

    def forward_intermediates(
        self, x: Tensor, indices: Collection[int], norm: bool = False, stop_early: bool = False
    ) -> tuple[Tensor, list[Intermediate]]:
        check_image_size(x, self._stride)
        stages = self.stages[: max(indices) + 1] if stop_early else self.stages
        taken = []
        for i, stage in enumerate(stages):
            x = stage(x, i, with_cp=self.with_cp and self.training)
            if i in indices:
                x, out = _branch(x)
                taken.append(Intermediate(self._apply_out_norm(out, i) if norm else out))
        return self._apply_out_norm(x, len(stages) - 1), taken

    def prune(self, last: int, prune_norm: bool) -> None:
        """Delete the stages after `last`, and with `prune_norm` the output norms."""
        self.stages = self.stages[: last + 1]
        self.out_indices = tuple(i for i in self.out_indices if i <= last) or (last,)
        for name in list(self.out_norms):
            if prune_norm or int(name) > last:
                del self.out_norms[name]

    def stage_modules(self) -> list[list[nn.Module]]:
        """Return the modules from the input on: the stem, then one list per stage, empty if not built."""
        first = self.stages[0]
        stem = [module for name, module in first.named_children() if name != 'blocks']
        not_built = len(self.depths) - len(self.stages)
        return [stem, *[[stage] for stage in self.stages], *[[] for _ in range(not_built)]]

    def get_layer_depth(self, param_name: str, prefix: str = '') -> tuple[int, int]:
        """Return the depth of a parameter and the number of depths, for layer-wise learning-rate decay.

        The stem has depth 0 and the first block depth 1. The downsampling of a stage has the depth of the
        block before it; the norms of the outputs come last. Depths are those of the full model.
        """
        words = param_name.removeprefix(prefix).split('.')
        last = sum(self.depths) + 1
        if words[0] != 'stages':
            return last, last + 1
        before = sum(self.depths[: int(words[1])])
        return before + (int(words[3]) + 1 if words[2] == 'blocks' else 0), last + 1

    def unused_state_dict_prefixes(self) -> tuple[str, ...]:
        stages = range(len(self.depths))
        prefixes = [f'stages.{i}.' for i in stages if i >= len(self.stages)]
        if self.out_norms:
            prefixes += [f'out_norms.{i}.' for i in stages if i not in self.out_indices]
        return tuple(prefixes)

    @property
    def _stride(self) -> int:
        """Stride of the last map."""
        return 4 * 2 ** (len(self.stages) - 1)

    def _apply_out_norm(self, x: Tensor, stage: int) -> Tensor:
        if str(stage) not in self.out_norms:
            return x
        return self.out_norms[str(stage)](x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2).contiguous()


def _branch(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return a map (B, C, H, W) for the next stage, and the same for the output.

    With symbolic sizes their gradients are added as tokens: inductor (PyTorch 2.13) cannot determine the
    layout of a sum of maps for the linear layers, which need the layout of tokens.
    """
    if not compiles_any_size(x):
        return x, x
    tokens, hw = map_to_tokens(x), (x.shape[2], x.shape[3])
    return tokens_to_map(tokens, hw), tokens_to_map(tokens, hw)


def stage_sizes(hw: tuple[int, int], num_stages: int) -> list[tuple[int, int]]:
    """Return the height and width of each stage's map for an image of ``hw``."""
    return [(-(-hw[0] // stride), -(-hw[1] // stride)) for stride in (4 * 2**i for i in range(num_stages))]


def _build_blocks(
    arch: PyramidArch,
    mixers: MixersConfig | None,
    with_family_defaults: FamilyDefaults,
    drop_path_rate: float,
    norm_eps: float,
    num_stages: int,
) -> list[list[Block]]:
    """Build the blocks of the first ``num_stages`` stages; the arguments are those of :class:`Pyramid`."""
    if mixers is None:
        mixers = default_mixers(arch.inline_depths or arch.depths, arch.depths)
    configs = expand_mixers(mixers, arch.depths)
    rates = drop_path_rates(drop_path_rate, arch.depths)

    def build(stage: int, block: int) -> Block:
        dim = arch.embed_dims[stage]
        config = with_family_defaults(configs[stage][block], BlockIndex(stage, block))
        mixer = build_mixer(config, dim, arch.num_heads[stage])
        return Block(dim, mixer, arch.mlp_ratios[stage], rates[stage][block], norm_eps)

    return [[build(i, j) for j in range(arch.depths[i])] for i in range(num_stages)]


def _check_same_length(**settings: tuple[Any, ...]) -> None:
    """Raise if per-stage settings have different lengths."""
    lengths = {name: len(value) for name, value in settings.items()}
    if len(set(lengths.values())) > 1:
        listed = ', '.join(f'{name} {length}' for name, length in lengths.items())
        raise UserError(f'the number of stages differs: {listed}')
    if 0 in lengths.values():
        raise UserError(f'{next(iter(settings))} (): there must be at least one stage')
