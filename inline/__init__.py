"""InLine: vision backbones with injective linear attention, for mmpretrain, mmdet and mmseg.

``import inline`` does not import torch. ``inline.ops``, ``inline.models`` and ``inline.create_backbone`` need
torch only. OpenMMLab imports ``inline.registry`` when a config has a ``type='inline.…'``. The model hub of
mmpretrain gets the models of this project when it is imported.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from inline.openmmlab.model_hub import register_on_import

if TYPE_CHECKING:
    from inline.apis import InLineModel
    from inline.datasets.tiny_imagenet import TinyImageNet
    from inline.hub.backbones import InLineBackbone, create_backbone, list_backbones

__version__ = '0.1.0'

# The module of each name, imported at its first use.
_LAZY = {
    'InLineBackbone': 'inline.hub',
    'InLineModel': 'inline.apis',
    'TinyImageNet': 'inline.datasets.tiny_imagenet',
    'create_backbone': 'inline.hub',
    'list_backbones': 'inline.hub',
}
__all__ = ['InLineBackbone', 'InLineModel', 'TinyImageNet', 'create_backbone', 'list_backbones']


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])


register_on_import()
