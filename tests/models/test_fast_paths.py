"""Fast paths give way to changed or observed layers, and the cache of window masks does not leak."""

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils import parametrizations, parametrize, prune

from inline.models import block as block_module
from inline.models.block import Block, Mlp
from inline.models.layers import fast_paths, swin_windows
from inline.models.mixers import AttentionInputs, AttentionMixer, InLineMixer, SoftmaxMixer, build_mixer
from tests.models.contract import Config

HW = (6, 8)


class ReturnsValues(AttentionMixer):
    """A mixer of a user, whose attention output is the output of the qkv layer itself."""

    def attend(self, inputs: AttentionInputs) -> Tensor:
        return inputs.v

    def weights(self, inputs: AttentionInputs, queries: slice = slice(None)) -> Tensor:
        return torch.eye(inputs.v.shape[1]).expand(1, 1, -1, -1)[:, :, queries]

    def local(self, inputs: AttentionInputs) -> Tensor:
        return torch.ones_like(inputs.v)


MIXERS: dict[str, Callable[[], AttentionMixer]] = {
    'inline': lambda: InLineMixer(8, 2),
    'inline with lepe': lambda: InLineMixer(8, 2, lepe=True, mean_before_norm=True),
    'inline stripes': lambda: InLineMixer(8, 2, lepe=True, split_size=3),
    'softmax windows': lambda: SoftmaxMixer(8, 2, window_size=4, shift=True, relative_position=True),
    'softmax reduced': lambda: SoftmaxMixer(8, 2, sr_ratio=2),
    'softmax stripes': lambda: SoftmaxMixer(8, 2, split_size=3, lepe=True),
    'flatten': lambda: build_mixer({'type': 'FLatten'}, 8, 2),
    'user': lambda: ReturnsValues(8, 2),
}


@pytest.fixture(autouse=True)
def large_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tensors take the fast paths of large ones."""
    monkeypatch.setattr(block_module, 'INPLACE_FROM', 0)
    monkeypatch.setattr(block_module, 'CHUNK_ABOVE', 0)
    monkeypatch.setattr(block_module, 'CHUNK_SIZE', 32)


def make_block(kind: str) -> Block:
    torch.manual_seed(0)
    return Block(8, MIXERS[kind](), mlp_ratio=2, drop_path=0.0).eval()


def tokens() -> Tensor:
    return torch.randn(2, HW[0] * HW[1], 8, generator=torch.Generator().manual_seed(1))


def record(block: Block, register: Callable[[Callable[..., None]], Any]) -> list[Tensor]:
    """Outputs of the hooked modules as they are after the whole forward pass."""
    seen: list[Tensor] = []

    def hook(_module: nn.Module, _args: Any, out: Any) -> None:
        if isinstance(out, Tensor):
            seen.append(out)

    handle = register(hook)
    block(tokens(), HW)
    handle.remove()
    return seen


@pytest.mark.parametrize('kind', MIXERS)
def test_hooks_see_the_same_outputs_without_gradients(kind: str) -> None:
    block = make_block(kind)
    for name, module in block.named_modules():
        expected = record(block, module.register_forward_hook)
        with torch.no_grad():
            seen = record(block, module.register_forward_hook)
        assert len(seen) == len(expected), name
        for ours, theirs in zip(seen, expected, strict=True):
            torch.testing.assert_close(ours, theirs, msg=name)


@pytest.mark.parametrize('kind', MIXERS)
def test_global_hooks_see_the_same_outputs_without_gradients(kind: str) -> None:
    block = make_block(kind)
    expected = record(block, nn.modules.module.register_module_forward_hook)
    with torch.no_grad():
        seen = record(block, nn.modules.module.register_module_forward_hook)
    assert len(seen) == len(expected) > 5
    for ours, theirs in zip(seen, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_residual_adds_are_in_place_without_hooks() -> None:
    block, x = make_block('inline'), tokens()
    with torch.no_grad():
        for branch, last in ((block.mixer, block.mixer.proj), (block.mlp, block.mlp.fc2)):
            out = torch.randn_like(x)
            assert block._add_residual(x, out, branch, last) is out
            handle = last.register_forward_hook(lambda *_: None)
            assert block._add_residual(x, out, branch, last) is not out
            handle.remove()
    out = torch.randn_like(x)
    assert block._add_residual(x, out, block.mlp, block.mlp.fc2) is not out


class DoubledLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class DoubledConv1d(nn.Conv1d):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class DoubledConv2d(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


def double_by_subclass(layer: nn.Module) -> None:
    layer.__class__ = {nn.Linear: DoubledLinear, nn.Conv1d: DoubledConv1d, nn.Conv2d: DoubledConv2d}[
        type(layer)
    ]


def double_by_instance(layer: nn.Module) -> None:
    forward = layer.forward
    layer.forward = lambda x: 2 * forward(x)


def double_by_parametrization(layer: nn.Module) -> None:
    parametrize.register_parametrization(layer, 'weight', Doubled())
    if layer.bias is not None:
        parametrize.register_parametrization(layer, 'bias', Doubled())


CHANGES: dict[str, Callable[[nn.Module], Any]] = {
    'subclass': double_by_subclass,
    'instance-level forward': double_by_instance,
    'forward hook': lambda layer: layer.register_forward_hook(lambda *args: 2 * args[2]),
    'parametrisation': double_by_parametrization,
}
# Mixers on maps whose tokens outnumber their channels, and a layer that a fast path bypasses.
LAYERS: list[tuple[Config, str]] = [
    ({'type': 'InLine'}, 'qkv'),
    ({'type': 'InLine', 'split_size': 3}, 'qkv'),
    ({'type': 'InLine'}, 'proj'),
    ({'type': 'InLine'}, 'residual.fc1'),
    ({'type': 'InLine'}, 'residual.fc2'),
    ({'type': 'InLine', 'lepe': True}, 'lepe.conv'),
    ({'type': 'InLine', 'lepe': True, 'split_size': 3}, 'lepe.conv'),
    ({'type': 'Softmax', 'sr_ratio': 2}, 'qkv'),
    ({'type': 'Softmax', 'split_size': 3, 'lepe': True}, 'lepe.conv'),
    ({'type': 'FLatten'}, 'conv'),
    ({'type': 'FLatten', 'split_size': 3}, 'conv'),
    ({'type': 'PolaFormer', 'split_size': 3}, 'conv'),
    ({'type': 'PolaFormer', 'sr_ratio': 2}, 'qkv'),
    ({'type': 'RALA'}, 'gate'),
    ({'type': 'MHLA', 'split_size': 3}, 'conv'),
    ({'type': 'Nystrom', 'conv_size': 3}, 'conv'),
    ({'type': 'Nystrom', 'conv_size': 3, 'split_size': 3}, 'conv'),
    ({'type': 'Nystrom', 'conv_size': 5, 'conv_axes': 'sequence', 'split_size': 3}, 'conv'),
]


@pytest.mark.parametrize('change', CHANGES)
@pytest.mark.parametrize(('config', 'name'), LAYERS, ids=lambda value: str(value))
def test_a_changed_layer_is_not_bypassed(config: Config, name: str, change: str) -> None:
    """Twice the output of a layer is what twice its weight and bias give."""
    torch.manual_seed(0)
    expected = build_mixer(config, 8, 2).double()
    changed = copy.deepcopy(expected)
    with torch.no_grad():
        for parameter in expected.get_submodule(name).parameters():
            parameter *= 2
    CHANGES[change](changed.get_submodule(name))
    x = tokens().double()
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            torch.testing.assert_close(changed(x, HW, x), expected(x, HW, x), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize('change', CHANGES)
@pytest.mark.parametrize('name', ['fc1', 'fc2'])
def test_chunks_do_not_bypass_a_changed_layer_of_an_mlp(name: str, change: str) -> None:
    torch.manual_seed(0)
    expected = Mlp(8, 16).double()
    changed = copy.deepcopy(expected)
    with torch.no_grad():
        for parameter in expected.get_submodule(name).parameters():
            parameter *= 2
    CHANGES[change](changed.get_submodule(name))
    with torch.no_grad():
        x = tokens().double()
        torch.testing.assert_close(changed(x), expected(x))


@pytest.mark.parametrize('method', ['weight norm', 'pruning'])
def test_reparametrized_queries_and_keys_are_trained(method: str) -> None:
    """The parameters that replace the weight of ``qkv`` get gradients."""
    mixer = InLineMixer(8, 2)
    if method == 'pruning':
        prune.l1_unstructured(mixer.qkv, 'weight', amount=0.5)
    else:
        parametrizations.weight_norm(mixer.qkv)
    mixer(tokens(), HW).square().sum().backward()
    assert all(parameter.grad is not None for parameter in mixer.qkv.parameters())


def test_a_global_hook_sees_qkv_once() -> None:
    mixer, seen = InLineMixer(8, 2), []
    handle = nn.modules.module.register_module_forward_hook(lambda *args: seen.append(args[0]))
    mixer(tokens(), HW)
    handle.remove()
    assert seen.count(mixer.qkv) == 1


def test_a_tensor_subclass_as_weight_is_not_sliced() -> None:
    class Quantized(Tensor):
        pass

    linear = nn.Linear(4, 4)
    assert fast_paths.is_plain(linear, nn.Linear)
    linear.weight = nn.Parameter(linear.weight.detach().as_subclass(Quantized))
    assert not fast_paths.is_plain(linear, nn.Linear)


@pytest.fixture
def empty_cache() -> Iterator[dict[Any, Tensor]]:
    before = dict(fast_paths._cache)
    fast_paths._cache.clear()
    yield fast_paths._cache
    fast_paths._cache.clear()
    fast_paths._cache.update(before)


CPU = torch.device('cpu')
SHIFTED = swin_windows((9, 13), 4, shifted=True)


def test_masks_of_a_size_are_built_once(empty_cache: dict[Any, Tensor]) -> None:
    first = SHIFTED.attention_mask(CPU)
    assert first is not None
    assert swin_windows((9, 13), 4, shifted=True).attention_mask(CPU) is first
    assert swin_windows((9, 14), 4, shifted=True).attention_mask(CPU) is not first
    assert len(empty_cache) == 2


def test_the_cache_is_bounded(empty_cache: dict[Any, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    for width in range(8, 60):
        swin_windows((8, width), 4, shifted=True).attention_mask(CPU)
    assert len(empty_cache) == fast_paths.MAX_CACHED
    empty_cache.clear()
    monkeypatch.setattr(fast_paths, 'MAX_CACHED_NUMEL', 10)
    assert SHIFTED.attention_mask(CPU) is not None
    assert not empty_cache


@pytest.mark.usefixtures('empty_cache')
def test_a_mask_built_in_inference_mode_can_be_used_in_training() -> None:
    mixer, x = MIXERS['softmax windows'](), tokens()
    with torch.inference_mode():
        mixer(x, HW)
    mixer(x, HW).sum().backward()
    assert mixer.position.weight.grad is not None


@pytest.mark.slow
def test_traced_masks_are_not_cached(empty_cache: dict[Any, Tensor]) -> None:
    mixer, x = MIXERS['softmax windows']().eval(), tokens()
    program = torch.export.export(mixer, (x, HW))
    with FakeTensorMode(allow_non_fake_inputs=True):
        SHIFTED.attention_mask(CPU)
    assert not empty_cache
    expected = mixer(x, HW)
    assert all(type(mask) is Tensor for mask in empty_cache.values())
    torch.testing.assert_close(program.module()(x, HW), expected)
    # And a cached mask does not enter a trace.
    torch.testing.assert_close(torch.export.export(mixer, (x, HW)).module()(x, HW), expected)


def test_the_cache_is_not_part_of_a_module() -> None:
    mixer, x = MIXERS['softmax windows'](), tokens()
    size, keys = len(pickle.dumps(mixer)), set(mixer.state_dict())
    expected = mixer(x, HW)
    assert len(pickle.dumps(mixer)) == size
    assert set(mixer.state_dict()) == keys
    torch.testing.assert_close(copy.deepcopy(mixer)(x, HW), expected)
    torch.testing.assert_close(pickle.loads(pickle.dumps(mixer))(x, HW), expected)


def test_a_changed_relative_position_table_is_used_immediately() -> None:
    """Only the index is cached, so changes that bypass autograd's version counter are seen."""
    mixer, x = MIXERS['softmax windows']().eval(), tokens()
    with torch.no_grad():
        before = mixer(x, HW)
        mixer.position.weight.data.copy_(torch.randn_like(mixer.position.weight))
        assert not torch.allclose(mixer(x, HW), before)


def test_exported_programs_keep_the_path_without_queries_and_keys() -> None:
    """torch.export traces submodules through a proxy, which must still count as a plain linear layer."""
    mixer, x = InLineMixer(8, 2).eval(), tokens()
    program = torch.export.export(mixer, (x, HW))
    linears = [node for node in program.graph.nodes if node.target is torch.ops.aten.linear.default]
    # The values and the output projection; not queries and keys.
    shapes = sorted(node.meta['val'].shape[-1] for node in linears)
    assert shapes == [8, 8]
