import torch
from torch import Tensor, nn

from inline.models.layers import DropPath, Mlp
from inline.models.mixers import AttentionMixer


class Block(nn.Module):
    """The one block of every family: mix the tokens, then an MLP, each as a pre-norm residual branch."""

    def __init__(
        self, dim: int, mixer: AttentionMixer, mlp_ratio: float, drop_path: float, norm_eps: float = 1e-5
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=norm_eps)
        self.mixer = mixer
        self.norm2 = nn.LayerNorm(dim, eps=norm_eps)
        self.mlp = Mlp(dim, int(dim * mlp_ratio))
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor, hw: tuple[int, int]) -> Tensor:
        """x (B, P + H·W, C) to the same shape."""
        normed = self.norm1(x)
        mixed = self.mixer(normed, hw, x) if self.mixer.takes_unnormed else self.mixer(normed, hw)
        x = _add_branch(x, self.drop_path(mixed))
        return _add_branch(x, self.drop_path(self.mlp(self.norm2(x))))


def _add_branch(x: Tensor, branch: Tensor) -> Tensor:
    """x + branch; where no gradient is wanted the branch's own numbers take the sum, for the cache's sake.

    Under autocast a branch is of half precision and x is not: then the sum is a tensor of its own, or x
    would be rounded in every block.
    """
    if torch.is_grad_enabled() or branch.dtype != torch.promote_types(x.dtype, branch.dtype):
        return x + branch
    return branch.add_(x)
