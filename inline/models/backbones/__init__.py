"""The four families: DeiT, PVT, Swin, CSwin."""

from inline.models.backbones.cswin import InLineCSwin
from inline.models.backbones.deit import InLineDeiT
from inline.models.backbones.pvt import InLinePVT
from inline.models.backbones.swin import InLineSwin

__all__ = ['InLineCSwin', 'InLineDeiT', 'InLinePVT', 'InLineSwin']
