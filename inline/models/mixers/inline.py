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
    take_channels,
)
from inline.models.mixers.registry import register_mixer
from inline.ops import (
    KERNELS,
    inline_attention,
    inline_attention_from_tokens,
    inline_attention_of_image,
    inline_attention_weights,
    linear_attention,
    linear_attention_weights,
    local_residual,
)
from inline.ops.inline_attention import rounds_operands
from inline.ops.symint import size_hint
from inline.ops.tokens import allows_inplace, is_autocast, masked_mean, no_autocast
from inline.utils.arguments import check_choice

AFFINE_RELU = 'affine_relu'
# Methods that `_forward_image` bypasses; analysis replaces some of them on an instance.
_BYPASSED = {'attend', 'local', 'local_terms', 'partition_inputs', 'project', 'window_partitions'}


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
        # Whether nothing but attention over the whole map and the local residual is computed.
        self._is_simple = (
            type(self) is InLineMixer
            and kernel == 'identity'
            and injective
            and residual
            and not mean_before_norm
            and self.window_size is None
            and self.split_size is None
            and self.lepe is None
        )
        # An integer, because torch.compile(dynamic=True) does not treat float attributes as constants.
        self.min_tokens: float = math.ceil(self.tokens_per_channel * dim)

    @returns_new_tensor
    def forward(self, x: Tensor, hw: tuple[int, int], prenorm_x: Tensor | None = None) -> Tensor:
        if self._is_simple and self._takes_single_image(x):
            return self._forward_image(x, hw)
        return super().forward(x, hw, prenorm_x)

    def _takes_single_image(self, x: Tensor) -> bool:
        """Return whether :meth:`_forward_image` applies: inference on a CPU, one image with few tokens."""
        return (
            allows_inplace()
            and x.is_cpu
            and x.shape[0] == 1
            and x.shape[1] < self.min_tokens
            and not rounds_operands(x)
            and _BYPASSED.isdisjoint(vars(self))
        )

    def _forward_image(self, x: Tensor, hw: tuple[int, int]) -> Tensor:
        """Compute :meth:`forward` for one image, with attention over its whole map.

        The products of few tokens are so fast that the preparation for windows, masks and several images
        would take as long: DeiT-T at 224×224 is 1.1 times as fast.
        """
        assert self.residual is not None
        qkv = linear(self.qkv, x)
        out = inline_attention_of_image(qkv, self.num_heads)
        local = local_residual(qkv[..., 2 * x.shape[2] :], self.residual(x.mean(dim=1)), hw)
        out[:, x.shape[1] - local.shape[1] :].add_(local)
        return linear(self.proj, out)

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
                take_channels(w_q, inputs.channels, 0),
                take_channels(w_k, inputs.channels, 0),
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
        kernels = take_channels(self.residual(self._mean_tokens(inputs)), inputs.channels, 1)
        return local_residual(inputs.v, kernels, inputs.hw, key_mask=inputs.key_mask)

    def local_terms(self, inputs: AttentionInputs) -> Iterator[Tensor]:
        if self.residual is None or self.lepe is None or not _is_plain_lepe(self.lepe):
            yield from super().local_terms(inputs)
            return
        # Both are 3×3 kernels on the same values, so one convolution with their sum is enough.
        kernels = take_channels(self.residual(self._mean_tokens(inputs)), inputs.channels, 1)
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
        fc1, fc2 = self.fc1, self.fc2
        if not (is_plain(fc1, nn.Conv1d) and is_plain(fc2, nn.Conv1d)):
            return fc2(F.gelu(fc1(mean_token.unsqueeze(-1)))).view(*mean_token.shape, 9)
        if is_autocast(mean_token.device):
            # Autocast would convert all weights for the product with a single token.
            with no_autocast(mean_token.device):
                return _residual_kernels(fc1, fc2, mean_token.to(fc1.weight.dtype))
        return _residual_kernels(fc1, fc2, mean_token)


def _residual_kernels(fc1: nn.Conv1d, fc2: nn.Conv1d, mean_token: Tensor) -> Tensor:
    """(B, C) → (B, C, 9), with batched products, which have less overhead than convolutions here."""
    batch, dim = mean_token.shape
    x = mean_token.view(batch, fc1.groups, dim // fc1.groups).transpose(0, 1)
    kernels = _grouped_linear(fc2, F.gelu(_grouped_linear(fc1, x)))
    return kernels.transpose(0, 1).reshape(batch, dim, 9)


def _grouped_linear(conv: nn.Conv1d, x: Tensor) -> Tensor:
    """Apply a grouped 1×1 convolution to single positions, (groups, B, in) → (groups, B, out)."""
    groups, _, dim = x.shape
    assert conv.bias is not None
    weight = conv.weight.view(groups, -1, dim).transpose(1, 2)
    return torch.baddbmm(conv.bias.view(groups, 1, -1), x, weight)


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
