"""Backbones as plain torch modules: nothing here needs OpenMMLab."""

from inline.models.backbones import InLineCSwin, InLineDeiT, InLinePVT, InLineSwin
from inline.models.mixers import MIXERS, register_mixer

__all__ = ['MIXERS', 'InLineCSwin', 'InLineDeiT', 'InLinePVT', 'InLineSwin', 'register_mixer']
