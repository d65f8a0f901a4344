"""Backbones as plain PyTorch modules, independent of OpenMMLab."""

from inline.models.backbones import InLineCSwin, InLineDeiT, InLinePVT, InLineSwin
from inline.models.mixers import MIXERS, register_mixer

__all__ = ['MIXERS', 'InLineCSwin', 'InLineDeiT', 'InLinePVT', 'InLineSwin', 'register_mixer']
