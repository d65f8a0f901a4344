"""torch.compile: one graph, one program for all sizes, equal blocks compiled once, results of eager mode."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.fx.experimental._config as shape_config
from torch import Tensor, nn
from torch.utils._sympy.functions import FloorDiv

from inline.models import InLineDeiT, InLinePVT
from inline.models.layers import stripes
from inline.models.mixers.registry import MIXERS
from inline.ops.local_residual import local_residual_naive
from tests.models.families import FAMILIES, build

STAGE = {'embed_dims': (8,), 'depths': (1,), 'num_heads': (2,), 'mlp_ratios': (2,)}
STAGES = {'embed_dims': (8, 16), 'depths': (1, 1), 'num_heads': (2, 2), 'mlp_ratios': (2, 2)}
SMALL: dict[str, dict[str, Any]] = {
    'InLineDeiT': {'embed_dims': 8, 'depth': 1, 'num_heads': 2},
    'InLinePVT': STAGES,
    # InLine, and shifted windows.
    'InLineSwin': {**STAGE, 'depths': (2,), 'inline_depths': (1,)},
    # A stage with InLine and a stage with stripes.
    'InLineCSwin': {**STAGES, 'inline_depths': (1, 0)},
}


@pytest.fixture(scope='module')
def compiler_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of these tests alone: programs in the user's cache may call earlier versions of operators."""
    return tmp_path_factory.mktemp('inductor')


@pytest.fixture(autouse=True)
def fresh_compiler(compiler_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    torch.manual_seed(0)
    monkeypatch.setenv('TORCHINDUCTOR_CACHE_DIR', str(compiler_cache))
    torch.compiler.reset()
    # Height and width that are equal in the first call are not one size.
    with shape_config.patch(use_duck_shape=False):
        yield
    torch.compiler.set_stance('default')


def small(family: str, *, all_outputs: bool = False, **options: Any) -> nn.Module:
    arch = SMALL[family]
    levels = range(len(arch.get('depths', (1,))))
    return build(family, arch=arch, out_indices=tuple(levels if all_outputs else levels[-1:]), **options)


def outputs_and_gradients(model: nn.Module, images: Tensor, source: nn.Module) -> list[Tensor]:
    outs = model(images)
    generator = torch.Generator().manual_seed(0)
    grads = [torch.randn(out.shape, generator=generator) for out in outs]
    return [*(out.detach() for out in outs), *torch.autograd.grad(outs, list(source.parameters()), grads)]


def use_quick_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the optimisation by the C++ compiler, which takes most of the time."""
    monkeypatch.setenv('TORCHINDUCTOR_DEBUG_COMPILE', '1')
    monkeypatch.setenv('TORCHINDUCTOR_COMPILE_THREADS', '1')


def assert_agrees(compiled: nn.Module, model: nn.Module, *shapes: tuple[int, int, int]) -> None:
    for batch, height, width in shapes:
        images = torch.randn(batch, 3, height, width)
        found, expected = (outputs_and_gradients(m, images, model) for m in (compiled, model))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_stripes_of_one_row_have_no_padding_whatever_the_size() -> None:
    """With symbols of their own, sizes cannot be compared; padding would switch off InLine's fast path."""

    def count_padded(x: Tensor) -> Tensor:
        tokens, hw = x.flatten(1, 2), (x.shape[1], x.shape[2])
        one, two = stripes(hw, 1)[0].with_new_sizes(tokens), stripes(hw, 2)[0].with_new_sizes(tokens + 1)
        return tokens.new_ones(1) * (one.is_padded + 2 * two.is_padded)

    images = torch.zeros(2, 6, 10, 4)
    assert torch.compile(count_padded, backend='eager', dynamic=True, fullgraph=True)(images) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    'family',
    [
        pytest.param(family, marks=() if family == 'InLinePVT' else pytest.mark.exhaustive)
        for family in FAMILIES
    ],
)
def test_one_program_for_all_sizes_and_batches(family: str) -> None:
    model = small(family)
    # aot_eager also traces the backward pass, which takes several times as long.
    backend = 'aot_eager' if family == 'InLineSwin' else 'eager'
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=backend)
    assert_agrees(compiled, model, (2, 128, 128))
    torch.compiler.set_stance('fail_on_recompile')
    # Maps that windows and stripes divide, and maps that they do not.
    assert_agrees(compiled, model, (3, 160, 96), (2, 100, 130))


@pytest.mark.exhaustive
@pytest.mark.parametrize('family', FAMILIES)
def test_inductor_compiles_one_program_for_all_sizes(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_quick_compiler(monkeypatch)
    model = small(family, all_outputs=True)
    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    assert_agrees(compiled, model, (2, 64, 64))
    torch.compiler.set_stance('fail_on_recompile')
    assert_agrees(compiled, model, (3, 96, 72), (2, 70, 100))


@pytest.mark.parametrize('family', ['InLineSwin', 'InLineCSwin'])
def test_sizes_of_maps_and_windows_are_symbols_of_their_own(family: str) -> None:
    """torch.compile needs minutes for sizes that are nested quotients of the sides of the image."""
    sizes = set()

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        for node in graph.graph.nodes:
            shape = getattr(node.meta.get('example_value'), 'shape', ())
            sizes.update(size.node.expr for size in shape if isinstance(size, torch.SymInt))
        return graph.forward

    arch = {**SMALL['InLineSwin'], 'embed_dims': (8, 16), 'depths': (1, 2), 'num_heads': (2, 2)}
    arch |= {'mlp_ratios': (2, 2), 'inline_depths': (1, 0)}
    model = build(family, arch=arch, out_indices=(1,))
    torch.compile(model, fullgraph=True, dynamic=True, backend=backend)(torch.randn(2, 3, 128, 96))
    # Besides the batch and the sides of the image: two maps, and the grids of windows.
    assert len(set().union(*(size.free_symbols for size in sizes))) > 7
    assert not any(size.has(FloorDiv) for size in sizes)


@pytest.mark.slow
def test_the_smallest_images_get_a_program_of_their_own() -> None:
    """Maps of a single token."""
    model = InLinePVT(
        {**STAGE, 'embed_dims': (4,) * 4, **dict.fromkeys(('depths', 'num_heads'), (1,) * 4)}
        | {'mlp_ratios': (1,) * 4}
    )
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend='eager')
    for side in (64, 32):
        images = torch.randn(2, 3, side, side)
        torch.testing.assert_close(compiled(images), model(images), rtol=1e-4, atol=1e-4)
    assert compiled(images)[-1].shape == (2, 4, 1, 1)


class Graphs:
    """A backend that runs graphs as they are and records which of their nested regions are called."""

    def __init__(self) -> None:
        self.regions: list[str] = []

    def __call__(self, graph: torch.fx.GraphModule, _: Any) -> Any:
        for node in graph.graph.nodes:
            if node.target is torch.ops.higher_order.invoke_subgraph:
                self.regions.append(node.args[1])
        return graph.forward


@pytest.mark.slow
@pytest.mark.parametrize('dynamic', [False, True])
@pytest.mark.parametrize('mixer', ['InLine', 'Softmax'])
def test_equal_blocks_are_compiled_once_for_inference(mixer: str, dynamic: bool) -> None:
    graphs, images = Graphs(), torch.randn(2, 3, 64, 64)
    arch = {**SMALL['InLineDeiT'], 'depth': 4}
    model = InLineDeiT(arch, img_size=64, drop_path_rate=0.3, mixers={'type': mixer}).eval()
    compiled = torch.compile(model, fullgraph=True, dynamic=dynamic, backend=graphs)
    with torch.no_grad():
        torch.testing.assert_close(compiled(images), model(images))
    assert len(graphs.regions) == 4
    assert len(set(graphs.regions)) == 1


def test_blocks_are_not_shared_if_gradients_are_needed() -> None:
    graphs = Graphs()
    model = InLineDeiT({**SMALL['InLineDeiT'], 'depth': 3}, img_size=64).eval()
    torch.compile(model, fullgraph=True, backend=graphs)(torch.randn(1, 3, 64, 64))
    assert graphs.regions == []


@pytest.mark.exhaustive
def test_gradients_of_equal_blocks_compiled_by_inductor_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor overwrote tensors that the backward pass of blocks in nested regions needs."""
    use_quick_compiler(monkeypatch)
    model = build('InLinePVT', arch={**STAGE, 'depths': (3,)}, out_indices=(0,))
    assert_agrees(torch.compile(model, fullgraph=True, dynamic=False), model, (2, 32, 32))


def test_blocks_with_hooks_are_compiled_with_them() -> None:
    graphs = Graphs()
    model = InLineDeiT({**SMALL['InLineDeiT'], 'depth': 3}, img_size=64).eval()
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        plain = model(images)[0]
        model.blocks[1].register_forward_hook(lambda *args: 3 * args[2])
        compiled = torch.compile(model, fullgraph=True, backend=graphs)
        torch.testing.assert_close(compiled(images), model(images))
        assert not torch.allclose(compiled(images)[0], plain)
    assert len(graphs.regions) == 2


@pytest.mark.slow
def test_dropped_paths_of_a_compiled_model_are_all_or_nothing() -> None:
    model = InLineDeiT({**SMALL['InLineDeiT'], 'depth': 2}, img_size=32, drop_path_rate=0.5)
    compiled = torch.compile(model, fullgraph=True, backend='eager')
    images = torch.randn(1, 3, 32, 32).expand(64, -1, -1, -1)
    outs = {tuple(out.flatten().tolist()) for out in compiled(images)[0].detach().round(decimals=4)}
    # Each of the two branches of the last block is dropped or kept.
    assert len(outs) == 4


@pytest.mark.parametrize('kernels', [1, 2])
@pytest.mark.parametrize('side', [3, 5])
@pytest.mark.parametrize('hw', [(1, 4), (4, 6)])
def test_operators_of_compiled_programs_are_valid(hw: tuple[int, int], side: int, kernels: int) -> None:
    """Shapes and strides of fake tensors, derivatives, dynamic sizes: checked by torch."""
    tokens = torch.randn(2, hw[0] * hw[1], 3, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(kernels, 3, side**2, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(3, dtype=torch.float64, requires_grad=True)
    operator = torch.ops.inline.depthwise_convolution
    torch.library.opcheck(operator, (tokens, weight, bias, *hw))
    torch.autograd.gradcheck(lambda *args: operator(*args, *hw), (tokens, weight, bias))
    if side == 3:
        expected = local_residual_naive(tokens, weight.expand(2, -1, -1), hw, bias=bias)
        torch.testing.assert_close(operator(tokens, weight, bias, *hw), expected)


def test_operators_of_linear_layers_and_patch_embeddings_are_valid() -> None:
    x, weight = (torch.randn(*shape, requires_grad=True) for shape in ((2, 5, 8), (4, 8)))
    torch.library.opcheck(torch.ops.inline.linear, (x, weight, None, False))
    image = torch.randn(2, 3, 9, 6, dtype=torch.float64, requires_grad=True)
    # CSwin's first embedding, and non-overlapping patches.
    for side, stride, padding in ((7, 4, 2), (4, 4, 0)):
        weight = torch.randn(2, 3, side, side, dtype=torch.float64, requires_grad=True)
        bias = torch.randn(2, dtype=torch.float64, requires_grad=True)
        operator = torch.ops.inline.padded_convolution
        torch.library.opcheck(operator, (image, weight, bias, stride, padding))
        torch.autograd.gradcheck(
            lambda *args, operator=operator, numbers=(stride, padding): operator(*args, *numbers),
            (image, weight, bias),
        )


@pytest.mark.slow
@pytest.mark.parametrize('hw', [(4, 6), (5, 3)])
def test_operators_of_patch_merging_are_valid(hw: tuple[int, int]) -> None:
    image = torch.randn(2, 3, *hw, dtype=torch.float64, requires_grad=True)
    merged = torch.ops.inline.merge_patches(image)
    # Swin concatenates the tokens of a patch column by column.
    padded = torch.nn.functional.pad(image, (0, hw[1] % 2, 0, hw[0] % 2))
    corners = [padded[:, :, row::2, column::2] for column in (0, 1) for row in (0, 1)]
    assert torch.equal(merged, torch.cat(corners, dim=1).permute(0, 2, 3, 1))
    torch.library.opcheck(torch.ops.inline.merge_patches, (image,))
    torch.autograd.gradcheck(torch.ops.inline.merge_patches, (image,))


@pytest.mark.slow
@pytest.mark.parametrize('mixer', MIXERS)
def test_every_mixer_compiles_to_one_graph(mixer: str) -> None:
    model = InLinePVT(STAGE, img_size=64, out_indices=(0,), mixers={'type': mixer}).eval()
    compiled = torch.compile(model, fullgraph=True, backend='eager')
    images = torch.randn(2, 3, 64, 32)
    torch.testing.assert_close(compiled(images), model(images), rtol=1e-4, atol=1e-5)


@pytest.mark.exhaustive
def test_windows_compiled_by_inductor_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and backward pass."""
    use_quick_compiler(monkeypatch)
    model = build('InLineSwin', arch={**STAGE, 'inline_depths': (0,)}, out_indices=(0,))
    assert_agrees(torch.compile(model, fullgraph=True, dynamic=False), model, (2, 40, 32))
