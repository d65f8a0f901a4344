"""Modules that disagree with their reference are not timed."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from benchmarks import checks, ops
from inline.models.mixers import AttentionInputs, AttentionMixer
from inline.models.mixers.baselines import FLattenMixer
from inline.utils.errors import UserError

# The map for explicit weights, a larger map, and the map of the last stage at 224.
MAPS = [(9, 13), (12, 17), (7, 7)]


def peers(*names: str, hw: tuple[int, int] = (9, 13)) -> dict[str, nn.Module]:
    return ops.build_peers(ops.Shape('PVT', (36, 52), 0, 8, 2, 1, hw), names, tokens(hw))


def tokens(hw: tuple[int, int] = (9, 13), prefix: int = 0) -> Tensor:
    return torch.randn(2, prefix + hw[0] * hw[1], 8, generator=torch.Generator().manual_seed(0))


class WrongGradient(torch.autograd.Function):
    """Identity with a gradient that is 10 % too large."""

    @staticmethod
    def forward(_: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(_: object, gradient: Tensor) -> Tensor:
        return 1.1 * gradient


@pytest.mark.parametrize('prefix', [0, 1])
@pytest.mark.parametrize('hw', MAPS)
def test_all_peers_match_their_references(hw: tuple[int, int], prefix: int) -> None:
    modules = peers(*ops.PEERS, hw=hw)
    assert set(modules) == set(ops.PEERS)
    checks.check(modules, tokens(hw, prefix), hw, 1e-4)


@pytest.mark.parametrize('pair', [('InLine', 'Plain'), ('SDPA', 'Naive softmax')])
def test_disagreement_with_the_reference_raises(pair: tuple[str, str]) -> None:
    modules = peers(*pair)
    with torch.no_grad():
        modules[pair[1]].proj.bias += 1
    with pytest.raises(UserError, match=f'{pair[0]} and {pair[1]} disagree'):
        checks.check(modules, tokens(), (9, 13), 1e-4)


@pytest.mark.parametrize('hw', MAPS)
@pytest.mark.parametrize('name', ['SDPA', 'Linear', 'Nystrom'])
def test_disagreement_with_the_weights_raises(
    name: str, hw: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = peers(name, hw=hw)
    attend = modules[name].attend
    monkeypatch.setattr(modules[name], 'attend', lambda inputs: 1.01 * attend(inputs))
    with pytest.raises(UserError, match=f'{name} and its definition disagree'):
        checks.check(modules, tokens(hw), hw, 1e-4)


@pytest.mark.parametrize('hw', MAPS)
@pytest.mark.parametrize('method', ['attend', 'local'])
def test_inline_is_compared_with_the_plain_formulation_even_if_that_is_not_timed(
    method: str, hw: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = peers('InLine', hw=hw)
    original = getattr(modules['InLine'], method)
    monkeypatch.setattr(modules['InLine'], method, lambda inputs: 1.05 * original(inputs))
    with pytest.raises(UserError, match='InLine and Plain disagree'):
        checks.check(modules, tokens(hw), hw, 1e-4)


@pytest.mark.parametrize('hw', MAPS)
def test_wrong_local_term_of_a_baseline_raises(hw: tuple[int, int]) -> None:
    class DoubledLocalTerm(FLattenMixer):
        def forward(self, x: Tensor, hw: tuple[int, int], prenorm_x: Tensor | None = None) -> Tensor:
            (inputs,) = self.partition_inputs(x, hw, prenorm_x)
            return self.proj(self.attend(inputs) + 2 * next(self.local_terms(inputs)))

    torch.manual_seed(0)
    with pytest.raises(UserError, match='FLatten and its definition disagree'):
        checks.check({'FLatten': DoubledLocalTerm(8, 2)}, tokens(hw), hw, 1e-4)


@pytest.mark.parametrize('hw', MAPS)
@pytest.mark.parametrize('name', ['InLine', 'SDPA', 'Linear'])
def test_wrong_gradient_raises(name: str, hw: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    modules = peers(name, hw=hw)
    attend = modules[name].attend
    monkeypatch.setattr(modules[name], 'attend', lambda inputs: WrongGradient.apply(attend(inputs)))
    with pytest.raises(UserError, match=f'{name} and .*, gradients of tokens, disagree'):
        checks.check(modules, tokens(hw), hw, 1e-4)


def test_wrong_gradient_of_weights_raises() -> None:
    class Wrong(AttentionMixer):
        def attend(self, inputs: AttentionInputs) -> Tensor:
            return inputs.v

        def weights(self, inputs: AttentionInputs, queries: slice = slice(None)) -> Tensor:
            return torch.eye(inputs.v.shape[1]).expand(1, self.num_heads, -1, -1)[:, :, queries]

        def local_terms(self, _: AttentionInputs) -> Iterator[Tensor]:
            yield from ()

        def forward(self, x: Tensor, hw: tuple[int, int], prenorm_x: Tensor | None = None) -> Tensor:
            (inputs,) = self.partition_inputs(x, hw, prenorm_x)
            weight, bias = WrongGradient.apply(self.proj.weight), self.proj.bias
            return nn.functional.linear(self.attend(inputs), weight, bias)

    torch.manual_seed(0)
    with pytest.raises(UserError, match='gradients of weights, disagree'):
        checks.check({'Wrong': Wrong(8, 2)}, tokens(), (9, 13), 1e-4)


def test_nan_output_raises() -> None:
    with pytest.raises(UserError, match='disagree'):
        checks.compare('these', torch.tensor([float('nan')]), torch.ones(1), 1e-4)
