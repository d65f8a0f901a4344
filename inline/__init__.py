"""InLine: vision backbones with injective linear attention, for mmpretrain, mmdet and mmseg.

Importing this package stays light. ``inline.ops`` and ``inline.models`` need torch alone, and so does
``inline.create_backbone``; ``inline.registry`` is what OpenMMLab imports when a config says
``type='inline.InLinePVT'``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inline.hub import InLineBackbone, create_backbone, list_backbones
    from inline.inference import InLineModel

__version__ = '0.1.0'

# Where each name is defined: torch is imported when one of them is asked for, not before.
_LAZY = {
    'InLineBackbone': 'inline.hub',
    'InLineModel': 'inline.inference',
    'create_backbone': 'inline.hub',
    'list_backbones': 'inline.hub',
}
__all__ = ['InLineBackbone', 'InLineModel', 'create_backbone', 'list_backbones']


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
