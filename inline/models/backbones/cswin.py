"""InLine-CSwin: the CSWin Transformer with InLine attention over the whole map in its early stages."""

from collections.abc import Mapping, Sequence
from typing import Any

from inline.arguments import checked
from inline.models.archs import resolve_arch
from inline.models.backbones.common import resolve_img_size
from inline.models.backbones.pyramid import Place, Pyramid, PyramidArch, Stage, build_blocks
from inline.models.layers import ConvEmbed
from inline.models.mixers.registry import MixerConfig, MixersConfig

ARCHS = {
    'tiny':  PyramidArch((64, 128, 256, 512), (2, 4, 18, 1), (2, 4, 8, 16), (2, 4, 0, 0)),
    'small': PyramidArch((64, 128, 256, 512), (3, 6, 29, 2), (2, 4, 8, 16), (3, 6, 0, 0)),
    'base':  PyramidArch((96, 192, 384, 768), (3, 6, 29, 2), (4, 8, 16, 32), (3, 6, 0, 0)),
}  # fmt: skip


class InLineCSwin(Pyramid):
    """A pyramid of strides 4, 8, 16, 32 with overlapping embeddings and a local position term (LePE).

    Softmax blocks see cross-shaped stripes of width 1, 2 and img_size / 32 (7 for 224, 12 for 384) in the
    first three stages and the whole map in the last. InLine blocks, and those of any other attention, see
    the whole map unless their config has a split_size.

    Args:
        arch: tiny, small, base, or a dict with embed_dims, depths and num_heads, each with one number per
            stage, and if wanted inline_depths and mlp_ratios.
        img_size: Image size that the stripes are made for, one number or (height, width); images of any
            size are taken.
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
        split_sizes = (1, 2, max(min(resolve_img_size(img_size)) // 32, 1))

        def complete(config: MixerConfig, place: Place) -> MixerConfig:
            if config.get('type') == 'InLine':
                return {'lepe': True, 'mean_before_norm': True, **config}
            if config.get('type') == 'Softmax' and place.stage < len(split_sizes):
                return {'lepe': True, 'split_size': split_sizes[place.stage], **config}
            return {'lepe': True, **config}

        dims = sizes.embed_dims
        blocks = build_blocks(sizes, mixers, complete, drop_path_rate)
        stages = [
            Stage(
                ConvEmbed(dims[i - 1], dim, kernel_size=3, stride=2, padding=1)
                if i
                else ConvEmbed(in_channels, dim, kernel_size=7, stride=4, padding=2),
                None,
                blocks[i],
            )
            for i, dim in enumerate(dims)
        ]
        super().__init__(stages, dims, out_indices, out_norm, with_cp)
