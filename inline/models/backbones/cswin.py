"""InLine-CSwin: the CSWin Transformer with InLine attention over the whole map in its early stages."""

from collections.abc import Mapping, Sequence
from typing import Any

from inline.models.backbones.common import resolve_arch, resolve_img_size
from inline.models.backbones.pyramid import BlockIndex, Pyramid, PyramidArch
from inline.models.layers import ConvEmbed
from inline.models.mixers.registry import MixerConfig, MixersConfig
from inline.utils.arguments import checked

ARCHS = {
    'micro': PyramidArch((32, 64, 128, 192), (1, 2, 2, 1), (2, 4, 8, 12), (1, 2, 0, 0), (4, 4, 4, 3)),
    'tiny':  PyramidArch((64, 128, 256, 512), (2, 4, 18, 1), (2, 4, 8, 16), (2, 4, 0, 0)),
    'small': PyramidArch((64, 128, 256, 512), (3, 6, 29, 2), (2, 4, 8, 16), (3, 6, 0, 0)),
    'base':  PyramidArch((96, 192, 384, 768), (3, 6, 29, 2), (4, 8, 16, 32), (3, 6, 0, 0)),
}  # fmt: skip


class InLineCSwin(Pyramid):
    """A pyramid of strides 4, 8, 16, 32 with overlapping embeddings and a local position term (LePE).

    Softmax blocks attend within cross-shaped stripes of width 1, 2 and img_size / 32 (7 for 224, 12 for 384)
    in the first three stages and to the whole map in the last. InLine blocks, and those of any other
    attention, attend to the whole map unless their config sets a split_size.

    Args:
        arch: micro, tiny, small, base, or a dict with embed_dims, depths and num_heads, each with one number
            per stage, and optionally inline_depths and mlp_ratios.
        img_size: Image size that sets the stripes, one number or (height, width); images may have any size.
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
        split_sizes = (1, 2, max(min(resolve_img_size(img_size)) // 32, 1))

        def with_family_defaults(config: MixerConfig, index: BlockIndex) -> MixerConfig:
            if config.get('type') == 'InLine':
                return {'lepe': True, 'mean_before_norm': True, **config}
            if config.get('type') == 'Softmax' and index.stage < len(split_sizes):
                return {'lepe': True, 'split_size': split_sizes[index.stage], **config}
            return {'lepe': True, **config}

        dims = sizes.embed_dims

        def make_downsample(i: int) -> ConvEmbed:
            if i == 0:
                return ConvEmbed(in_channels, dims[0], kernel_size=7, stride=4, padding=2)
            return ConvEmbed(dims[i - 1], dims[i], kernel_size=3, stride=2, padding=1)

        super().__init__(
            sizes,
            make_downsample,
            with_family_defaults=with_family_defaults,
            mixers=mixers,
            drop_path_rate=drop_path_rate,
            out_indices=out_indices,
            out_norm=out_norm,
            with_cp=with_cp,
        )
