"""Correctness checks before timing: outputs and gradients of attention modules against references."""

import torch
from torch import Tensor, nn

from benchmarks.plain import to_plain
from inline.models.mixers import AttentionMixer, InLineMixer, merge_heads
from inline.utils.errors import UserError

# Largest map on which explicit attention weights are computed.
CHECK_MAP = (9, 13)


class NaiveMixer(nn.Module):
    """A mixer over the whole map with explicit attention weights; local terms are those of the mixer."""

    def __init__(self, mixer: AttentionMixer) -> None:
        super().__init__()
        self.mixer = mixer

    def forward(self, x: Tensor, hw: tuple[int, int], prenorm_x: Tensor) -> Tensor:
        (inputs,) = self.mixer.partition_inputs(x, hw, prenorm_x)
        out = merge_heads(self.mixer.weights(inputs) @ inputs.heads()[2])
        prefix = x.shape[1] - hw[0] * hw[1]
        for term in self.mixer.local_terms(inputs):
            # Prefix tokens have no neighbours.
            out = torch.cat([out[:, :prefix], out[:, prefix:] + term], dim=1)
        gate = self.mixer.gate
        return self.mixer.proj(out if gate is None else out * gate(x))


def check(peers: dict[str, nn.Module], x: Tensor, hw: tuple[int, int], tolerance: float) -> None:
    """Raise if a module disagrees with its reference.

    On the timed tokens, InLine is compared with its plain formulation, even if only InLine is timed, and SDPA
    with naive softmax. On a small map, every attention is compared with its explicit weights.
    """
    references = dict(peers)
    inline = peers.get('InLine')
    if isinstance(inline, InLineMixer):
        references.setdefault('Plain', to_plain(inline))
    for fast, naive in (('InLine', 'Plain'), ('SDPA', 'Naive softmax')):
        if fast in references and naive in references:
            compare_modules(f'{fast} and {naive}', references[fast], references[naive], x, hw, tolerance)
    prefix = x.shape[1] - hw[0] * hw[1]
    small_hw = (min(hw[0], CHECK_MAP[0]), min(hw[1], CHECK_MAP[1]))
    small = x[:2, : prefix + small_hw[0] * small_hw[1]]
    for name, peer in peers.items():
        if isinstance(peer, AttentionMixer):
            compare_modules(f'{name} and its definition', peer, NaiveMixer(peer), small, small_hw, tolerance)


def compare_modules(
    name: str, ours: nn.Module, reference: nn.Module, x: Tensor, hw: tuple[int, int], tolerance: float
) -> None:
    """Compare outputs, gradients of the tokens and gradients of all parameters together."""
    generator = torch.Generator(x.device).manual_seed(0)
    grad_output = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)
    found, expected = (_results(module, x, hw, grad_output) for module in (ours, reference))
    for suffix, tensor in found.items():
        compare(f'{name}{suffix}', tensor, expected[suffix], tolerance)


def _results(module: nn.Module, x: Tensor, hw: tuple[int, int], grad_output: Tensor) -> dict[str, Tensor]:
    """Return output and gradients by their suffix in messages; parameters are in order of name."""
    leaf = x.detach().requires_grad_()
    parameters = [parameter for _, parameter in sorted(module.named_parameters())]
    out = module(leaf, hw, leaf)
    token_gradient, *gradients = torch.autograd.grad(out, [leaf, *parameters], grad_output)
    return {
        '': out.detach(),
        ', gradients of tokens,': token_gradient,
        ', gradients of weights,': torch.cat([gradient.flatten() for gradient in gradients]),
    }


def compare(name: str, ours: Tensor, expected: Tensor, tolerance: float) -> None:
    """Raise if the relative error exceeds the tolerance."""
    error = ((ours - expected).float().norm() / expected.float().norm()).item()
    if not error <= tolerance:
        raise UserError(f'{name} disagree by {error:.1e}, more than {tolerance:.0e}: not timed')
