"""Layers without attention: patch embedding, downsampling, window partition, position."""

from inline.models.layers.fast_paths import (
    has_hooks,
    ignore_global_hooks,
    is_marked_new,
    is_plain,
    returns_new_tensor,
)
from inline.models.layers.fused_linear import linear, linear_gelu
from inline.models.layers.norm import LayerNorm
from inline.models.layers.patch_embed import (
    MAX_WIDTH,
    ConvEmbed,
    PatchEmbed,
    PatchMerging,
    map_to_tokens,
    tokens_to_map,
)
from inline.models.layers.position import (
    ClassToken,
    LocallyEnhancedPosition,
    PositionEmbedding,
    RelativePositionBias,
    convolve_channels,
)
from inline.models.layers.windows import WindowPartition, full_map, stripes, swin_windows

__all__ = [
    'MAX_WIDTH',
    'ClassToken',
    'ConvEmbed',
    'LayerNorm',
    'LocallyEnhancedPosition',
    'PatchEmbed',
    'PatchMerging',
    'PositionEmbedding',
    'RelativePositionBias',
    'WindowPartition',
    'convolve_channels',
    'full_map',
    'has_hooks',
    'ignore_global_hooks',
    'is_marked_new',
    'is_plain',
    'linear',
    'linear_gelu',
    'map_to_tokens',
    'returns_new_tensor',
    'stripes',
    'swin_windows',
    'tokens_to_map',
]
