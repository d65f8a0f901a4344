"""Attention modules held to their definitions before they are timed: outputs and gradients."""

import torch
from torch import Tensor, nn

from benchmarks.plain import plain_twin
from inline.errors import UserError
from inline.models.mixers import AttentionMixer, InLineMixer, merge_heads

# Where the weights of all attentions are written out, or less if the map is smaller.
CHECK_MAP = (9, 13)


class ByDefinition(nn.Module):
    """An attention over the whole map with its weights written out; local terms are its own."""

    def __init__(self, mixer: AttentionMixer) -> None:
        super().__init__()
        self.mixer = mixer

    def forward(self, x: Tensor, hw: tuple[int, int], unnormed: Tensor) -> Tensor:
        (part,) = self.mixer.parts(x, hw, unnormed)
        out = merge_heads(self.mixer.weights(part) @ part.heads()[2])
        prefix = x.shape[1] - hw[0] * hw[1]
        for term in self.mixer.local_terms(part):
            # Tokens without a place on the map have no neighbours.
            out = torch.cat([out[:, :prefix], out[:, prefix:] + term], dim=1)
        return self.mixer.proj(out)


def check(peers: dict[str, nn.Module], x: Tensor, hw: tuple[int, int], tolerance: float) -> None:
    """Refuse modules that are not what they are called.

    Those with a twin are held to it on the tokens that are timed, InLine to its plain formulation whether
    that is timed or not; all attentions to their definition, on a small map.
    """
    twins = dict(peers)
    inline = peers.get('InLine')
    if isinstance(inline, InLineMixer):
        twins.setdefault('Plain', plain_twin(inline))
    for one, other in (('InLine', 'Plain'), ('SDPA', 'Naive softmax')):
        if one in twins and other in twins:
            hold(f'{one} and {other}', twins[one], twins[other], x, hw, tolerance)
    prefix = x.shape[1] - hw[0] * hw[1]
    small_hw = (min(hw[0], CHECK_MAP[0]), min(hw[1], CHECK_MAP[1]))
    small = x[:2, : prefix + small_hw[0] * small_hw[1]]
    for name, peer in peers.items():
        if isinstance(peer, AttentionMixer):
            hold(f'{name} and its definition', peer, ByDefinition(peer), small, small_hw, tolerance)


def hold(
    what: str, ours: nn.Module, definition: nn.Module, x: Tensor, hw: tuple[int, int], tolerance: float
) -> None:
    """Compare outputs, gradients of the tokens and gradients of all parameters together."""
    generator = torch.Generator(x.device).manual_seed(0)
    cotangent = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)
    pairs = zip(_results(ours, x, hw, cotangent), _results(definition, x, hw, cotangent), strict=True)
    for kind, (found, expected) in zip(
        ('', ', gradients of tokens,', ', gradients of weights,'), pairs, strict=True
    ):
        compare(f'{what}{kind}', found, expected, tolerance)


def _results(
    module: nn.Module, x: Tensor, hw: tuple[int, int], cotangent: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The output, and the gradients of the tokens and of the parameters by name."""
    leaf = x.detach().requires_grad_()
    named = sorted(module.named_parameters())
    out = module(leaf, hw, leaf)
    of_x, *others = torch.autograd.grad(out, [leaf, *(parameter for _, parameter in named)], cotangent)
    return out.detach(), of_x, torch.cat([gradient.flatten() for gradient in others])


def compare(what: str, ours: Tensor, expected: Tensor, tolerance: float) -> None:
    error = ((ours - expected).float().norm() / expected.float().norm()).item()
    if not error <= tolerance:
        raise UserError(f'{what} disagree by {error:.1e}, more than {tolerance:.0e}: not timed')
