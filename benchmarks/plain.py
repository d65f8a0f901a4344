"""InLine attention in its plain formulation, as a reference for timing.

A direct transcription of the formula: one projection for queries, keys and values, heads split and permuted,
q (kᵀ v) with the mean terms, the residual as a convolution with batch × channels groups, the output
projection. It materialises every tensor of the formula. Its weights have the names of InLineMixer.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from inline.models.layers import LocallyEnhancedPosition, returns_new_tensor
from inline.models.mixers import InLineMixer


class PlainMixer(nn.Module):
    """InLine attention over the whole map with the identity kernel.

    Args:
        dim: Number of channels.
        num_heads: Number of attention heads.
        qkv_bias: Whether queries, keys and values have a bias.
        mean_before_norm: Whether the mean token of the residual is taken before the block's norm.
        lepe: Whether to add CSwin's locally enhanced position term.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        qkv_bias: bool = True,
        mean_before_norm: bool = False,
        lepe: bool = False,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.needs_prenorm_input = mean_before_norm
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)
        self.residual = nn.ModuleDict(
            {
                'fc1': nn.Conv1d(dim, dim, kernel_size=1, groups=num_heads),
                'fc2': nn.Conv1d(dim, 9 * dim, kernel_size=1, groups=num_heads),
            }
        )
        self.lepe = LocallyEnhancedPosition(dim) if lepe else None

    @returns_new_tensor
    def forward(self, x: Tensor, hw: tuple[int, int], prenorm_x: Tensor | None = None) -> Tensor:
        """x (B, P + H·W, C), P prefix tokens first, to the same shape."""
        batch, tokens, dim = x.shape
        prefix = tokens - hw[0] * hw[1]
        qkv = self.qkv(x).reshape(batch, tokens, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind()
        scale = q.shape[-1] ** -0.5
        # Splitting the factor between both operands avoids overflow in half precision.
        root = (scale / tokens) ** 0.5
        kv = (k.transpose(-2, -1) * root) @ (v * root)
        mean_score = scale * (q @ k.mean(dim=2, keepdim=True).transpose(-2, -1))
        out = q @ kv + (1 - mean_score) * v.mean(dim=2, keepdim=True)
        out = out.transpose(1, 2).reshape(batch, tokens, dim)
        maps = v[:, :, prefix:].transpose(2, 3).reshape(1, batch * dim, *hw)
        local = F.conv2d(maps, self._kernels(x, prenorm_x), padding=1, groups=batch * dim)
        local = local.reshape(batch, dim, -1)
        if self.lepe is not None:
            local = local + self.lepe.conv(maps.view(batch, dim, *hw)).flatten(2)
        local = local.transpose(1, 2)
        return self.proj(out + (F.pad(local, (0, 0, prefix, 0)) if prefix else local))

    def _kernels(self, x: Tensor, prenorm_x: Tensor | None) -> Tensor:
        """Return the kernels of the residual, (B·C, 1, 3, 3)."""
        source = prenorm_x if self.needs_prenorm_input and prenorm_x is not None else x
        mean_token = source.mean(dim=1).unsqueeze(-1)
        return self.residual['fc2'](F.gelu(self.residual['fc1'](mean_token))).reshape(-1, 1, 3, 3)


def to_plain(mixer: InLineMixer) -> PlainMixer:
    """Return the plain formulation of a mixer, with its weights."""
    full_map = mixer.window_size is None and mixer.split_size is None
    if not (full_map and mixer.injective and mixer.kernel == 'identity' and mixer.residual is not None):
        raise ValueError('the plain formulation needs the whole map, the identity kernel and the residual')
    plain = PlainMixer(
        mixer.qkv.in_features,
        mixer.num_heads,
        qkv_bias=mixer.qkv.bias is not None,
        mean_before_norm=mixer.needs_prenorm_input,
        lepe=mixer.lepe is not None,
    )
    plain.to(mixer.qkv.weight).load_state_dict(mixer.state_dict())
    return plain.train(mixer.training)


class TorchLinear(nn.Linear):
    """A linear layer with an own ``forward``, which the fast paths for linear layers do not replace."""

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight, self.bias)


def use_torch_linear(model: nn.Module) -> nn.Module:
    """Make the blocks of a model run as textbook code: torch's linear layers, GELU and additions."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = TorchLinear
    return model


def use_plain(model: nn.Module) -> nn.Module:
    """Replace every InLine mixer of a model by its plain formulation."""
    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, InLineMixer):
                setattr(module, name, to_plain(child))
    return model
