"""The plain formulation computes the same as InLineMixer, with the same weights."""

import pytest
import torch
from torch import nn

from benchmarks.plain import PlainMixer, to_plain, use_plain, use_torch_linear
from inline.models.layers import is_plain
from inline.models.mixers import InLineMixer
from tests.models.families import FAMILIES, build


@pytest.mark.parametrize('prefix', [0, 1])
@pytest.mark.parametrize('options', [{}, {'qkv_bias': False}, {'lepe': True}, {'mean_before_norm': True}])
@pytest.mark.parametrize('hw', [(2, 3), (7, 10)])
def test_outputs_and_gradients_match_inline(
    hw: tuple[int, int], options: dict[str, bool], prefix: int
) -> None:
    torch.manual_seed(0)
    mixer = InLineMixer(8, 2, **options).double()
    plain = to_plain(mixer)
    x = torch.randn(2, prefix + hw[0] * hw[1], 8, dtype=torch.float64, requires_grad=True)
    prenorm_x = torch.randn_like(x)
    results = []
    for module in (mixer, plain):
        out = module(x, hw, prenorm_x)
        named = dict(module.named_parameters())
        gradients = torch.autograd.grad(out.square().sum(), [x, *named.values()])
        results.append({'out': out, **dict(zip(['x', *named], gradients, strict=True))})
    assert results[0].keys() == results[1].keys()
    for name, ours in results[0].items():
        torch.testing.assert_close(ours, results[1][name], rtol=1e-9, atol=1e-10, msg=name)


@pytest.mark.parametrize('options', [{'kernel': 'relu'}, {'residual': False}, {'window_size': 4}])
def test_unsupported_options_raise(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match='plain formulation'):
        to_plain(InLineMixer(8, 2, **options))


@pytest.mark.parametrize('family', FAMILIES)
def test_use_plain_keeps_the_outputs_of_a_backbone(family: str) -> None:
    torch.manual_seed(0)
    model = build(family).double()
    image = torch.randn(1, 3, 64, 96, dtype=torch.float64)
    before = model(image)
    plain = use_plain(model)
    assert any(isinstance(module, PlainMixer) for module in plain.modules())
    assert not any(isinstance(module, InLineMixer) for module in plain.modules())
    torch.testing.assert_close(plain(image), before, rtol=1e-8, atol=1e-9)
    use_torch_linear(plain)
    assert not any(is_plain(module, nn.Linear) for module in plain.modules())
    torch.testing.assert_close(plain(image), before, rtol=1e-8, atol=1e-9)
