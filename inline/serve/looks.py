"""What a model does with an image: its prediction, and the maps of a clicked point in every layer."""

from dataclasses import dataclass

import torch

from inline.analysis.layers import Layer, watch
from inline.analysis.maps import LayerMaps, Pixel, TokenResidual, find_token, layer_maps, token_residual
from inline.analysis.subjects import Subject
from inline.models.mixers.base import Part
from inline.serve.views import View


@dataclass(frozen=True)
class LayerLook:
    """A layer's maps of one point, None if it has not the head that was asked for.

    Args:
        layer: Which one.
        attention: What its attention is called in configs.
        heads: How many it has.
        hw: Tokens of its map, (height, width).
        token: Row and column of the query on it.
        maps: Of the one query.
        residual: What the local residual adds to the token; None if there is none.
    """

    layer: Layer
    attention: str
    heads: int
    hw: tuple[int, int]
    token: tuple[int, int]
    maps: LayerMaps | None
    residual: TokenResidual | None


def look(subject: Subject, view: View, query: Pixel, head: int | None = None) -> list[LayerLook]:
    """Run the backbone and note what the token at a pixel (y, x) of the view attends to in every layer."""
    looks: list[LayerLook] = []
    with torch.no_grad():
        # The preprocessor may pad the image: the map is of the padded one.
        padded = subject.prepare(view.batch)['inputs'].shape[-2:]

        def see(layer: Layer, parts: list[Part]) -> None:
            heads, hw = sum(part.num_heads for part in parts), parts[0].regions.hw
            token = find_token(query, (padded[0], padded[1]), hw)
            maps = residual = None
            if head is None or head < heads:
                maps = layer_maps(layer, parts, [query], (padded[0], padded[1]), head)
                residual = token_residual(layer, parts, token, head)
            looks.append(LayerLook(layer, name_attention(layer), heads, hw, token, maps, residual))

        with watch(subject.layers, see):
            subject.run_backbone(view.batch)
    return looks


def name_attention(layer: Layer) -> str:
    """From ``InLineMixer`` to InLine."""
    return type(layer.mixer).__name__.removesuffix('Mixer')
