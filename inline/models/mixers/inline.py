"""The InLine token mixer: InLine attention (:mod:`inline.ops.inline_attention`) and the local residual."""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import Unpack

from inline.models.layers import (
    LocallyEnhancedPosition,
    WindowPartition,
    ignore_global_hooks,
    is_plain,
    linear,
    returns_new_tensor,
)
from inline.models.mixers.base import (
    ALL_QUERIES,
    AttentionInputs,
    AttentionMixer,
    MakeQK,
    MixerOptions,
    merge_heads,
)
from inline.models.mixers.registry import register_mixer
from inline.ops import (
    KERNELS,
    inline_attention,
    inline_attention_from_tokens,
    inline_attention_weights,
    linear_attention,
    linear_attention_weights,
    local_residual,
)
from inline.ops.symint import size_hint
from inline.ops.tokens import masked_mean, no_autocast
from inline.utils.arguments import check_choice

AFFINE_RELU = 'affine_relu'


@register_mixer('InLine')
class InLineMixer(AttentionMixer):
    """InLine attention and the local residual; each can be switched off.

    Args:
        dim, num_heads, shared: see :class:`AttentionMixer`. Shifted windows wrap around by default, as in
            the training of the released weights.
        kernel: φ, a name of :data:`inline.ops.KERNELS` or affine_relu, see :class:`AffineReLU`.
        injective: Whether to normalise by subtraction; else by division, as plain linear attention does.
        residual: Whether to add the local residual.
        mean_before_norm: Whether the mean token that generates the residual's kernels is the mean of the
            whole map before the block's norm, as in CSwin, instead of the mean of each window after it.
    """

    # With at least this many tokens per channel, attention is computed from the tokens without queries and
    # keys, which is faster. Measured on a CPU, see docs/speed.md; the FLOPs of both are equal at 1.
    tokens_per_channel = 1.5

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        kernel: str = 'identity',
        injective: bool = True,
        residual: bool = True,
        mean_before_norm: bool = False,
        **shared: Unpack[MixerOptions],
    ) -> None:
        super().__init__(dim, num_heads, **shared)
        self.kernel = make_kernel(kernel, dim // num_heads)
        self.injective = injective
        self.normalization = 'subtraction' if injective else 'division'
        self.residual = ResidualKernel(dim, num_heads) if residual else None
        self.needs_prenorm_input = residual and mean_before_norm
        # An integer, because torch.compile(dynamic=True) does not treat float attributes as constants.
        self.min_tokens: float = math.ceil(self.tokens_per_channel * dim)

    def project(self, x: Tensor, hw: tuple[int, int]) -> tuple[Tensor, MakeQK]:
        if not self._skips_qk(self.window_partitions(x, hw)[0]):
            return super().project(x, hw)
        dim = x.shape[-1]
        v = linear(self.qkv, x, slice(2 * dim, None))
        return v, lambda: self.qkv(x)[..., : 2 * dim].chunk(2, dim=-1)

    @returns_new_tensor
    def attend(self, inputs: AttentionInputs) -> Tensor:
        if inputs.queries_from_x and self._skips_qk(inputs.windows):
            w_q, w_k, _ = self.qkv.weight.chunk(3)
            return inline_attention_from_tokens(
                inputs.tokens,
                inputs.v,
                w_q[inputs.channels],
                w_k[inputs.channels],
                None if self.qkv.bias is None else self.qkv.bias[inputs.channels],
                num_heads=inputs.num_heads,
            )
        op = inline_attention if self.injective else linear_attention
        return merge_heads(op(*inputs.heads(), kernel=self.kernel, key_mask=inputs.key_mask))

    def weights(self, inputs: AttentionInputs, queries: slice = ALL_QUERIES) -> Tensor:
        q, k, _ = inputs.heads()
        op = inline_attention_weights if self.injective else linear_attention_weights
        return op(q[:, :, queries], k, kernel=self.kernel, key_mask=inputs.key_mask)

    def local(self, inputs: AttentionInputs) -> Tensor | None:
        if self.residual is None:
            return None
        kernels = self.residual(self._mean_tokens(inputs))[:, inputs.channels]
        return local_residual(inputs.v, kernels, inputs.hw, key_mask=inputs.key_mask)

    def local_terms(self, inputs: AttentionInputs) -> Iterator[Tensor]:
        if self.residual is None or self.lepe is None or not _is_plain_lepe(self.lepe):
            yield from super().local_terms(inputs)
            return
        # Both are 3×3 kernels on the same values, so one convolution with their sum is enough.
        kernels = self.residual(self._mean_tokens(inputs))[:, inputs.channels]
        conv = self.lepe.conv
        yield local_residual(
            inputs.v,
            kernels + conv.weight[inputs.channels].flatten(1),
            inputs.hw,
            bias=None if conv.bias is None else conv.bias[inputs.channels],
            key_mask=inputs.key_mask,
        )

    def _skips_qk(self, windows: WindowPartition) -> bool:
        """Return whether attention within these windows needs no queries and keys.

        The fast path reads the weight of ``qkv`` directly, so ``qkv`` must be a plain linear layer.
        """
        if not self.injective or self.kernel != 'identity' or windows.is_padded:
            return False
        if size_hint(math.prod(windows.window)) < self.min_tokens:
            return False
        return is_plain(self.qkv, nn.Linear)

    def _mean_tokens(self, inputs: AttentionInputs) -> Tensor:
        """Return the mean token of each window, (b, C)."""
        if not self.needs_prenorm_input:
            return masked_mean(inputs.tokens, inputs.key_mask).squeeze(1)
        assert inputs.prenorm_x is not None
        return inputs.prenorm_x.mean(dim=1).repeat_interleave(inputs.windows.num_windows, dim=0)


@contextmanager
def flop_counting(model: nn.Module) -> Iterator[None]:
    """Make a model compute what papers count, within the context.

    InLine mixers compute queries and keys even where the fast path would need fewer FLOPs. The global hooks
    of a FLOP counter do not disable the other fast paths.
    """
    with ExitStack() as stack:
        stack.enter_context(ignore_global_hooks())
        for module in model.modules():
            if isinstance(module, InLineMixer):
                stack.callback(setattr, module, 'min_tokens', module.min_tokens)
                module.min_tokens = math.inf
        yield


class ResidualKernel(nn.Module):
    """Generate the local residual's 3×3 kernel of each channel from a mean token."""

    def __init__(self, dim: int, groups: int) -> None:
        super().__init__()
        self.fc1 = nn.Conv1d(dim, dim, kernel_size=1, groups=groups)
        self.fc2 = nn.Conv1d(dim, 9 * dim, kernel_size=1, groups=groups)

    def forward(self, mean_token: Tensor) -> Tensor:
        """(B, C) → (B, C, 9)."""
        if not (is_plain(self.fc1, nn.Conv1d) and is_plain(self.fc2, nn.Conv1d)):
            return self.fc2(F.gelu(self.fc1(mean_token.unsqueeze(-1)))).view(*mean_token.shape, 9)
        groups = self.fc1.groups
        x = mean_token.view(-1, groups, mean_token.shape[1] // groups).transpose(0, 1)
        # Autocast would convert all weights for the product with a single token.
        with no_autocast(x.device):
            x = x.to(self.fc1.weight.dtype)
            kernels = _grouped_linear(self.fc2, F.gelu(_grouped_linear(self.fc1, x)))
        return kernels.transpose(0, 1).reshape(*mean_token.shape, 9)


def _grouped_linear(conv: nn.Conv1d, x: Tensor) -> Tensor:
    """Apply a grouped 1×1 convolution to single positions, (groups, B, in) → (groups, B, out).

    A batched product has less overhead than a convolution here.
    """
    assert conv.bias is not None
    weight = conv.weight.view(conv.groups, -1, x.shape[2]).transpose(1, 2)
    return torch.baddbmm(conv.bias.view(conv.groups, 1, -1), x, weight)


def _is_plain_lepe(lepe: LocallyEnhancedPosition) -> bool:
    return is_plain(lepe, LocallyEnhancedPosition) and is_plain(lepe.conv, nn.Conv2d)


class AffineReLU(nn.Module):
    """Learned kernel φ(x) = relu(A·x + b) with A (d, d) and b (d), initialised as relu.

    φ is a single function in the formulas, so queries, keys and all heads share it.
    """

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(head_dim))
        self.bias = nn.Parameter(torch.zeros(head_dim))

    def forward(self, x: Tensor) -> Tensor:
        """(…, d) to the same shape."""
        # Ops that divide compute in float32, also for weights in half precision.
        return F.relu(F.linear(x, self.weight.to(x.dtype), self.bias.to(x.dtype)))


def make_kernel(name: str, head_dim: int) -> str | AffineReLU:
    """Return the kernel φ for heads of ``head_dim`` channels, in the form that the ops accept."""
    if name == AFFINE_RELU:
        return AffineReLU(head_dim)
    check_choice('unknown kernel', name, [*KERNELS, AFFINE_RELU])
    return name
