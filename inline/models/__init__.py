"""Backbones as plain torch modules: nothing here needs OpenMMLab."""

from inline.models.backbones import InLinePVT
from inline.models.mixers import MIXERS, register_mixer

__all__ = ['MIXERS', 'InLinePVT', 'register_mixer']
