"""Attention maths: pure functions on tensors, each fast path next to its naive reference."""

from inline.ops.agent_attention import agent_attention, agent_attention_naive, agent_attention_weights
from inline.ops.backend import use_triton
from inline.ops.circulant_attention import (
    circulant_attention,
    circulant_attention_naive,
    circulant_attention_weights,
)
from inline.ops.cosformer_attention import (
    cosformer_attention,
    cosformer_attention_naive,
    cosformer_attention_weights,
)
from inline.ops.diag_attention import diag_attention, diag_attention_naive, diag_attention_weights
from inline.ops.efficient_attention import (
    efficient_attention,
    efficient_attention_naive,
    efficient_attention_weights,
)
from inline.ops.flatten_attention import flatten_attention, flatten_attention_naive, flatten_attention_weights
from inline.ops.inline_attention import (
    inline_attention,
    inline_attention_from_tokens,
    inline_attention_from_tokens_naive,
    inline_attention_naive,
    inline_attention_of_image,
    inline_attention_weights,
)
from inline.ops.kernels import KERNELS, Kernel, apply_kernel
from inline.ops.linear_attention import linear_attention, linear_attention_naive, linear_attention_weights
from inline.ops.local_residual import local_residual, local_residual_naive
from inline.ops.mala_attention import mala_attention, mala_attention_naive, mala_attention_weights
from inline.ops.mhla_attention import mhla_attention, mhla_attention_naive, mhla_attention_weights
from inline.ops.mlla_attention import mlla_attention, mlla_attention_naive, mlla_attention_weights
from inline.ops.nystrom_attention import nystrom_attention, nystrom_attention_naive, nystrom_attention_weights
from inline.ops.polaformer_attention import (
    polaformer_attention,
    polaformer_attention_naive,
    polaformer_attention_weights,
)
from inline.ops.rala_attention import rala_attention, rala_attention_naive, rala_attention_weights
from inline.ops.softmax_attention import softmax_attention, softmax_attention_naive, softmax_attention_weights
from inline.ops.transnormer_attention import (
    transnormer_attention,
    transnormer_attention_naive,
    transnormer_attention_weights,
)

__all__ = [
    'KERNELS',
    'Kernel',
    'agent_attention',
    'agent_attention_naive',
    'agent_attention_weights',
    'apply_kernel',
    'circulant_attention',
    'circulant_attention_naive',
    'circulant_attention_weights',
    'cosformer_attention',
    'cosformer_attention_naive',
    'cosformer_attention_weights',
    'diag_attention',
    'diag_attention_naive',
    'diag_attention_weights',
    'efficient_attention',
    'efficient_attention_naive',
    'efficient_attention_weights',
    'flatten_attention',
    'flatten_attention_naive',
    'flatten_attention_weights',
    'inline_attention',
    'inline_attention_from_tokens',
    'inline_attention_from_tokens_naive',
    'inline_attention_naive',
    'inline_attention_of_image',
    'inline_attention_weights',
    'linear_attention',
    'linear_attention_naive',
    'linear_attention_weights',
    'local_residual',
    'local_residual_naive',
    'mala_attention',
    'mala_attention_naive',
    'mala_attention_weights',
    'mhla_attention',
    'mhla_attention_naive',
    'mhla_attention_weights',
    'mlla_attention',
    'mlla_attention_naive',
    'mlla_attention_weights',
    'nystrom_attention',
    'nystrom_attention_naive',
    'nystrom_attention_weights',
    'polaformer_attention',
    'polaformer_attention_naive',
    'polaformer_attention_weights',
    'rala_attention',
    'rala_attention_naive',
    'rala_attention_weights',
    'softmax_attention',
    'softmax_attention_naive',
    'softmax_attention_weights',
    'transnormer_attention',
    'transnormer_attention_naive',
    'transnormer_attention_weights',
    'use_triton',
]
