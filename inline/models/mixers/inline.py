from torch import Tensor, nn

from inline.models.mixers.heads import merge_heads, split_heads
from inline.models.mixers.registry import register_mixer
from inline.ops import inline_attention, local_residual
from inline.ops.kernels import check_kernel


@register_mixer('InLine')
class InLineMixer(nn.Module):
    """InLine attention over the whole map, and the local residual.

    Args:
        dim: Channels of a token.
        num_heads: Heads of the attention, and groups of the layers that make the residual's kernels.
        kernel: φ of the attention, see :data:`inline.ops.KERNELS`.
        qkv_bias: Whether queries, keys and values have a bias.
        residual: Whether to add the local residual.
    """

    def __init__(
        self, dim: int, num_heads: int, kernel: str = 'identity', qkv_bias: bool = True, residual: bool = True
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.kernel = check_kernel(kernel)
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.residual = ResidualKernel(dim, num_heads) if residual else None
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, hw: tuple[int, int]) -> Tensor:
        """x (B, P + H·W, C), P prefix tokens first, to the same shape."""
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        heads = (split_heads(t, self.num_heads) for t in (q, k, v))
        out = merge_heads(inline_attention(*heads, kernel=self.kernel))
        if self.residual is not None:
            out = out + local_residual(v, self.residual(x), hw)
        return self.proj(out)


class ResidualKernel(nn.Module):
    """From the mean token, one 3×3 kernel per image and channel."""

    def __init__(self, dim: int, groups: int) -> None:
        super().__init__()
        self.fc1 = nn.Conv1d(dim, dim, kernel_size=1, groups=groups)
        self.act = nn.GELU()
        self.fc2 = nn.Conv1d(dim, 9 * dim, kernel_size=1, groups=groups)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, C) → (B, C, 9)."""
        mean_token = x.mean(dim=1).unsqueeze(-1)
        return self.fc2(self.act(self.fc1(mean_token))).unflatten(1, (-1, 9)).squeeze(-1)
