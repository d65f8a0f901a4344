"""InLine-Swin: the Swin Transformer with InLine attention over the whole map in its early stages."""

from collections.abc import Mapping, Sequence
from typing import Any

from inline.arguments import checked
from inline.models.archs import resolve_arch
from inline.models.backbones.common import resolve_img_size
from inline.models.backbones.pyramid import Place, Pyramid, PyramidArch, Stage, build_blocks, stage_sizes
from inline.models.layers import PatchEmbed, PatchMerging
from inline.models.mixers.registry import MixerConfig, MixersConfig

ARCHS = {
    'tiny':  PyramidArch((96, 192, 384, 768), (2, 2, 6, 2), (3, 6, 12, 24), (2, 2, 6, 0)),
    'small': PyramidArch((96, 192, 384, 768), (2, 2, 18, 2), (3, 6, 12, 24), (2, 2, 0, 0)),
    'base':  PyramidArch((128, 256, 512, 1024), (2, 2, 18, 2), (4, 8, 16, 32), (2, 2, 2, 0)),
}  # fmt: skip


class InLineSwin(Pyramid):
    """A pyramid of strides 4, 8, 16, 32 without absolute positions.

    Softmax blocks have windows of img_size / 32, 7 for 224 and 12 for 384, with relative positions. InLine
    blocks, and those of any other attention, see the whole map unless their config has a window_size. The
    windows of every second block are shifted.

    Args:
        arch: tiny, small, base, or a dict with embed_dims, depths and num_heads, each with one number per
            stage, and if wanted inline_depths and mlp_ratios.
        img_size: Image size that the softmax windows are made for, one number or (height, width); images
            of any size are taken.
        in_channels: Channels of the image.
        out_indices: Stages whose features are returned, counted from 0.
        drop_path_rate: Stochastic depth of the last block; it grows linearly from 0 at the first.
        mixers: Token mixer of each stage or block, see :mod:`inline.models.mixers.registry`; None for
            the arch's own.
        out_norm: Whether each returned level passes a LayerNorm of its own.
        with_cp: Gradient checkpointing: blocks are recomputed in the backward pass.
    """

    @checked
    def __init__(
        self,
        arch: str | Mapping[str, Any] = 'tiny',
        img_size: int | Sequence[int] = 224,
        in_channels: int = 3,
        out_indices: Sequence[int] = (0, 1, 2, 3),
        drop_path_rate: float = 0.0,
        mixers: MixersConfig | None = None,
        out_norm: bool = True,
        with_cp: bool = False,
    ) -> None:
        sizes = resolve_arch(arch, ARCHS, PyramidArch)
        hw = resolve_img_size(img_size)
        maps = stage_sizes(hw, len(sizes.depths))

        def complete(config: MixerConfig, place: Place) -> MixerConfig:
            habits: MixerConfig = {'shift': place.block % 2 == 1}
            if config.get('type') != 'Softmax':
                return {**habits, **config}
            config = {'window_size': max(min(hw) // 32, 1), 'relative_position': True, **habits, **config}
            if config['window_size'] is not None:
                # The table of relative positions is no larger than the map that it is made for.
                config['window_size'] = min(config['window_size'], *maps[place.stage])
            return config

        dims = sizes.embed_dims
        blocks = build_blocks(sizes, mixers, complete, drop_path_rate)
        stages = [
            Stage(PatchMerging(dims[i - 1], dim) if i else PatchEmbed(in_channels, dim, 4), None, blocks[i])
            for i, dim in enumerate(dims)
        ]
        super().__init__(stages, dims, out_indices, out_norm, with_cp)
