"""Token mixers: projections around one call into ``inline.ops``. Each has ``forward(x, hw)``."""

from inline.models.mixers.base import ALL_QUERIES, AttentionMixer, MixerOptions, Part
from inline.models.mixers.cosformer import CosFormerMixer
from inline.models.mixers.efficient import EfficientMixer
from inline.models.mixers.flatten import FLattenMixer
from inline.models.mixers.heads import merge_heads
from inline.models.mixers.inline import InLineMixer
from inline.models.mixers.linear import LinearMixer
from inline.models.mixers.mlla import MLLAMixer
from inline.models.mixers.nystrom import NystromMixer
from inline.models.mixers.registry import MIXERS, build_mixer, default_mixers, expand_mixers, register_mixer
from inline.models.mixers.softmax import SoftmaxMixer
from inline.models.mixers.transnormer import TransNormerMixer

__all__ = [
    'ALL_QUERIES',
    'MIXERS',
    'AttentionMixer',
    'CosFormerMixer',
    'EfficientMixer',
    'FLattenMixer',
    'InLineMixer',
    'LinearMixer',
    'MLLAMixer',
    'MixerOptions',
    'NystromMixer',
    'Part',
    'SoftmaxMixer',
    'TransNormerMixer',
    'build_mixer',
    'default_mixers',
    'expand_mixers',
    'merge_heads',
    'register_mixer',
]
