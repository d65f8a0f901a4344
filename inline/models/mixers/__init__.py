"""Token mixers: projections around one call into ``inline.ops``. Each has ``forward(x, hw)``."""

from inline.models.mixers.base import AttentionMixer, MixerOptions, Part
from inline.models.mixers.inline import InLineMixer
from inline.models.mixers.linear import LinearMixer
from inline.models.mixers.registry import MIXERS, build_mixer, default_mixers, expand_mixers, register_mixer
from inline.models.mixers.softmax import SoftmaxMixer

__all__ = [
    'MIXERS',
    'AttentionMixer',
    'InLineMixer',
    'LinearMixer',
    'MixerOptions',
    'Part',
    'SoftmaxMixer',
    'build_mixer',
    'default_mixers',
    'expand_mixers',
    'register_mixer',
]
