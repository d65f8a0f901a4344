"""Modules that are not what they are called are not timed."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from benchmarks import checks, ops
from inline.errors import UserError
from inline.models.mixers import AttentionMixer, Part
from inline.models.mixers.flatten import FLattenMixer

# A map as large as the one that weights are written out on, a larger one, and the last stage's at 224.
MAPS = [(9, 13), (12, 17), (7, 7)]


def peers(*names: str, hw: tuple[int, int] = (9, 13)) -> dict[str, nn.Module]:
    return ops.build_peers(ops.Shape('PVT', (36, 52), 0, 8, 2, 1, hw), names, tokens(hw))


def tokens(hw: tuple[int, int] = (9, 13), prefix: int = 0) -> Tensor:
    return torch.randn(2, prefix + hw[0] * hw[1], 8, generator=torch.Generator().manual_seed(0))


class WrongGradient(torch.autograd.Function):
    """The same number, with a gradient that is a tenth too large."""

    @staticmethod
    def forward(_: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(_: object, gradient: Tensor) -> Tensor:
        return 1.1 * gradient


@pytest.mark.parametrize('prefix', [0, 1])
@pytest.mark.parametrize('hw', MAPS)
def test_all_peers_agree_with_what_they_are_called(hw: tuple[int, int], prefix: int) -> None:
    everyone = peers(*ops.PEERS, hw=hw)
    assert set(everyone) == set(ops.PEERS)
    checks.check(everyone, tokens(hw, prefix), hw, 1e-4)


@pytest.mark.parametrize('pair', [('InLine', 'Plain'), ('SDPA', 'Naive softmax')])
def test_twins_that_disagree_are_refused(pair: tuple[str, str]) -> None:
    both = peers(*pair)
    with torch.no_grad():
        both[pair[1]].proj.bias += 1
    with pytest.raises(UserError, match=f'{pair[0]} and {pair[1]} disagree'):
        checks.check(both, tokens(), (9, 13), 1e-4)


@pytest.mark.parametrize('hw', MAPS)
@pytest.mark.parametrize('name', ['SDPA', 'Linear', 'Nystrom'])
def test_an_attention_that_is_not_its_weights_is_refused(
    name: str, hw: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = peers(name, hw=hw)
    attend = one[name].attend
    monkeypatch.setattr(one[name], 'attend', lambda part: 1.01 * attend(part))
    with pytest.raises(UserError, match=f'{name} and its definition disagree'):
        checks.check(one, tokens(hw), hw, 1e-4)


@pytest.mark.parametrize('hw', MAPS)
@pytest.mark.parametrize('method', ['attend', 'local'])
def test_inline_is_held_to_the_plain_formulation_that_is_not_timed(
    method: str, hw: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = peers('InLine', hw=hw)
    right = getattr(one['InLine'], method)
    monkeypatch.setattr(one['InLine'], method, lambda part: 1.05 * right(part))
    with pytest.raises(UserError, match='InLine and Plain disagree'):
        checks.check(one, tokens(hw), hw, 1e-4)


@pytest.mark.parametrize('hw', MAPS)
def test_a_rival_that_adds_its_local_term_wrongly_is_refused(hw: tuple[int, int]) -> None:
    class Twice(FLattenMixer):
        def forward(self, x: Tensor, hw: tuple[int, int], unnormed: Tensor | None = None) -> Tensor:
            (part,) = self.parts(x, hw, unnormed)
            return self.proj(self.attend(part) + 2 * next(self.local_terms(part)))

    torch.manual_seed(0)
    with pytest.raises(UserError, match='FLatten and its definition disagree'):
        checks.check({'FLatten': Twice(8, 2)}, tokens(hw), hw, 1e-4)


@pytest.mark.parametrize('hw', MAPS)
@pytest.mark.parametrize('name', ['InLine', 'SDPA', 'Linear'])
def test_a_wrong_gradient_is_refused(name: str, hw: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    one = peers(name, hw=hw)
    attend = one[name].attend
    monkeypatch.setattr(one[name], 'attend', lambda part: WrongGradient.apply(attend(part)))
    with pytest.raises(UserError, match=f'{name} and .*, gradients of tokens, disagree'):
        checks.check(one, tokens(hw), hw, 1e-4)


def test_a_wrong_gradient_of_weights_alone_is_refused() -> None:
    class Wrong(AttentionMixer):
        def attend(self, part: Part) -> Tensor:
            return part.v

        def weights(self, part: Part, queries: slice = slice(None)) -> Tensor:
            return torch.eye(part.v.shape[1]).expand(1, self.num_heads, -1, -1)[:, :, queries]

        def local_terms(self, _: Part) -> Iterator[Tensor]:
            yield from ()

        def forward(self, x: Tensor, hw: tuple[int, int], unnormed: Tensor | None = None) -> Tensor:
            (part,) = self.parts(x, hw, unnormed)
            weight, bias = WrongGradient.apply(self.proj.weight), self.proj.bias
            return nn.functional.linear(self.attend(part), weight, bias)

    torch.manual_seed(0)
    with pytest.raises(UserError, match='gradients of weights, disagree'):
        checks.check({'Wrong': Wrong(8, 2)}, tokens(), (9, 13), 1e-4)


def test_an_output_that_is_no_number_is_refused() -> None:
    with pytest.raises(UserError, match='disagree'):
        checks.compare('these', torch.tensor([float('nan')]), torch.ones(1), 1e-4)
