"""Linear layers through oneDNN: the same results, and only where nobody has changed or observes the layer."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from inline.models.block import Mlp
from inline.models.layers import linear, linear_gelu
from inline.models.layers.fused_linear import ONEDNN_FROM
from inline.ops.products import HAS_BFLOAT16, HAS_ONEDNN
from tests.models.families import build

OPERATOR = 'mkldnn::_linear_pointwise'
TOKENS = ONEDNN_FROM + 1


def uses_onednn(run: Callable[[], object]) -> bool:
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        run()
    return any(event.key == OPERATOR for event in trace.key_averages())


def make_layer(bias: bool = True) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(12, 20, bias=bias)


INPUTS = {
    'tokens': torch.randn(2, TOKENS, 12),
    'few tokens': torch.randn(1, 3, 12),
    'map as tokens': torch.randn(2, 12, TOKENS).transpose(1, 2),
    'channels of a wider tensor': torch.randn(1, TOKENS, 36)[..., 12:24],
    'rows': torch.randn(TOKENS, 12),
    'no image': torch.randn(0, TOKENS, 12),
}


@pytest.mark.parametrize('bias', [False, True])
@pytest.mark.parametrize('x', INPUTS.values(), ids=INPUTS)
def test_results_are_those_of_the_formula(x: Tensor, bias: bool) -> None:
    layer = make_layer(bias)
    weight, offset = layer.weight.double(), layer.bias.double() if bias else 0.0
    expected = x.double() @ weight.T + offset
    with torch.no_grad():
        for found, reference in (
            (linear(layer, x), expected),
            (linear(layer, x, slice(5, 15)), expected[..., 5:15]),
            (linear_gelu(layer, x), F.gelu(expected)),
        ):
            assert found.is_contiguous()
            torch.testing.assert_close(found.double(), reference, rtol=1e-5, atol=1e-6)


def test_onednn_is_used_for_inference_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = make_layer(), INPUTS['tokens']
    with torch.no_grad():
        assert uses_onednn(lambda: linear(layer, x)) == HAS_ONEDNN
        assert uses_onednn(lambda: linear_gelu(layer, x[:, :1])) == HAS_ONEDNN
        assert not uses_onednn(lambda: linear(layer, x[:1, : ONEDNN_FROM - 1]))
        assert not uses_onednn(lambda: linear_gelu(make_layer().double(), x.double()))
        assert not uses_onednn(lambda: linear_gelu(make_layer().half(), x.half()))
        with torch.autocast('cpu', torch.float16):
            assert not uses_onednn(lambda: linear_gelu(layer, x))
        monkeypatch.setattr(torch._C, '_get_mkldnn_enabled', lambda: False)
        assert not uses_onednn(lambda: linear_gelu(layer, x))
        monkeypatch.undo()


@pytest.mark.parametrize('gelu', [False, True])
@pytest.mark.parametrize('bias', [False, True])
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_inference_in_bfloat16(dtype: torch.dtype, bias: bool, gelu: bool) -> None:
    """Under autocast, for inputs in float32 and bfloat16, and with weights in bfloat16."""
    layer, x = make_layer(bias), INPUTS['tokens'].to(dtype)
    call = linear_gelu if gelu else linear
    expected = F.linear(x.double(), layer.weight.double(), layer.bias.double() if bias else None)
    expected = F.gelu(expected) if gelu else expected

    def check(model: nn.Linear) -> None:
        found = call(model, x)
        assert found.dtype == torch.bfloat16
        assert (found.double() - expected).norm() < 1e-2 * expected.norm()
        assert uses_onednn(lambda: call(model, x)) == HAS_BFLOAT16

    with torch.no_grad():
        with torch.autocast('cpu', torch.bfloat16):
            check(layer)
        if dtype == torch.bfloat16:
            check(layer.bfloat16())
    with torch.autocast('cpu', torch.bfloat16):
        assert not uses_onednn(lambda: call(make_layer(bias), x))


def test_onednn_is_used_for_training_in_float32() -> None:
    layer, x = make_layer(), INPUTS['tokens']
    out = linear(layer, x)
    assert (out.grad_fn.name() == 'GeneratedBackwardFor_inline_linear_defaultBackward') == HAS_ONEDNN
    assert uses_onednn(lambda: out.sum().backward()) == HAS_ONEDNN
    assert not uses_onednn(lambda: linear(layer, x[:1, : ONEDNN_FROM - 1]).sum().backward())
    assert not uses_onednn(lambda: linear(make_layer().double(), x.double()).sum().backward())
    with torch.autocast('cpu', torch.bfloat16):
        assert not uses_onednn(lambda: linear(layer, x))
    with FlopCounterMode(display=False):
        assert not uses_onednn(lambda: linear(layer, x))
    assert not uses_onednn(lambda: torch.func.vmap(lambda sample: linear(layer, sample))(x))


def derivatives(layer: nn.Linear, x: Tensor, call: Callable[[nn.Linear, Tensor], Tensor]) -> list[Tensor]:
    """Return the gradients of x and the parameters, and second derivatives."""
    x = x.detach().clone().requires_grad_()
    inputs = [x, *layer.parameters()]
    total = call(layer, x).pow(3).mean()
    first = torch.autograd.grad(total, inputs, retain_graph=True)
    with_graph = torch.autograd.grad(total, inputs, create_graph=True)
    norm = torch.stack([grad.pow(2).sum() for grad in with_graph]).sum()
    return [*first, *with_graph, *torch.autograd.grad(norm, inputs)]


@pytest.mark.parametrize('bias', [False, True])
@pytest.mark.parametrize('x', INPUTS.values(), ids=INPUTS)
@pytest.mark.parametrize('width', [7, 20])
def test_derivatives_are_those_of_the_formula(x: Tensor, bias: bool, width: int) -> None:
    """Layers that are narrower and wider than their input transpose different operands."""
    if not x.numel():
        x = x.new_zeros(1, TOKENS, 12)
    torch.manual_seed(0)
    layer = nn.Linear(12, width, bias=bias)
    found = derivatives(layer, x, linear)
    expected = derivatives(layer.double(), x.double(), lambda layer, x: layer(x))
    for ours, reference in zip(found, expected, strict=True):
        assert ours.shape == reference.shape
        torch.testing.assert_close(ours.double(), reference, rtol=1e-4, atol=1e-7)


def test_some_inputs_without_gradient() -> None:
    layer, x = make_layer(), INPUTS['tokens']
    layer.weight.requires_grad_(False)
    linear(layer, x).sum().backward()
    assert layer.weight.grad is None
    torch.testing.assert_close(layer.bias.grad, torch.full((20,), 2.0 * TOKENS))
    inputs = x.clone().requires_grad_()
    layer.requires_grad_(False)
    linear(layer, inputs).sum().backward()
    torch.testing.assert_close(inputs.grad, layer.weight.sum(dim=0).expand_as(x))


def test_forward_mode_derivatives() -> None:
    layer, x = make_layer(), INPUTS['tokens']
    tangent, weight_tangent = torch.randn_like(x), torch.randn_like(layer.weight)
    with forward_ad.dual_level():
        # Not a parameter: creating one would drop the tangent.
        weight = layer._parameters.pop('weight')
        layer.weight = forward_ad.make_dual(weight.detach(), weight_tangent)
        found = forward_ad.unpack_dual(linear(layer, forward_ad.make_dual(x, tangent))).tangent
    expected = tangent @ weight.detach().t() + x @ weight_tangent.t()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('dynamic', [False, True])
def test_compiled_layers_use_the_same_operator(dynamic: bool) -> None:
    torch.compiler.reset()
    mlp, x = Mlp(12, 20), INPUTS['tokens']
    compiled = torch.compile(mlp, fullgraph=True, dynamic=dynamic, backend='aot_eager')
    compiled(x).square().sum().backward()
    assert uses_onednn(lambda: compiled(x)) == HAS_ONEDNN
    found = {name: parameter.grad for name, parameter in mlp.named_parameters()}
    mlp.zero_grad()
    mlp.double()(x.double()).square().sum().backward()
    for name, parameter in mlp.named_parameters():
        torch.testing.assert_close(found[name].double(), parameter.grad, rtol=1e-4, atol=1e-5)


class Doubled(nn.Linear):
    """Like a LoRA layer, it computes something else from its weight."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def test_changed_and_observed_layers_are_called() -> None:
    x = INPUTS['tokens']
    with torch.no_grad():
        layer = make_layer()
        expected = layer(x)
        doubled = Doubled(12, 20)
        doubled.load_state_dict(layer.state_dict())
        torch.testing.assert_close(linear(doubled, x), 2 * expected)
        torch.testing.assert_close(linear_gelu(doubled, x), F.gelu(2 * expected))
        seen: list[Tensor] = []
        layer.register_forward_hook(lambda _, __, out: seen.append(out))
        found = linear_gelu(layer, x)
    # The hook sees the output of the layer, before the GELU.
    torch.testing.assert_close(seen, [expected])
    torch.testing.assert_close(found, F.gelu(expected))


def test_weights_changed_in_place_are_used() -> None:
    """Also those changed through ``.data``, which has no version counter: nothing of the weight is cached."""
    layer, x = make_layer(), INPUTS['tokens']
    with torch.no_grad():
        linear(layer, x)
        layer.weight.data.mul_(2)
        torch.testing.assert_close(linear(layer, x), F.linear(x, layer.weight, layer.bias))


def test_flop_counters_count_the_product() -> None:
    mlp, x = Mlp(12, 20), INPUTS['tokens']
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        mlp(x)
    assert counter.get_total_flops() == 2 * (2 * x.shape[0] * TOKENS * 12 * 20)


@pytest.mark.parametrize('family', ['InLineDeiT', 'InLineSwin', 'InLineCSwin'])
def test_backbones_agree_with_float64(family: str) -> None:
    """Without gradients, oneDNN computes the first layer of each MLP, and others with enough tokens."""
    torch.manual_seed(0)
    model, image = build(family).eval(), torch.randn(1, 3, 100, 132)
    with torch.no_grad():
        assert uses_onednn(lambda: model(image)) == HAS_ONEDNN
        found = model(image)
        expected = model.double()(image.double())
    for ours, reference in zip(found, expected, strict=True):
        assert (ours - reference).norm() < 1e-5 * reference.norm()
