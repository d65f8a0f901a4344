"""A small model of each family, by the name it is registered under."""

from typing import Any

from torch import nn

from inline.models import InLineCSwin, InLineDeiT, InLinePVT, InLineSwin

PYRAMID = {'embed_dims': (8, 16, 32, 64), 'depths': (2, 2, 2, 2), 'num_heads': (2, 2, 4, 4)}
FAMILIES: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    'InLineDeiT': (InLineDeiT, {'arch': {'embed_dims': 16, 'depth': 4, 'num_heads': 2}}),
    'InLinePVT': (InLinePVT, {'arch': PYRAMID}),
    'InLineSwin': (InLineSwin, {'arch': {**PYRAMID, 'inline_depths': (2, 2, 1, 0)}}),
    'InLineCSwin': (InLineCSwin, {'arch': {**PYRAMID, 'inline_depths': (2, 2, 0, 0)}}),
}


def build(family: str, img_size: Any = 64, **options: Any) -> nn.Module:
    cls, defaults = FAMILIES[family]
    return cls(**{**defaults, 'img_size': img_size, **options})
