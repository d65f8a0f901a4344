"""InLine-PVT: the Pyramid Vision Transformer with InLine attention in place of spatial reduction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inline.models.archs import check_same_length, resolve_arch
from inline.models.backbones.pyramid import Pyramid, Stage, resolve_img_size
from inline.models.block import Block
from inline.models.layers import PatchEmbed, PositionEmbedding, drop_path_rates
from inline.models.mixers import build_mixer, expand_mixers
from inline.models.mixers.registry import MixersConfig

NORM_EPS = 1e-6


@dataclass(frozen=True)
class PVTArch:
    """Sizes of each stage."""

    embed_dims: tuple[int, ...]
    depths: tuple[int, ...]
    num_heads: tuple[int, ...]
    mlp_ratios: tuple[float, ...]

    def __post_init__(self) -> None:
        check_same_length(
            embed_dims=self.embed_dims,
            depths=self.depths,
            num_heads=self.num_heads,
            mlp_ratios=self.mlp_ratios,
        )


ARCHS = {
    'tiny':   PVTArch((64, 128, 320, 512), (2, 2, 2, 2), (2, 4, 10, 16), (8, 8, 4, 4)),
    'small':  PVTArch((64, 128, 320, 512), (3, 4, 6, 3), (2, 4, 10, 16), (8, 8, 4, 4)),
    'medium': PVTArch((64, 128, 320, 512), (3, 4, 18, 3), (2, 4, 10, 16), (8, 8, 4, 4)),
    'large':  PVTArch((64, 128, 320, 512), (3, 8, 27, 3), (2, 4, 10, 16), (8, 8, 4, 4)),
}  # fmt: skip


class InLinePVT(Pyramid):
    """A pyramid of strides 4, 8, 16, 32 with learned positions at every stage.

    Args:
        arch: tiny, small, medium, large, or a dict with embed_dims, depths, num_heads and mlp_ratios,
            each with one number per stage.
        img_size: Image size of the position tables, one number or (height, width); images of other
            sizes get them resized.
        in_channels: Channels of the image.
        out_indices: Stages whose features are returned, counted from 0.
        drop_path_rate: Stochastic depth of the last block; it grows linearly from 0 at the first.
        mixers: Token mixer of each stage or block, see :mod:`inline.models.mixers.registry`.
        out_norm: Whether each returned level passes a LayerNorm of its own.
        with_cp: Gradient checkpointing: blocks are recomputed in the backward pass.
    """

    def __init__(
        self,
        arch: str | Mapping[str, Any] = 'tiny',
        img_size: int | Sequence[int] = 224,
        in_channels: int = 3,
        out_indices: Sequence[int] = (0, 1, 2, 3),
        drop_path_rate: float = 0.0,
        mixers: MixersConfig = {'type': 'InLine'},  # noqa: B006 (read, never written)
        out_norm: bool = False,
        with_cp: bool = False,
    ) -> None:
        sizes = resolve_arch(arch, ARCHS, PVTArch)
        rates = drop_path_rates(drop_path_rate, sizes.depths)
        mixer_configs = expand_mixers(mixers, sizes.depths)
        hw = resolve_img_size(img_size)
        stages = []
        for i, dim in enumerate(sizes.embed_dims):
            patch_size = 4 if i == 0 else 2
            hw = (-(-hw[0] // patch_size), -(-hw[1] // patch_size))
            blocks = [
                Block(dim, build_mixer(config, dim, sizes.num_heads[i]), sizes.mlp_ratios[i], rate, NORM_EPS)
                for config, rate in zip(mixer_configs[i], rates[i], strict=True)
            ]
            embed = PatchEmbed(sizes.embed_dims[i - 1] if i else in_channels, dim, patch_size)
            stages.append(Stage(embed, PositionEmbedding(dim, hw), blocks))
        super().__init__(stages, sizes.embed_dims, out_indices, out_norm, with_cp)
