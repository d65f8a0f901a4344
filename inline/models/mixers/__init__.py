"""Token mixers: projections around one call into ``inline.ops``, with ``forward(x, hw)``."""

from inline.models.mixers.agent import AgentMixer
from inline.models.mixers.base import (
    ALL_QUERIES,
    AttentionInputs,
    AttentionMixer,
    MixerOptions,
    merge_heads,
    split_heads,
)
from inline.models.mixers.baselines import (
    CosFormerMixer,
    EfficientMixer,
    FLattenMixer,
    LinearMixer,
    NystromMixer,
)
from inline.models.mixers.gated import CirculantMixer, MALAMixer, PolaFormerMixer, RALAMixer
from inline.models.mixers.inline import InLineMixer, flop_counting
from inline.models.mixers.mhla import MHLAMixer
from inline.models.mixers.mlla import MLLAGatedMixer, MLLAMixer
from inline.models.mixers.registry import MIXERS, build_mixer, default_mixers, expand_mixers, register_mixer
from inline.models.mixers.softmax import SoftmaxMixer
from inline.models.mixers.transnormer import DiagAttentionMixer, TransNormerMixer

__all__ = [
    'ALL_QUERIES',
    'MIXERS',
    'AgentMixer',
    'AttentionInputs',
    'AttentionMixer',
    'CirculantMixer',
    'CosFormerMixer',
    'DiagAttentionMixer',
    'EfficientMixer',
    'FLattenMixer',
    'InLineMixer',
    'LinearMixer',
    'MALAMixer',
    'MHLAMixer',
    'MLLAGatedMixer',
    'MLLAMixer',
    'MixerOptions',
    'NystromMixer',
    'PolaFormerMixer',
    'RALAMixer',
    'SoftmaxMixer',
    'TransNormerMixer',
    'build_mixer',
    'default_mixers',
    'expand_mixers',
    'flop_counting',
    'merge_heads',
    'register_mixer',
    'split_heads',
]
