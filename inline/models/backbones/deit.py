"""InLine-DeiT: the plain vision transformer with InLine attention in every block."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from inline.models.backbones.common import (
    MAX_DEPTH,
    Backbone,
    Intermediate,
    check_image_size,
    check_mlp_ratio,
    init_weights,
    resolve_arch,
    resolve_img_size,
    resolve_out_indices,
)
from inline.models.block import Block, drop_path_rates, run_block
from inline.models.layers import MAX_WIDTH, ClassToken, PatchEmbed, PositionEmbedding, tokens_to_map
from inline.models.mixers import AttentionMixer, build_mixer, expand_mixers
from inline.models.mixers.registry import MixerConfig, MixersConfig
from inline.utils.arguments import check_choice, check_range, checked, format_value
from inline.utils.errors import UserError

NORM_EPS = 1e-6
OUT_TYPES = ('featmap', 'cls_token')


@dataclass(frozen=True)
class DeiTArch:
    """Sizes of all blocks, and the image size of the paper's training."""

    embed_dims: int
    depth: int
    num_heads: int
    img_size: int = 224
    patch_size: int = 16
    mlp_ratio: float = 4

    def __post_init__(self) -> None:
        check_range('embed_dims', self.embed_dims, 1, MAX_WIDTH)
        check_range('depth', self.depth, 1, MAX_DEPTH)
        check_mlp_ratio(self.mlp_ratio, self.embed_dims)


ARCHS = {
    'micro': DeiTArch(128, 6, 8, 64, patch_size=4),
    'tiny':  DeiTArch(192, 12, 6, 224),
    'small': DeiTArch(320, 12, 10, 288),
    'base':  DeiTArch(384, 12, 12, 448),
}  # fmt: skip


class InLineDeiT(Backbone):
    """A plain vision transformer with a class token and patches of 16 × 16 pixels (micro: 4 × 4).

    Args:
        arch: micro, tiny, small, base, or a dict with embed_dims, depth, num_heads, and optionally img_size,
            patch_size and mlp_ratio.
        img_size: Image size of the position table, one number or (height, width), that of the arch if
            None; it is interpolated for images of other sizes.
        in_channels: Number of image channels.
        out_indices: Blocks whose features are returned, from 0; -1 is the last block, to which the final
            norm is applied. Later blocks are not built.
        out_type: 'featmap' for maps (B, C, h, w), one position per patch; 'cls_token' for vectors (B, C).
        drop_path_rate: Stochastic depth rate of the last block; it grows linearly from 0 at the first.
        mixers: Token mixer of all blocks or of each, see :mod:`inline.models.mixers.registry`.
        with_cp: Gradient checkpointing: recompute blocks in the backward pass.
    """

    @checked
    def __init__(
        self,
        arch: str | Mapping[str, Any] = 'tiny',
        img_size: int | Sequence[int] | None = None,
        in_channels: int = 3,
        out_indices: Sequence[int] = (-1,),
        out_type: str = 'featmap',
        drop_path_rate: float = 0.0,
        mixers: MixersConfig | None = None,
        with_cp: bool = False,
    ) -> None:
        super().__init__()
        sizes = resolve_arch(arch, ARCHS, DeiTArch)
        check_choice('out_type', out_type, OUT_TYPES)
        height, width = resolve_img_size(sizes.img_size if img_size is None else img_size)
        dim, depth, patch_size = sizes.embed_dims, sizes.depth, sizes.patch_size
        check_range('patch_size', patch_size, 1, min(height, width))
        self.dims = (dim,) * depth
        self.out_indices = resolve_out_indices(out_indices, depth, 'blocks')
        self.out_type = out_type
        self.with_cp = with_cp
        self.patch_embed = PatchEmbed(in_channels, dim, patch_size, norm=False)
        self.class_token = ClassToken(dim)
        self.position = PositionEmbedding(dim, (-(-height // patch_size), -(-width // patch_size)), 'bicubic')
        configs = expand_mixers({'type': 'InLine'} if mixers is None else mixers, (1,) * depth)
        rates = drop_path_rates(drop_path_rate, (1,) * depth)
        self.depth = depth
        self.blocks = nn.ModuleList(
            Block(dim, _build_mixer(config, dim, sizes.num_heads), sizes.mlp_ratio, rate, NORM_EPS)
            for (config,), (rate,) in zip(configs[: self.out_indices[-1] + 1], rates, strict=False)
        )
        self.norm = nn.LayerNorm(dim, eps=NORM_EPS) if self.out_indices[-1] == depth - 1 else None
        self.apply(init_weights)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Images (B, 3, H, W) → for each of ``out_indices`` a map (B, C, h, w) or a class token (B, C)."""
        tokens, hw = self._embed(x)
        outs = []
        for i, block in enumerate(self.blocks):
            tokens = self._run_block(block, tokens, hw)
            if i in self.out_indices:
                out = self.norm(tokens) if self.norm is not None and i == self.depth - 1 else tokens
                outs.append(out[:, 0] if self.out_type == 'cls_token' else tokens_to_map(out[:, 1:], hw))
        return tuple(outs)

    def forward_intermediates(
        self, x: Tensor, indices: Collection[int], norm: bool = False, stop_early: bool = False
    ) -> tuple[Tensor, list[Intermediate]]:
        tokens, hw = self._embed(x)
        taken = []
        for i, block in enumerate(self.blocks[: max(indices) + 1] if stop_early else self.blocks):
            tokens = self._run_block(block, tokens, hw)
            if i in indices:
                out = self.norm(tokens) if norm and self.norm is not None else tokens
                taken.append(Intermediate(tokens_to_map(out[:, 1:], hw), out[:, :1]))
        return tokens if self.norm is None else self.norm(tokens), taken

    def _embed(self, x: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Images (B, 3, H, W) → class token and patches (B, 1 + h·w, C), and (h, w)."""
        check_image_size(x, self.patch_embed.stride)
        patches, hw = self.patch_embed(x)
        return self.class_token(self.position(patches, hw)), hw

    def _run_block(self, block: nn.Module, tokens: Tensor, hw: tuple[int, int]) -> Tensor:
        if self.with_cp and self.training:
            recomputed: Tensor = checkpoint(block, tokens, hw, use_reentrant=False)
            return recomputed
        return run_block(block, tokens, hw)

    def prune(self, last: int, prune_norm: bool) -> None:
        """Delete the blocks after `last`, and with `prune_norm` the final norm."""
        self.blocks = self.blocks[: last + 1]
        self.out_indices = tuple(i for i in self.out_indices if i <= last) or (last,)
        self.norm = None if prune_norm else self.norm

    def get_layer_depth(self, param_name: str, prefix: str = '') -> tuple[int, int]:
        """Return the depth of a parameter and the number of depths, for layer-wise learning-rate decay."""
        words = param_name.removeprefix(prefix).split('.')
        last = self.depth + 1
        if words[0] == 'blocks':
            return int(words[1]) + 1, last + 1
        return (last if words[0] == 'norm' else 0), last + 1

    def stage_modules(self) -> list[list[nn.Module]]:
        """Return the modules from the input on: the stem, then one list per block, empty if not built."""
        not_built = self.depth - len(self.blocks)
        stem = [self.patch_embed, self.class_token, self.position]
        return [stem, *[[block] for block in self.blocks], *[[] for _ in range(not_built)]]

    def unused_state_dict_prefixes(self) -> tuple[str, ...]:
        blocks = tuple(f'blocks.{i}.' for i in range(len(self.blocks), self.depth))
        return blocks if self.norm is not None else (*blocks, 'norm.')


def _build_mixer(config: MixerConfig, dim: int, num_heads: int) -> AttentionMixer:
    if config.get('type') == 'Agent':
        config = {'class_token': True, **config}
    mixer = build_mixer(config, dim, num_heads)
    if not mixer.supports_prefix:
        raise UserError(
            f'mixer {format_value(config)}: windows, stripes and reduced maps do not support a class token, '
            'use the whole map'
        )
    return mixer
