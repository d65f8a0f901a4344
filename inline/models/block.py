"""The transformer block that all families share: token mixer, MLP, stochastic depth."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from inline.models.layers import (
    LayerNorm,
    has_hooks,
    is_marked_new,
    is_plain,
    linear,
    linear_gelu,
    returns_new_tensor,
)
from inline.models.mixers import AttentionMixer
from inline.ops.products import onednn_product, uses_onednn
from inline.ops.tokens import allows_inplace
from inline.utils.errors import UserError

# The MLP works in chunks if its hidden layer has more elements than this. A chunk fits the CPU cache, and is
# smaller than the blocks of 32 MB that glibc returns to the system after each use.
CHUNK_ABOVE = 7 * 2**20
CHUNK_SIZE = 2**22
# Tensors of at least this many elements are overwritten by residual adds; smaller ones stay in the cache.
INPLACE_FROM = 2**15
MAX_DIFFERENT_BLOCKS = 1000


class Block(nn.Module):
    """A token mixer and an MLP, each in a pre-norm residual branch."""

    def __init__(
        self, dim: int, mixer: AttentionMixer, mlp_ratio: float, drop_path: float, norm_eps: float = 1e-5
    ) -> None:
        super().__init__()
        self.norm1 = LayerNorm(dim, eps=norm_eps)
        self.mixer = mixer
        self.norm2 = LayerNorm(dim, eps=norm_eps)
        self.mlp = Mlp(dim, int(dim * mlp_ratio))
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor, hw: tuple[int, int]) -> Tensor:
        """x (B, P + H·W, C) to the same shape."""
        x = self._add_residual(x, self.drop_path(self._mix(x, hw)), self.mixer, self.mixer.proj)
        return self._add_residual(x, self.drop_path(self.mlp(self.norm2(x))), self.mlp, self.mlp.fc2)

    def _mix(self, x: Tensor, hw: tuple[int, int]) -> Tensor:
        normed = self.norm1(x)
        mixed: Tensor = (
            self.mixer(normed, hw, x) if self.mixer.needs_prenorm_input else self.mixer(normed, hw)
        )
        return mixed

    def _add_residual(self, x: Tensor, out: Tensor, branch: nn.Module, last: nn.Module) -> Tensor:
        """Return x + out, where ``out`` comes from the layer ``last`` of ``branch`` through drop path.

        Overwrites a large ``out`` where no gradient is needed, to save memory traffic, unless a hook may
        hold it. Under autocast ``out`` has half precision and x does not: x must not be rounded.
        """
        if not allows_inplace() or out.numel() < INPLACE_FROM or out.dtype != x.dtype:
            return x + out
        inplace = (
            is_marked_new(branch.forward)
            and not has_hooks(branch)
            and is_plain(last, nn.Linear)
            and is_plain(self.drop_path, DropPath)
        )
        return out.add_(x) if inplace else x + out


class Mlp(nn.Module):
    """Two linear layers with a GELU in between."""

    def __init__(self, dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden_dim)
        self.fc2 = nn.Linear(hidden_dim, dim)

    @returns_new_tensor
    def forward(self, x: Tensor) -> Tensor:
        """(B, N, C) to the same shape."""
        if torch.is_grad_enabled() or x.device.type != 'cpu' or not self._is_plain():
            return self._run(x)
        if torch.compiler.is_compiling() and uses_onednn(x, self.fc1.weight):
            out: Tensor = torch.ops.inline.mlp(
                x, self.fc1.weight, self.fc1.bias, self.fc2.weight, self.fc2.bias
            )
            return out
        return _in_chunks(self._run, x, self.fc1.out_features) if allows_inplace() else self._run(x)

    def _run(self, x: Tensor) -> Tensor:
        return linear(self.fc2, linear_gelu(self.fc1, x))

    def _is_plain(self) -> bool:
        """Return whether no hook on one of the layers would see chunks of its output."""
        return is_plain(self.fc1, nn.Linear) and is_plain(self.fc2, nn.Linear)


def _in_chunks(run: Callable[[Tensor], Tensor], x: Tensor, hidden_dim: int) -> Tensor:
    """Run an MLP on x (B, N, C), in chunks of rows if its hidden layer would not fit the cache of a CPU.

    Only for inference: the backward pass needs the whole hidden layer anyway.
    """
    if x.shape[:-1].numel() * hidden_dim <= CHUNK_ABOVE:
        return run(x)
    chunks = x.flatten(0, 1).split(max(CHUNK_SIZE // hidden_dim, 1))
    return torch.cat([run(rows) for rows in chunks]).view_as(x)


# In compiled programs an MLP is one operator, which decides on chunks when it runs.
torch.library.define(
    'inline::mlp', '(Tensor x, Tensor weight1, Tensor? bias1, Tensor weight2, Tensor? bias2) -> Tensor'
)


@torch.library.impl('inline::mlp', 'cpu')
def _(x: Tensor, weight1: Tensor, bias1: Tensor | None, weight2: Tensor, bias2: Tensor | None) -> Tensor:
    def run(rows: Tensor) -> Tensor:
        return onednn_product(onednn_product(rows, weight1, bias1, gelu=True), weight2, bias2, gelu=False)

    return _in_chunks(run, x, len(weight1))


@torch.library.register_fake('inline::mlp')
def _(x: Tensor, *_: Tensor | None) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


class DropPath(nn.Module):
    """Stochastic depth: in training, drop the branch of an image with probability ``rate``."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        keep = x.new_empty(x.shape[0], *[1] * (x.dim() - 1)).bernoulli_(1 - self.rate)
        # Dividing by the keep probability preserves the expected value.
        return x * keep / (1 - self.rate)

    def extra_repr(self) -> str:
        return f'rate={self.rate:.3f}'


def run_block(block: nn.Module, x: Tensor, hw: tuple[int, int], stage: int = 0) -> Tensor:
    """Return ``block(x, hw)``; in inference, torch.compile compiles equal blocks of a stage only once.

    Not if gradients are needed: with PyTorch 2.13, the forward pass of a region returns some of its inputs
    among the tensors for the backward pass. Inductor does not know that they share memory, overwrites it, and
    gradients are wrong.
    """
    if (
        torch.compiler.is_compiling()
        and not torch.compiler.is_exporting()
        and not (block.training or torch.is_grad_enabled())
        and isinstance(block, Block)
        and is_plain(block, Block)
    ):
        return _block_region(stage, block, x, *hw)
    out: Tensor = block(x, hw)
    return out


# The limit of different blocks is a safeguard of torch that raises an error.
@torch.compiler.nested_compile_region(max_reuse_entries=MAX_DIFFERENT_BLOCKS)
def _block_region(stage: int, block: Block, x: Tensor, height: int, width: int) -> Tensor:  # noqa: ARG001
    # torch compares the arguments with those of earlier calls in order. The number of the stage is first,
    # because the symbolic sizes of different stages cannot be compared.
    out: Tensor = block(x, (height, width))
    return out


def drop_path_rates(last: float, depths: tuple[int, ...]) -> list[list[float]]:
    """Return rates per stage that grow linearly from 0 at the first block to ``last`` at the last block."""
    if not 0 <= last < 1:
        raise UserError(f'drop_path_rate {last}: must be at least 0 and below 1')
    steps = max(sum(depths) - 1, 1)
    rates = iter(last * i / steps for i in range(sum(depths)))
    return [[next(rates) for _ in range(depth)] for depth in depths]
