"""The mathematics: pure functions on tensors, each fast form beside a naive twin."""

from inline.ops.inline_attention import (
    inline_attention,
    inline_attention_naive,
    inline_attention_weights,
)
from inline.ops.kernels import KERNELS, apply_kernel
from inline.ops.linear_attention import (
    linear_attention,
    linear_attention_naive,
    linear_attention_weights,
)
from inline.ops.local_residual import local_residual, local_residual_naive
from inline.ops.softmax_attention import (
    softmax_attention,
    softmax_attention_naive,
    softmax_attention_weights,
)

__all__ = [
    'KERNELS',
    'apply_kernel',
    'inline_attention',
    'inline_attention_naive',
    'inline_attention_weights',
    'linear_attention',
    'linear_attention_naive',
    'linear_attention_weights',
    'local_residual',
    'local_residual_naive',
    'softmax_attention',
    'softmax_attention_naive',
    'softmax_attention_weights',
]
