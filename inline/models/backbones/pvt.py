"""InLine-PVT: the Pyramid Vision Transformer with InLine attention in place of spatial reduction."""

from collections.abc import Mapping, Sequence
from typing import Any

from inline.arguments import checked
from inline.models.archs import resolve_arch
from inline.models.backbones.common import resolve_img_size
from inline.models.backbones.pyramid import Place, Pyramid, PyramidArch, Stage, build_blocks, stage_sizes
from inline.models.layers import PatchEmbed, PositionEmbedding
from inline.models.mixers.registry import MixerConfig, MixersConfig

NORM_EPS = 1e-6
# Spatial reduction of the stages with softmax.
SR_RATIOS = (8, 4, 2, 1)


ARCHS = {
    'tiny':   PyramidArch((64, 128, 320, 512), (2, 2, 2, 2), (2, 4, 10, 16), mlp_ratios=(8, 8, 4, 4)),
    'small':  PyramidArch((64, 128, 320, 512), (3, 4, 6, 3), (2, 4, 10, 16), mlp_ratios=(8, 8, 4, 4)),
    'medium': PyramidArch((64, 128, 320, 512), (3, 4, 18, 3), (2, 4, 10, 16), mlp_ratios=(8, 8, 4, 4)),
    'large':  PyramidArch((64, 128, 320, 512), (3, 8, 27, 3), (2, 4, 10, 16), mlp_ratios=(8, 8, 4, 4)),
}  # fmt: skip


class InLinePVT(Pyramid):
    """A pyramid of strides 4, 8, 16, 32 with learned positions at every stage.

    Args:
        arch: tiny, small, medium, large, or a dict with embed_dims, depths, num_heads and if wanted
            mlp_ratios and inline_depths, each with one number per stage.
        img_size: Image size of the position tables, one number or (height, width); images of other
            sizes get them resized.
        in_channels: Channels of the image.
        out_indices: Stages whose features are returned, counted from 0.
        drop_path_rate: Stochastic depth of the last block; it grows linearly from 0 at the first.
        mixers: Token mixer of each stage or block, see :mod:`inline.models.mixers.registry`; None for
            the arch's own. Softmax stages have PVT's spatial reduction.
        absolute_position: Whether the stages have learned positions.
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
        absolute_position: bool = True,
        out_norm: bool = False,
        with_cp: bool = False,
    ) -> None:
        sizes = resolve_arch(arch, ARCHS, PyramidArch)
        dims = sizes.embed_dims
        maps = stage_sizes(resolve_img_size(img_size), len(dims))
        blocks = build_blocks(sizes, mixers, _complete, drop_path_rate, NORM_EPS)
        stages = [
            Stage(
                PatchEmbed(dims[i - 1], dim, 2) if i else PatchEmbed(in_channels, dim, 4),
                PositionEmbedding(dim, maps[i]) if absolute_position else None,
                blocks[i],
            )
            for i, dim in enumerate(dims)
        ]
        super().__init__(stages, dims, out_indices, out_norm, with_cp)


def _complete(config: MixerConfig, place: Place) -> MixerConfig:
    if config.get('type') == 'Softmax' and place.stage < len(SR_RATIOS):
        return {'sr_ratio': SR_RATIOS[place.stage], **config}
    return config
