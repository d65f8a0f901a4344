"""InLine-PVT: the Pyramid Vision Transformer with InLine attention instead of spatial reduction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from inline.models.backbones.common import resolve_arch, resolve_img_size
from inline.models.backbones.pyramid import BlockIndex, Pyramid, PyramidArch, stage_sizes
from inline.models.layers import PatchEmbed, PositionEmbedding
from inline.models.mixers.registry import MixerConfig, MixersConfig
from inline.utils.arguments import checked

NORM_EPS = 1e-6
# Spatial reduction of softmax stages.
SR_RATIOS = (8, 4, 2, 1)


@dataclass(frozen=True)
class PVTArch(PyramidArch):
    """Sizes per stage, and whether the stages have position tables and the returned maps a norm."""

    absolute_position: bool = True
    out_norm: bool = False


_NARROW: dict[str, Any] = {'absolute_position': False, 'out_norm': True}
ARCHS = {
    # For images of 32 to 64 pixels on a CPU. The norm stabilises detectors that train from scratch.
    'nano':   PVTArch((24, 48, 64, 96), (1, 1, 1, 1), (2, 4, 4, 6), mlp_ratios=(3, 3, 3, 3), **_NARROW),
    'micro':  PVTArch((32, 64, 128, 192), (1, 2, 2, 1), (2, 4, 8, 12), mlp_ratios=(4, 4, 4, 3), **_NARROW),
    'tiny':   PVTArch((64, 128, 320, 512), (2, 2, 2, 2), (2, 4, 10, 16), mlp_ratios=(8, 8, 4, 4)),
    'small':  PVTArch((64, 128, 320, 512), (3, 4, 6, 3), (2, 4, 10, 16), mlp_ratios=(8, 8, 4, 4)),
    'medium': PVTArch((64, 128, 320, 512), (3, 4, 18, 3), (2, 4, 10, 16), mlp_ratios=(8, 8, 4, 4)),
    'large':  PVTArch((64, 128, 320, 512), (3, 8, 27, 3), (2, 4, 10, 16), mlp_ratios=(8, 8, 4, 4)),
}  # fmt: skip


class InLinePVT(Pyramid):
    """A pyramid of strides 4, 8, 16, 32 with a learned position table per stage.

    Args:
        arch: nano, micro, tiny, small, medium, large, or a dict with embed_dims, depths, num_heads and
            optionally mlp_ratios and inline_depths, each with one number per stage, and optionally
            absolute_position and out_norm.
        img_size: Image size of the position tables, one number or (height, width); they are interpolated
            for images of other sizes.
        in_channels: Number of image channels.
        out_indices: Stages whose features are returned, from 0, or from the end if negative. Later stages are
            not built.
        drop_path_rate: Stochastic depth rate of the last block; it grows linearly from 0 at the first.
        mixers: Token mixer of each stage or block, see :mod:`inline.models.mixers.registry`; None for
            those of the arch. Softmax stages have PVT's spatial reduction.
        absolute_position: Whether the stages have a learned position table; None for the arch's choice (nano
            and micro have none, all others do).
        out_norm: Whether to apply a LayerNorm to each returned feature map; None for the arch's choice (nano
            and micro do, all others do not).
        norm_eps: Epsilon of all norms; None for 1e-6 in the blocks and 1e-5 elsewhere, as in PVT's code.
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
        absolute_position: bool | None = None,
        out_norm: bool | None = None,
        norm_eps: float | None = None,
        with_cp: bool = False,
    ) -> None:
        sizes = resolve_arch(arch, ARCHS, PVTArch)
        has_position = sizes.absolute_position if absolute_position is None else absolute_position
        dims = sizes.embed_dims
        maps = stage_sizes(resolve_img_size(img_size), len(dims))
        super().__init__(
            sizes,
            lambda i: PatchEmbed(dims[i - 1], dims[i], 2) if i else PatchEmbed(in_channels, dims[i], 4),
            make_position=(lambda i: PositionEmbedding(dims[i], maps[i])) if has_position else None,
            with_family_defaults=_with_family_defaults,
            mixers=mixers,
            drop_path_rate=drop_path_rate,
            norm_eps=NORM_EPS,
            out_indices=out_indices,
            out_norm=sizes.out_norm if out_norm is None else out_norm,
            with_cp=with_cp,
        )
        if norm_eps is not None:
            for module in self.modules():
                if isinstance(module, nn.LayerNorm):
                    module.eps = norm_eps


def _with_family_defaults(config: MixerConfig, index: BlockIndex) -> MixerConfig:
    if config.get('type') == 'Softmax' and index.stage < len(SR_RATIOS):
        return {'sr_ratio': SR_RATIOS[index.stage], **config}
    return config
