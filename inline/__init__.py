"""InLine: vision backbones with injective linear attention, for mmpretrain, mmdet and mmseg.

Importing this package stays light. ``inline.ops`` and ``inline.models`` need torch alone;
``inline.registry`` is what OpenMMLab imports when a config says ``type='inline.InLinePVT'``.
"""

__version__ = '0.1.0'
