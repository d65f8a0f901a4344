"""Bricks with no attention in them."""

from inline.models.layers.drop_path import DropPath, drop_path_rates
from inline.models.layers.maps import map_to_tokens, tokens_to_map
from inline.models.layers.mlp import Mlp
from inline.models.layers.patch_embed import PatchEmbed
from inline.models.layers.position import PositionEmbedding

__all__ = [
    'DropPath',
    'Mlp',
    'PatchEmbed',
    'PositionEmbedding',
    'drop_path_rates',
    'map_to_tokens',
    'tokens_to_map',
]
