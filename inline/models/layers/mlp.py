import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Hidden numbers above which they are made in slices, and those of a slice: what a processor's cache holds.
MANY = 2**22
SLICE = 2**20


class Mlp(nn.Module):
    """Two linear layers with a GELU between them."""

    def __init__(self, dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden_dim)
        self.fc2 = nn.Linear(hidden_dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, C) to the same shape."""
        if not self._is_large(x):
            return self.fc2(F.gelu(self.fc1(x)))
        slices = x.flatten(0, 1).split(max(SLICE // self.fc1.out_features, 1))
        return torch.cat([self.fc2(F.gelu(self.fc1(rows))) for rows in slices]).view_as(x)

    def _is_large(self, x: Tensor) -> bool:
        """Whether a CPU would write more hidden numbers to memory than it can keep near.

        Only for inference: the backward pass wants all of them anyway.
        """
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or x.device.type != 'cpu':
            return False
        return x.shape[:-1].numel() * self.fc1.out_features > MANY
