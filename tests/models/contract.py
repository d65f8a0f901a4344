"""What every registered mixer must do. Each check takes a mixer as configs write it, ``dict(type=…, …)``."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from inline.models.layers import regions as regions_module
from inline.models.mixers import MIXERS, AttentionMixer, build_mixer
from inline.models.mixers.heads import merge_heads
from tests.models.families import FAMILIES, build

DIM, HEADS = 8, 2
# Rectangular, odd, and too large for 64 landmarks; windows and stripes do not divide it.
HW = (13, 22)
REGIONS: dict[str, dict[str, Any]] = {
    'whole map': {},
    'windows': {'window_size': 10},
    'shifted windows': {'window_size': 10, 'shift': True},
    'cut windows': {'window_size': 10, 'shift': True, 'wrap': False},
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
    # Parameters that begin at zero would hide what they do.
    for parameter in mixer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return mixer


def tokens(hw: tuple[int, int] = HW, prefix: int = 0, batch: int = 2) -> Tensor:
    shape = (batch, prefix + hw[0] * hw[1], DIM)
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@contract
def any_shape_is_kept_with_and_without_a_class_token(config: Config) -> None:
    mixer = make(config)
    for hw in ((1, 1), (1, 9), (13, 22), (16, 8)):
        for prefix in (0, 1, 2):
            x = tokens(hw, prefix)
            out = mixer(x, hw, x)
            assert out.shape == x.shape
            assert out.isfinite().all()


@contract
def every_parameter_and_the_input_get_a_finite_gradient(config: Config) -> None:
    for options in REGIONS.values():
        mixer, x = make(config, **options), tokens().requires_grad_()
        mixer(x, HW, x).square().sum().backward()
        for owner, parameter in (('input', x), *mixer.named_parameters()):
            assert parameter.grad is not None, owner
            assert parameter.grad.isfinite().all(), owner
            assert parameter.grad.any(), owner


@contract
def the_weights_are_those_that_attend_applies(config: Config) -> None:
    for kind, options in REGIONS.items():
        mixer = make(config, **options)
        prefix = 1 if kind == 'whole map' else 0
        for part in mixer.parts(tokens(prefix=prefix), HW):
            for queries in (slice(None), slice(3, 20)):
                weights = mixer.weights(part, queries)
                attended = merge_heads(weights @ part.heads()[2])
                torch.testing.assert_close(
                    attended, mixer.attend(part)[:, queries], rtol=1e-8, atol=1e-10, msg=kind
                )


@contract
def the_output_is_attention_and_local_terms_projected(config: Config) -> None:
    mixer, x = make(config), tokens(prefix=1)
    (part,) = mixer.parts(x, HW, x)
    terms = [mixer.local(part)]
    if mixer.lepe is not None:
        terms.append(mixer.lepe(part.v, HW, part.channels))
    expected = mixer.attend(part).detach().clone()
    for term in terms:
        # A class token has no neighbours.
        if term is not None:
            expected[:, 1:] += term
    expected = mixer.proj(expected)
    torch.testing.assert_close(mixer(x, HW, x), expected, rtol=1e-10, atol=1e-12)
    before = x.clone()
    with torch.inference_mode():
        torch.testing.assert_close(mixer(x, HW, x), expected, rtol=1e-10, atol=1e-12)
    # Without gradients terms are added in place: never to what was handed in.
    assert torch.equal(x, before)


@contract
def attention_follows_a_permutation_if_it_is_free_of_positions(config: Config) -> None:
    mixer, x = make(config), tokens()
    order = torch.randperm(x.shape[1], generator=torch.Generator().manual_seed(2))
    (part,), (moved,) = mixer.parts(x, HW), mixer.parts(x[:, order], HW)
    same = torch.allclose(mixer.attend(moved), mixer.attend(part)[:, order], rtol=1e-8, atol=1e-10)
    assert same == mixer.position_free


@contract
def images_of_a_batch_do_not_touch_each_other(config: Config) -> None:
    for options in REGIONS.values():
        mixer, x = make(config, **options), tokens(batch=3)
        alone = mixer(x[1:2], HW, x[1:2])
        torch.testing.assert_close(mixer(x, HW, x)[1:2], alone, rtol=1e-8, atol=1e-10)


@contract
def what_is_in_the_padding_changes_no_token(config: Config) -> None:
    for kind, options in REGIONS.items():
        mixer, x = make(config, **options), tokens()
        clean = mixer(x, HW, x)
        cotangent = torch.randn_like(clean)
        gradients = torch.autograd.grad(clean, list(mixer.parameters()), cotangent)
        for fill in (1e3, float('nan')):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(regions_module, 'PAD_VALUE', fill)
                dirty = mixer(x, HW, x)
                torch.testing.assert_close(dirty, clean, rtol=1e-9, atol=1e-10, msg=kind)
                if fill == fill:
                    dirty_gradients = torch.autograd.grad(dirty, list(mixer.parameters()), cotangent)
                    torch.testing.assert_close(dirty_gradients, gradients, rtol=1e-8, atol=1e-8)


@contract
def bfloat16_is_finite_and_near(config: Config) -> None:
    # No query of this draw has relu(q) of almost zero, which no kernel that divides could keep near.
    torch.manual_seed(1)
    mixer, x = build_mixer(config, DIM, HEADS), 3 * tokens(prefix=1).float()
    exact = mixer(x, HW, x)
    (part,) = mixer.parts(x, HW, x)
    # Scores of both signs sum to almost nothing for some queries. What bfloat16 rounds away decides such a
    # sum, and the output divided by it: then most queries are near, and the others finite, no more.
    ill_posed = mixer.normalisation == 'division' and bool((mixer.weights(part) < 0).any())
    with torch.autocast('cpu', torch.bfloat16):
        mixed = mixer(x, HW, x).float()
    mixed.square().mean().backward()
    assert all(parameter.grad.isfinite().all() for parameter in mixer.parameters())
    half = mixer.bfloat16()(x.bfloat16(), HW, x.bfloat16()).float()
    for out in (mixed, half):
        assert out.isfinite().all()
        apart = (out - exact).norm(dim=-1) / exact.norm(dim=-1)
        assert apart.median() <= 3e-2
        assert ill_posed or (out - exact).norm() <= 3e-2 * exact.norm()


@contract
def it_exports(config: Config) -> None:
    for kind, prefix in (('whole map', 1), ('shifted windows', 0)):
        mixer, x = make(config, **REGIONS[kind]).eval(), tokens(prefix=prefix)
        program = torch.export.export(mixer, (x, HW))
        torch.testing.assert_close(program.module()(x, HW), mixer(x, HW), rtol=1e-10, atol=1e-12)


@contract
def every_family_takes_it(config: Config) -> None:
    for family in FAMILIES:
        torch.manual_seed(0)
        model = build(family, mixers=config)
        for size in ((64, 96), (33, 47)):
            outs = model(torch.randn(2, 3, *size))
            assert all(out.isfinite().all() for out in outs), family
            model.zero_grad()
            sum(out.square().mean() for out in outs).backward()
            for owner, parameter in model.named_parameters():
                assert parameter.grad is not None, f'{family} {owner}'
                assert parameter.grad.isfinite().all(), f'{family} {owner}'


@contract
def twice_the_tokens_cost_twice_or_four_times_as_much(config: Config) -> None:
    """Counted on shapes alone, so that maps can be large enough for constant costs to vanish."""
    with torch.device('meta'):
        mixer = build_mixer(config, DIM, HEADS)
        costs = []
        for hw in ((512, 512), (512, 1024)):
            x = torch.empty(1, hw[0] * hw[1], DIM)
            with torch.no_grad(), FlopCounterMode(display=False) as counter:
                mixer(x, hw, x)
            costs.append(counter.get_total_flops())
    assert costs[1] / costs[0] == pytest.approx(2 if mixer.linear_cost else 4, rel=0.05)


def run_contract(config: Config) -> None:
    """All checks on one mixer that is registered already."""
    assert config['type'] in MIXERS
    for check in CHECKS.values():
        check(config)
