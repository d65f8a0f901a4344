"""InLine attention in its plain formulation, as a peer to time against.

One projection for queries, keys and values, heads split and permuted, q (kᵀ v) with the mean terms, the
residual as a convolution of batch × channels groups, the output projection. It is right and it reads as
the formula does, but it makes every tensor that the formula names. Its weights are those of InLineMixer.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from inline.models.layers import LocallyEnhancedPosition
from inline.models.mixers import InLineMixer


class PlainMixer(nn.Module):
    """InLine over the whole map, with the identity as kernel.

    Args:
        dim: Channels of a token.
        num_heads: Heads of the attention.
        qkv_bias: Whether queries, keys and values have a bias.
        mean_before_norm: Whether the residual's mean token is taken before the block's norm.
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
        self.takes_unnormed = mean_before_norm
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)
        self.residual = nn.ModuleDict(
            {
                'fc1': nn.Conv1d(dim, dim, kernel_size=1, groups=num_heads),
                'fc2': nn.Conv1d(dim, 9 * dim, kernel_size=1, groups=num_heads),
            }
        )
        self.lepe = LocallyEnhancedPosition(dim) if lepe else None

    def forward(self, x: Tensor, hw: tuple[int, int], unnormed: Tensor | None = None) -> Tensor:
        """x (B, P + H·W, C), P prefix tokens first, to the same shape."""
        batch, tokens, dim = x.shape
        prefix = tokens - hw[0] * hw[1]
        qkv = self.qkv(x).reshape(batch, tokens, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind()
        scale = q.shape[-1] ** -0.5
        # Half of the factor on each side, so that neither the factors nor the sum grow with the tokens.
        root = (scale / tokens) ** 0.5
        kv = (k.transpose(-2, -1) * root) @ (v * root)
        mean_score = scale * (q @ k.mean(dim=2, keepdim=True).transpose(-2, -1))
        out = q @ kv + (1 - mean_score) * v.mean(dim=2, keepdim=True)
        out = out.transpose(1, 2).reshape(batch, tokens, dim)
        maps = v[:, :, prefix:].transpose(2, 3).reshape(1, batch * dim, *hw)
        local = F.conv2d(maps, self._kernels(x, unnormed), padding=1, groups=batch * dim)
        local = local.reshape(batch, dim, -1)
        if self.lepe is not None:
            local = local + self.lepe.conv(maps.view(batch, dim, *hw)).flatten(2)
        local = local.transpose(1, 2)
        return self.proj(out + (F.pad(local, (0, 0, prefix, 0)) if prefix else local))

    def _kernels(self, x: Tensor, unnormed: Tensor | None) -> Tensor:
        """(B·C, 1, 3, 3)."""
        source = unnormed if self.takes_unnormed and unnormed is not None else x
        mean_token = source.mean(dim=1).unsqueeze(-1)
        return self.residual['fc2'](F.gelu(self.residual['fc1'](mean_token))).reshape(-1, 1, 3, 3)


def plain_twin(mixer: InLineMixer) -> PlainMixer:
    """The plain formulation of a mixer, with its weights."""
    whole = mixer.window_size is None and mixer.split_size is None
    if not (whole and mixer.injective and mixer.kernel == 'identity' and mixer.residual is not None):
        raise ValueError('the plain formulation is of InLine over the whole map, with all of its parts')
    twin = PlainMixer(
        mixer.qkv.in_features,
        mixer.num_heads,
        qkv_bias=mixer.qkv.bias is not None,
        mean_before_norm=mixer.takes_unnormed,
        lepe=mixer.lepe is not None,
    )
    twin.load_state_dict(mixer.state_dict())
    return twin.to(mixer.qkv.weight).train(mixer.training)


def use_plain(model: nn.Module) -> nn.Module:
    """Put the plain formulation in the place of every InLine mixer of a model."""
    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, InLineMixer):
                setattr(module, name, plain_twin(child))
    return model
