"""Tools of PyTorch and others work on a plain backbone of every family."""

import copy
import io
import os
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn.utils import parametrizations

from inline import InLineBackbone
from inline.models.block import Block
from inline.models.layers import ConvEmbed, PatchMerging, PositionEmbedding

pytestmark = pytest.mark.slow
STAGES = {'embed_dims': (8, 16), 'num_heads': (2, 4), 'mlp_ratios': (2, 2)}
# Every kind of block that the family has: InLine, and softmax in windows, shifted windows or stripes.
ARCHS: dict[str, dict[str, Any]] = {
    'deit': {'embed_dims': 16, 'depth': 1, 'num_heads': 2},
    'pvt': {**STAGES, 'depths': (1, 1)},
    'swin': {**STAGES, 'depths': (1, 2), 'inline_depths': (1, 0)},
    'cswin': {**STAGES, 'depths': (1, 1), 'inline_depths': (1, 0)},
}
# For exporters that take seconds per block.
STAGE = {'embed_dims': (8,), 'num_heads': (4,), 'mlp_ratios': (2,)}
ONE_STAGE = {
    'deit': ARCHS['deit'],
    'pvt': {**STAGE, 'depths': (1,)},
    'swin': {**STAGE, 'depths': (2,), 'inline_depths': (1,)},
    'cswin': {**STAGE, 'depths': (2,), 'inline_depths': (1,)},
}
SIZE = (2, 3, 64, 96)
# Batch, height and width differ from SIZE, also to sides that are no multiple of a stride or a window.
OTHER_SIZES = ((1, 3, 64, 64), (3, 3, 75, 130), (1, 3, 33, 40))
all_families = pytest.mark.parametrize('family', ARCHS)


def build(family: str, seed: int = 0, archs: dict[str, Any] = ARCHS, **options: Any) -> InLineBackbone:
    torch.manual_seed(seed)
    model = InLineBackbone(family, archs[family], img_size=64, num_classes=5, **options).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # Larger than at initialisation, where attention hardly affects the outputs.
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def image(*size: int) -> Tensor:
    return torch.randn(size or SIZE, generator=torch.Generator().manual_seed(1))


def check(run: Callable[[Tensor], Any], model: nn.Module, *sizes: tuple[int, ...]) -> None:
    for size in sizes:
        x = image(*size)
        with torch.no_grad():
            torch.testing.assert_close(run(x), model(x), rtol=1e-3, atol=1e-4)


def onnx_runner(program: Any) -> Callable[[Tensor], Tensor]:
    os.environ.setdefault('ORT_DISABLE_TELEMETRY', '1')
    import onnxruntime

    content = program.model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=['CPUExecutionProvider'])
    (name,) = (node.name for node in session.get_inputs())
    return lambda x: torch.from_numpy(session.run(None, {name: x.numpy()})[0])


# One family: the tests of torch.export and of dynamic shapes cover the others.
@pytest.mark.parametrize('family', ['swin'])
def test_onnx_export_with_static_shapes(family: str) -> None:
    model = build(family, archs=ONE_STAGE)
    program = torch.onnx.export(model, (image(),), dynamo=True, verbose=False)
    check(onnx_runner(program), model, SIZE)


# With and without a class token. Windows take long; tests/apis/export/test_formats.py exports them.
@pytest.mark.exhaustive
@pytest.mark.parametrize('family', ['deit', 'pvt'])
def test_onnx_export_with_dynamic_shapes(family: str) -> None:
    model = build(family, archs=ONE_STAGE)
    shapes = ({0: 'batch', 2: 'height', 3: 'width'},)
    program = torch.onnx.export(model, (image(),), dynamo=True, dynamic_shapes=shapes, verbose=False)
    check(onnx_runner(program), model, SIZE, *OTHER_SIZES)


@all_families
@pytest.mark.filterwarnings('ignore::DeprecationWarning', 'ignore::torch.jit.TracerWarning')
def test_jit_trace_with_gradients_runs_at_any_size(family: str) -> None:
    model = build(family)
    # The tracer also compares the trace with one that it makes without gradients.
    traced = torch.jit.trace(model, image())
    check(traced, model, SIZE, (5, *SIZE[1:]), *OTHER_SIZES)
    traced(image()).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    file = io.BytesIO()
    torch.jit.save(traced, file)
    file.seek(0)
    check(torch.jit.load(file), model, SIZE)


# Strict mode, which compiles, is slow and therefore tested with the family that has most kinds of blocks.
@pytest.mark.parametrize(('family', 'strict'), [*((family, False) for family in ARCHS), ('swin', True)])
def test_torch_export_with_static_shapes(family: str, strict: bool) -> None:
    model = build(family, archs=ONE_STAGE if strict else ARCHS)
    check(torch.export.export(model, (image(),), strict=strict).module(), model, SIZE)


# One family, because it is slow: without strict mode, the tests of the ONNX exporter cover all.
@pytest.mark.exhaustive
@pytest.mark.parametrize('family', ['swin'])
def test_strict_torch_export_with_dynamic_shapes(family: str) -> None:
    model = build(family, archs=ONE_STAGE)
    shapes = ({0: Dim('batch'), 2: Dim('height', min=33, max=4096), 3: Dim('width', min=33, max=4096)},)
    program = torch.export.export(model, (image(),), dynamic_shapes=shapes, strict=True)
    check(program.module(), model, SIZE, *OTHER_SIZES)


class BlockTracer(torch.fx.Tracer):
    """These modules branch on sizes, so they stay calls in the graph."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        leaves = Block | ConvEmbed | PatchMerging | PositionEmbedding
        return isinstance(m, leaves) or super().is_leaf_module(m, module_qualified_name)


@all_families
def test_fx_traces_between_blocks(family: str) -> None:
    model = build(family)
    traced = torch.fx.GraphModule(model, BlockTracer().trace(model))
    blocks = [node for node in traced.graph.nodes if '.blocks.' in str(node.target)]
    assert len(blocks) == sum(isinstance(module, Block) for module in model.modules())
    check(traced, model, SIZE, *OTHER_SIZES)


def loss(model: nn.Module, parameters: dict[str, Tensor], x: Tensor) -> Tensor:
    return functional_call(model, parameters, (x,)).square().mean()


def gradients(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    parameters = dict(model.named_parameters())
    values = torch.autograd.grad(loss(model, parameters, x), list(parameters.values()))
    return dict(zip(parameters, values, strict=True))


@all_families
def test_func_grad_and_gradients_per_sample(family: str) -> None:
    model, x = build(family).double(), image().double()
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    torch.testing.assert_close(grad(lambda p: loss(model, p, x))(parameters), gradients(model, x))
    per_sample = vmap(grad(lambda p, x: loss(model, p, x[None])), in_dims=(None, 0))(parameters, x)
    for i in range(len(x)):
        of_one = {name: values[i] for name, values in per_sample.items()}
        torch.testing.assert_close(of_one, gradients(model, x[i : i + 1]))


@all_families
def test_vmap_over_the_parameters_of_an_ensemble(family: str) -> None:
    models, x = [build(family, seed).double() for seed in range(3)], image().double()
    parameters, buffers = stack_module_state(models)
    skeleton = copy.deepcopy(models[0]).to('meta')

    def run(parameters: dict[str, Tensor], buffers: dict[str, Tensor]) -> Tensor:
        return functional_call(skeleton, (parameters, buffers), (x,))

    expected = torch.stack([model(x) for model in models])
    assert not torch.allclose(expected[0], expected[1])
    with torch.no_grad():
        torch.testing.assert_close(vmap(run)(parameters, buffers), expected)
    outs = vmap(run)(parameters, buffers)
    torch.testing.assert_close(outs, expected)
    stacked = torch.autograd.grad(outs.square().sum(), list(parameters.values()))
    for i, model in enumerate(models):
        alone = torch.autograd.grad(expected[i].square().sum(), list(model.parameters()), retain_graph=True)
        torch.testing.assert_close([values[i] for values in stacked], list(alone))


def test_vmap_over_some_parameters_without_gradients() -> None:
    """A result that is equal for all models is not overwritten with one that differs."""
    model, x = build('pvt').double(), image().double()
    name = 'backbone.stages.0.blocks.0.mixer.residual.fc2.weight'
    values = torch.stack([model.get_parameter(name).detach() * scale for scale in (1, 2)])
    with torch.no_grad():
        outs = vmap(lambda value: functional_call(model, {name: value}, (x,)))(values)
        for value, out in zip(values, outs, strict=True):
            torch.testing.assert_close(out, functional_call(model, {name: value}, (x,)))


@all_families
def test_forward_mode_derivatives_with_the_math_kernel(family: str) -> None:
    """PyTorch has no forward-mode derivative of its fused attention kernel."""
    model, x = build(family).double(), image().double()
    tangent = torch.randn_like(x)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        _, derivative = torch.func.jvp(model, (x,), (tangent,))
    step = 1e-6 * tangent
    with torch.no_grad():
        expected = (model(x + step) - model(x - step)) / 2e-6
    torch.testing.assert_close(derivative, expected, rtol=1e-5, atol=1e-7)


@all_families
def test_deepcopy_and_pickle_after_a_forward_pass(family: str) -> None:
    model, x = build(family), image()
    expected = model(x)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(copied(x), expected, rtol=0, atol=0)
        next(copied.parameters()).data.zero_()
    torch.testing.assert_close(model(x), expected, rtol=0, atol=0)


# One family: tests/models/test_compile.py traces the forward pass of all of them.
@pytest.mark.parametrize('family', ['swin'])
def test_compiles_to_one_graph(family: str) -> None:
    torch._dynamo.reset()
    model, x = build(family), image()
    # Traces forward and backward pass; the default backend would also generate code.
    compiled = torch.compile(model, backend='aot_eager', fullgraph=True)
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    found = torch.autograd.grad(compiled(x).square().mean(), list(model.parameters()))
    for value, expected in zip(found, gradients(model, x).values(), strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-3, atol=1e-4)


@all_families
def test_peft_trains_the_adapters_that_it_adds(family: str) -> None:
    from peft import LoraConfig, get_peft_model

    base, x = build(family), image()
    weights = copy.deepcopy(base.state_dict())
    expected = base(x).detach()
    model = get_peft_model(base, LoraConfig(r=2, target_modules=['qkv', 'mixer.proj'])).eval()
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-5)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    blocks = sum(isinstance(module, Block) for module in base.modules())
    assert len(trained) == 4 * blocks
    assert all('lora_' in name for name in trained)
    optimizer = torch.optim.SGD(trained.values(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    # A is trained from the second step on, because B starts at zero.
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in trained.values())
    for name, value in model.named_parameters():
        if name not in trained:
            original = name.removeprefix('base_model.model.').replace('.base_layer', '')
            torch.testing.assert_close(value, weights[original], rtol=0, atol=0)
    with torch.no_grad():
        adapted = model(x)
        assert not torch.allclose(adapted, expected, atol=1e-3)
        torch.testing.assert_close(model.merge_and_unload()(x), adapted, rtol=1e-3, atol=1e-4)


@all_families
@pytest.mark.parametrize('kind', ['weight_norm', 'orthogonal'])
def test_parametrized_queries_and_keys(family: str, kind: str) -> None:
    model, x = build(family).double(), image().double()
    plain = copy.deepcopy(model)
    layers = {name: m for name, m in model.named_modules() if name.endswith('.qkv')}
    for name, layer in layers.items():
        getattr(parametrizations, kind)(layer)
        with torch.no_grad():
            if kind == 'weight_norm':
                layer.parametrizations.weight.original0.mul_(2)
            plain.get_submodule(name).weight.copy_(layer.weight)
    assert not torch.allclose(build(family).double()(x), plain(x))
    for with_grad in (False, True):
        with torch.set_grad_enabled(with_grad):
            torch.testing.assert_close(model(x), plain(x))
    model(x).sum().backward()
    assert all(p.grad is not None for layer in layers.values() for p in layer.parameters())


@all_families
@pytest.mark.filterwarnings('ignore::DeprecationWarning')
def test_dynamic_quantization_of_linear_layers(family: str) -> None:
    model, x = build(family), image()
    quantized = torch.ao.quantization.quantize_dynamic(model, {nn.Linear})
    assert not any(type(module) is nn.Linear for module in quantized.modules())
    with torch.no_grad():
        expected, found = model(x), quantized(x)
    # Int8 weights and activations: close, and not the float32 result of a path that bypasses them.
    error = ((found - expected).norm() / expected.norm()).item()
    assert 1e-5 < error < 0.1


@all_families
@pytest.mark.parametrize('training', [False, True])
def test_meta_device(family: str, training: bool) -> None:
    """A tensor on the wrong device, `.item()` or a data-dependent shape would raise."""
    model = build(family, drop_path_rate=0.1).to('meta').train(training)
    out = model(image().to('meta'))
    assert out.is_meta
    assert out.shape == (SIZE[0], 5)
    out.sum().backward()
    assert all(parameter.grad.is_meta for parameter in model.parameters())
    with torch.no_grad():
        assert model(torch.empty(3, 3, 75, 130, device='meta')).shape == (3, 5)
