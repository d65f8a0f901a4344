"""InLine-Swin: the Swin Transformer with InLine attention over the whole map in its early stages."""

from collections.abc import Mapping, Sequence
from typing import Any

from inline.models.backbones.common import resolve_arch, resolve_img_size
from inline.models.backbones.pyramid import BlockIndex, Pyramid, PyramidArch, stage_sizes
from inline.models.layers import PatchEmbed, PatchMerging
from inline.models.mixers.registry import MixerConfig, MixersConfig
from inline.utils.arguments import checked

ARCHS = {
    'micro': PyramidArch((32, 64, 128, 192), (2, 2, 2, 1), (2, 4, 8, 12), (2, 2, 2, 0), (4, 4, 4, 3)),
    'tiny':  PyramidArch((96, 192, 384, 768), (2, 2, 6, 2), (3, 6, 12, 24), (2, 2, 6, 0)),
    'small': PyramidArch((96, 192, 384, 768), (2, 2, 18, 2), (3, 6, 12, 24), (2, 2, 0, 0)),
    'base':  PyramidArch((128, 256, 512, 1024), (2, 2, 18, 2), (4, 8, 16, 32), (2, 2, 2, 0)),
}  # fmt: skip


class InLineSwin(Pyramid):
    """A pyramid of strides 4, 8, 16, 32 without absolute positions.

    Softmax blocks have windows of img_size / 32 tokens (7 for 224, 12 for 384) and a relative position bias.
    InLine blocks, and those of any other attention, attend to the whole map unless their config sets a
    window_size. The windows of every second block are shifted.

    Args:
        arch: micro, tiny, small, base, or a dict with embed_dims, depths and num_heads, each with one number
            per stage, and optionally inline_depths and mlp_ratios.
        img_size: Image size that sets the softmax windows, one number or (height, width); images may have
            any size.
        in_channels: Number of image channels.
        out_indices: Stages whose features are returned, from 0, or from the end if negative. Later stages are
            not built.
        drop_path_rate: Stochastic depth rate of the last block; it grows linearly from 0 at the first.
        mixers: Token mixer of each stage or block, see :mod:`inline.models.mixers.registry`; None for
            those of the arch.
        out_norm: Whether to apply a LayerNorm to each returned feature map.
        with_cp: Gradient checkpointing: recompute blocks in the backward pass.
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

        def with_family_defaults(config: MixerConfig, index: BlockIndex) -> MixerConfig:
            defaults: MixerConfig = {'shift': index.block % 2 == 1}
            if config.get('type') != 'Softmax':
                return {**defaults, **config}
            config = {'window_size': max(min(hw) // 32, 1), 'relative_position': True, **defaults, **config}
            if config['window_size'] is not None:
                # The relative position table is not larger than the map at img_size.
                config['window_size'] = min(config['window_size'], *maps[index.stage])
            return config

        dims = sizes.embed_dims
        super().__init__(
            sizes,
            lambda i: PatchMerging(dims[i - 1], dims[i]) if i else PatchEmbed(in_channels, dims[i], 4),
            with_family_defaults=with_family_defaults,
            mixers=mixers,
            drop_path_rate=drop_path_rate,
            out_indices=out_indices,
            out_norm=out_norm,
            with_cp=with_cp,
        )
