"""The contract of mixers. Each check takes a mixer config ``dict(type=…, …)``."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from inline.models.layers import windows as windows_module
from inline.models.mixers import MIXERS, AttentionMixer, build_mixer, merge_heads
from tests.models.families import FAMILIES, build

DIM, HEADS = 8, 2
# Rectangular, odd, and too large for 64 landmarks; windows and stripes do not divide it.
HW = (13, 22)
WINDOWS: dict[str, dict[str, Any]] = {
    'whole map': {},
    'windows': {'window_size': 10},
    'shifted windows': {'window_size': 10, 'shift': True},
    'shifted windows without wrap': {'window_size': 10, 'shift': True, 'wrap': False},
    'stripes': {'split_size': 6},
}
Config = dict[str, Any]
CHECKS: dict[str, Callable[[Config], None]] = {}


def contract(check: Callable[[Config], None]) -> Callable[[Config], None]:
    CHECKS[check.__name__] = check
    return check


def make(config: Config, **options: Any) -> AttentionMixer:
    torch.manual_seed(0)
    mixer = build_mixer({**config, **options}, DIM, HEADS).double()
    # Parameters that are initialised with zero would hide their effect.
    for parameter in mixer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return mixer


def tokens(hw: tuple[int, int] = HW, prefix: int = 0, batch: int = 2) -> Tensor:
    shape = (batch, prefix + hw[0] * hw[1], DIM)
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@contract
def shape_is_preserved_with_and_without_class_token(config: Config) -> None:
    mixer = make(config)
    for hw in ((1, 1), (1, 9), (13, 22), (16, 8)):
        for prefix in (0, 1, 2):
            x = tokens(hw, prefix)
            out = mixer(x, hw, x)
            assert out.shape == x.shape
            assert out.isfinite().all()


@contract
def input_and_parameters_get_finite_gradients(config: Config) -> None:
    for options in WINDOWS.values():
        mixer, x = make(config, **options), tokens().requires_grad_()
        mixer(x, HW, x).square().sum().backward()
        for owner, parameter in (('input', x), *mixer.named_parameters()):
            assert parameter.grad is not None, owner
            assert parameter.grad.isfinite().all(), owner
            assert parameter.grad.any(), owner


@contract
def weights_applied_to_values_give_attend(config: Config) -> None:
    for kind, options in WINDOWS.items():
        mixer = make(config, **options)
        prefix = 1 if kind == 'whole map' else 0
        for inputs in mixer.partition_inputs(tokens(prefix=prefix), HW):
            for queries in (slice(None), slice(3, 20)):
                weights = mixer.weights(inputs, queries)
                attended = merge_heads(weights @ inputs.heads()[2])
                torch.testing.assert_close(
                    attended, mixer.attend(inputs)[:, queries], rtol=1e-8, atol=1e-10, msg=kind
                )


@contract
def output_is_projection_of_attention_and_local_terms(config: Config) -> None:
    mixer, x = make(config), tokens(prefix=1)
    (inputs,) = mixer.partition_inputs(x, HW, x)
    terms = [mixer.local(inputs)]
    if mixer.lepe is not None:
        terms.append(mixer.lepe(inputs.v, HW, inputs.channels))
    expected = mixer.attend(inputs).detach().clone()
    for term in terms:
        # A class token has no neighbours on the map.
        if term is not None:
            expected[:, 1:] += term
    expected = mixer.proj(expected if mixer.gate is None else expected * mixer.gate(x))
    torch.testing.assert_close(mixer(x, HW, x), expected, rtol=1e-10, atol=1e-12)
    before = x.clone()
    with torch.inference_mode():
        torch.testing.assert_close(mixer(x, HW, x), expected, rtol=1e-10, atol=1e-12)
    # Without gradients terms are added in place, but never to the input.
    assert torch.equal(x, before)


@contract
def attention_is_permutation_equivariant_as_declared(config: Config) -> None:
    mixer, x = make(config), tokens()
    order = torch.randperm(x.shape[1], generator=torch.Generator().manual_seed(2))
    (inputs,), (permuted,) = mixer.partition_inputs(x, HW), mixer.partition_inputs(x[:, order], HW)
    same = torch.allclose(mixer.attend(permuted), mixer.attend(inputs)[:, order], rtol=1e-8, atol=1e-10)
    assert same == mixer.permutation_equivariant


@contract
def images_of_a_batch_are_independent(config: Config) -> None:
    for options in WINDOWS.values():
        mixer, x = make(config, **options), tokens(batch=3)
        alone = mixer(x[1:2], HW, x[1:2])
        torch.testing.assert_close(mixer(x, HW, x)[1:2], alone, rtol=1e-8, atol=1e-10)


@contract
def padding_has_no_effect(config: Config) -> None:
    for kind, options in WINDOWS.items():
        mixer, x = make(config, **options), tokens()
        clean = mixer(x, HW, x)
        cotangent = torch.randn_like(clean)
        gradients = torch.autograd.grad(clean, list(mixer.parameters()), cotangent)
        for fill in (1e3, float('nan')):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(windows_module, 'PAD_VALUE', fill)
                dirty = mixer(x, HW, x)
                torch.testing.assert_close(dirty, clean, rtol=1e-9, atol=1e-10, msg=kind)
                if fill == fill:
                    dirty_gradients = torch.autograd.grad(dirty, list(mixer.parameters()), cotangent)
                    torch.testing.assert_close(dirty_gradients, gradients, rtol=1e-8, atol=1e-8)


@contract
def bfloat16_is_finite_and_accurate(config: Config) -> None:
    # With this seed no query has relu(q) close to zero, where normalisation by division is ill-conditioned.
    torch.manual_seed(1)
    mixer, x = build_mixer(config, DIM, HEADS), 3 * tokens(prefix=1).float()
    exact = mixer(x, HW, x)
    (inputs,) = mixer.partition_inputs(x, HW, x)
    # Scores of both signs sum to almost zero for some queries, so rounding decides the divisor. Then only
    # most queries are accurate; the others are finite.
    ill_posed = mixer.normalization == 'division' and bool((mixer.weights(inputs) < 0).any())
    with torch.autocast('cpu', torch.bfloat16):
        mixed = mixer(x, HW, x).float()
    mixed.square().mean().backward()
    assert all(parameter.grad.isfinite().all() for parameter in mixer.parameters())
    half = mixer.bfloat16()(x.bfloat16(), HW, x.bfloat16()).float()
    for out in (mixed, half):
        assert out.isfinite().all()
        error = (out - exact).norm(dim=-1) / exact.norm(dim=-1)
        assert error.median() <= 3e-2
        assert ill_posed or (out - exact).norm() <= 3e-2 * exact.norm()


@contract
def exports(config: Config) -> None:
    for kind, prefix in (('whole map', 1), ('shifted windows', 0)):
        mixer, x = make(config, **WINDOWS[kind]).eval(), tokens(prefix=prefix)
        program = torch.export.export(mixer, (x, HW))
        torch.testing.assert_close(program.module()(x, HW), mixer(x, HW), rtol=1e-10, atol=1e-12)


@contract
def every_family_accepts_it(config: Config) -> None:
    for family in FAMILIES:
        torch.manual_seed(0)
        model = build(family, mixers=config)
        # Sides that are no multiple of a stride or a window.
        outs = model(torch.randn(2, 3, 33, 47))
        assert all(out.isfinite().all() for out in outs), family
        sum(out.square().mean() for out in outs).backward()
        for owner, parameter in model.named_parameters():
            assert parameter.grad is not None, f'{family} {owner}'
            assert parameter.grad.isfinite().all(), f'{family} {owner}'


@contract
def cost_is_linear_or_quadratic_as_declared(config: Config) -> None:
    """Counted on the meta device, so that maps can be large enough to hide constant costs."""
    with torch.device('meta'):
        mixer = build_mixer(config, DIM, HEADS)
        costs = []
        for hw in ((512, 512), (512, 1024)):
            x = torch.empty(1, hw[0] * hw[1], DIM)
            with torch.no_grad(), FlopCounterMode(display=False) as counter:
                mixer(x, hw, x)
            costs.append(counter.get_total_flops())
    assert costs[1] / costs[0] == pytest.approx(2 if mixer.is_linear else 4, rel=0.05)


def run_contract(config: Config) -> None:
    """Run all checks on one registered mixer."""
    assert config['type'] in MIXERS
    for check in CHECKS.values():
        check(config)
