"""Products of batches of matrices through oneDNN: results and derivatives of the formula."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from inline.ops import inline_attention_from_tokens, inline_attention_from_tokens_naive
from inline.ops.products import HAS_ONEDNN, batched_product

OPERATOR = 'mkldnn::_linear_pointwise'


def count_onednn(run: Callable[[], object]) -> int:
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        run()
    return sum(event.count for event in trace.key_averages() if event.key == OPERATOR)


def operands(batch: int, tokens: int, channels: int, columns: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    shapes = (batch, tokens, channels), (batch, columns, channels), (batch, 1, columns)
    x, weight, bias = (torch.randn(shape, requires_grad=True) for shape in shapes)
    return x, weight, bias


SHAPES = {
    'one image': (1, 128, 96, 96),
    'three images': (3, 96, 128, 128),
    'wide': (2, 64, 72, 256),
    'small': (2, 16, 8, 4),
    'no image': (0, 128, 128, 128),
}


@pytest.mark.parametrize('has_bias', [False, True])
@pytest.mark.parametrize('shape', SHAPES.values(), ids=SHAPES)
def test_results_and_derivatives_are_those_of_the_formula(
    shape: tuple[int, int, int, int], has_bias: bool
) -> None:
    x, weight, bias = operands(*shape)
    inputs = [x, weight, bias] if has_bias else [x, weight]

    def run(multiply: Callable[..., Tensor], *args: Tensor) -> list[Tensor]:
        out = multiply(*args)
        total = out.sin().sum()
        first = torch.autograd.grad(total, args, create_graph=True)
        second = torch.autograd.grad(sum(grad.square().sum() for grad in first), args)
        with torch.no_grad():
            return [out.detach(), *(grad.detach() for grad in first), *second, multiply(*args)]

    def formula(x: Tensor, weight: Tensor, bias: Tensor | float = 0.0) -> Tensor:
        return torch.einsum('bnc,bdc->bnd', x, weight) + bias

    found = run(batched_product, *inputs)
    expected = run(formula, *(tensor.detach().double().requires_grad_() for tensor in inputs))
    for ours, reference in zip(found, expected, strict=True):
        assert ours.shape == reference.shape
        assert (ours - reference).norm() <= 1e-5 * reference.norm()


def test_onednn_is_used_for_large_matrices_in_float32() -> None:
    x, weight, bias = operands(3, 96, 128, 128)
    with torch.no_grad():
        assert count_onednn(lambda: batched_product(x, weight, bias)) == 3 * HAS_ONEDNN
        assert not count_onednn(lambda: batched_product(x[:, :32], weight[:, :32]))
        assert not count_onednn(lambda: batched_product(x[..., :8], weight[..., :8]))
        assert not count_onednn(lambda: batched_product(x.double(), weight.double()))
        with FlopCounterMode(display=False) as counter:
            assert not count_onednn(lambda: batched_product(x, weight))
        assert counter.get_total_flops() == 2 * 3 * 96 * 128 * 128
        with torch.autocast('cpu', torch.bfloat16):
            assert not count_onednn(lambda: batched_product(x, weight))
    out = batched_product(x, weight, bias)
    assert count_onednn(lambda: out.sum().backward()) == 2 * 3 * HAS_ONEDNN


def test_the_operator_is_valid() -> None:
    x, weight, bias = operands(2, 5, 4, 3)
    for args in ((x, weight, bias), (x, weight, None)):
        torch.library.opcheck(torch.ops.inline.batched_linear, args)


@pytest.mark.parametrize('batch', [1, 2])
@pytest.mark.parametrize('columns', [64, 128])
def test_attention_from_tokens_agrees_with_explicit_weights(batch: int, columns: int) -> None:
    """Large enough for oneDNN, with a mean of several standard deviations; outputs and gradients."""
    torch.manual_seed(0)
    tokens, channels = 256, 128
    x = torch.randn(batch, tokens, channels) + 3 * torch.randn(channels)
    v = torch.randn(batch, tokens, columns) + 3 * torch.randn(columns)
    w_q, w_k = (torch.randn(columns, channels) * channels**-0.5 for _ in range(2))
    b_q = torch.randn(columns)

    def run(op: Callable[..., Tensor], *args: Tensor) -> list[Tensor]:
        args = tuple(arg.detach().requires_grad_() for arg in args)
        out = op(*args, num_heads=4)
        return [out.detach(), *torch.autograd.grad(out.sin().sum(), args)]

    args = (x, v, w_q, w_k, b_q)
    if HAS_ONEDNN:
        with torch.no_grad():
            assert count_onednn(lambda: inline_attention_from_tokens(*args, num_heads=4)) == 2 * batch
    found = run(inline_attention_from_tokens, *args)
    expected = run(inline_attention_from_tokens_naive, *(arg.double() for arg in args))
    for ours, reference in zip(found, expected, strict=True):
        assert (ours - reference).norm() <= 1e-4 * reference.norm()


@pytest.mark.parametrize('dynamic', [False, True])
def test_compiled_attention_uses_the_same_operator(dynamic: bool) -> None:
    torch.compiler.reset()

    def attend(x: Tensor, w_q: Tensor, w_k: Tensor) -> Tensor:
        return inline_attention_from_tokens(x, x, w_q, w_k, num_heads=4)

    compiled = torch.compile(attend, fullgraph=True, dynamic=dynamic, backend='aot_eager')
    w_q, w_k = (torch.randn(128, 128, requires_grad=True) for _ in range(2))
    for batch, tokens in ((2, 256), (3, 300)):
        x = torch.randn(batch, tokens, 128, requires_grad=True)
        results: dict[str, tuple[Tensor, ...]] = {}

        def step(function: Callable[..., Tensor], x: Tensor, results: dict[str, tuple[Tensor, ...]]) -> None:
            out = function(x, w_q, w_k)
            results[str(function)] = torch.autograd.grad(out.sin().sum(), (x, w_q, w_k))

        for function in (compiled, attend):
            # Two products forward, and two for the gradients of each.
            assert count_onednn(partial(step, function, x, results)) == 6 * batch * HAS_ONEDNN
        found, expected = results.values()
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
        with torch.no_grad():
            assert count_onednn(lambda x=x: compiled(x, w_q, w_k)) == 2 * batch * HAS_ONEDNN
