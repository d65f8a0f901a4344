"""Bricks with no attention in them."""

from inline.models.layers.depthwise import check_conv_size, depthwise
from inline.models.layers.drop_path import DropPath, drop_path_rates
from inline.models.layers.lepe import LocallyEnhancedPosition
from inline.models.layers.maps import map_to_tokens, tokens_to_map
from inline.models.layers.mlp import Mlp
from inline.models.layers.patch_embed import ConvEmbed, PatchEmbed, PatchMerging
from inline.models.layers.position import ClassToken, PositionEmbedding, RelativePositionBias
from inline.models.layers.regions import Regions, square_windows, stripes, whole_map

__all__ = [
    'ClassToken',
    'ConvEmbed',
    'DropPath',
    'LocallyEnhancedPosition',
    'Mlp',
    'PatchEmbed',
    'PatchMerging',
    'PositionEmbedding',
    'Regions',
    'RelativePositionBias',
    'check_conv_size',
    'depthwise',
    'drop_path_rates',
    'map_to_tokens',
    'square_windows',
    'stripes',
    'tokens_to_map',
    'whole_map',
]
