"""Checks of the Triton kernels in Triton's interpreter, run by test_triton.py in a process of their own.

TRITON_INTERPRET=1 INLINE_TRITON=1 python -m tests.ops.triton_interpreter [CHECK …]

The interpreter is chosen when a kernel is defined, so it cannot be switched on in a process of other tests.
"""

import contextlib
import csv
import io
import itertools
import re
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from benchmarks import gpu
from inline.models.mixers import InLineMixer
from inline.ops import local_residual, local_residual_naive, triton_local_residual, use_triton
from inline.ops.triton_local_residual import local_residual_triton

TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def make_inputs(
    dtype: torch.dtype, hw: tuple[int, int], prefix: int, batch: int, channels: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return v, a slice of a wider projection, weight, bias and a key mask."""
    torch.manual_seed(0)
    tokens = prefix + hw[0] * hw[1]
    v = torch.randn(batch, tokens, 3 * channels).to(dtype)[..., channels : 2 * channels]
    weight, bias = torch.randn(batch, channels, 9).to(dtype), torch.randn(channels).to(dtype)
    return v, weight, bias, torch.rand(batch, tokens) > 0.3


def run(op: Callable[..., Tensor], inputs: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Return the output and the gradient of every input, for a random cotangent."""
    leaves = [tensor.detach().to(dtype).requires_grad_() for tensor in inputs]
    out = op(*leaves)
    assert out.dtype == dtype
    cotangent = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    # Rounded as the tested op sees it.
    return [out, *torch.autograd.grad(out, leaves, cotangent.to(inputs[0].dtype).to(dtype))]


def assert_close(found: list[Tensor], expected: list[Tensor], dtype: torch.dtype, case: object) -> None:
    for index, (left, right) in enumerate(zip(found, expected, strict=True)):
        assert left.dtype == dtype, case
        assert left.shape == right.shape, case
        error = (left.double() - right).abs().max() / right.abs().max().clamp(min=1e-6)
        assert error <= TOLERANCES[dtype], f'{case}, result {index}: {error:.1e}'


def check_reference() -> None:
    """Outputs and gradients against the naive reference in float64, over shapes, dtypes, prefixes, masks."""
    sizes = itertools.cycle([(2, 3), (1, 1), (1, 6)])
    for hw, prefix, with_bias in itertools.product([(1, 1), (1, 5), (4, 1), (3, 5)], (0, 2), (False, True)):
        compare_with_naive(torch.float64, hw, prefix, *next(sizes), with_bias, masked=with_bias)
    for dtype, prefix in itertools.product((torch.float32, torch.float16, torch.bfloat16), (0, 1)):
        compare_with_naive(dtype, (4, 3), prefix, 2, 6, with_bias=prefix == 0, masked=prefix == 1)
    compare_with_naive(torch.float64, (3, 4), 1, 2, 3, with_bias=True, masked=False)
    compare_with_naive(torch.float64, (3, 4), 1, 2, 3, with_bias=False, masked=True)
    # Several blocks of tokens and of channels, the last ones not full.
    tokens, channels = triton_local_residual.BLOCK_TOKENS, triton_local_residual.BLOCK_CHANNELS
    for dtype, masked in zip(TOLERANCES, (True, False, True, False), strict=True):
        compare_with_naive(dtype, (6, tokens // 4 + 1), 1, 1, channels + 5, True, masked)


def compare_with_naive(
    dtype: torch.dtype,
    hw: tuple[int, int],
    prefix: int,
    batch: int,
    channels: int,
    with_bias: bool,
    masked: bool,
) -> None:
    v, weight, bias, key_mask = make_inputs(dtype, hw, prefix, batch, channels)
    mask = key_mask if masked else None
    inputs = [v, weight, *([bias] if with_bias else [])]
    results = []
    for op, precision in ((local_residual, dtype), (local_residual_naive, torch.float64)):

        def call(v: Tensor, weight: Tensor, bias: Tensor | None = None, op: Callable = op) -> Tensor:
            return op(v, weight, hw, bias=bias, key_mask=mask)

        results.append(run(call, inputs, precision))
    assert_close(*results, dtype, (dtype, hw, prefix, batch, channels, with_bias, masked))


def check_details() -> None:
    """Masked NaN, mixed dtypes under autocast, empty batches, inputs that do not fit together."""
    v, weight, bias, mask = make_inputs(torch.float32, (3, 4), 1, 2, 6)
    expected = local_residual_naive(v, weight, (3, 4), bias=bias, key_mask=mask)
    dirty = v.masked_fill(~mask[..., None], float('nan')).requires_grad_()
    out = local_residual(dirty, weight, (3, 4), bias=bias, key_mask=mask)
    torch.testing.assert_close(out, expected)
    (grad,) = torch.autograd.grad(out.sum(), dirty)
    assert grad.isfinite().all()
    assert (grad[~mask] == 0).all()
    assert (grad[:, 0] == 0).all()

    leaves = [v.bfloat16().requires_grad_(), weight.clone().requires_grad_(), bias.clone().requires_grad_()]
    with torch.autocast('cpu', torch.bfloat16):
        for tokens in (leaves[0], v):
            out = local_residual(tokens, leaves[1], (3, 4), bias=leaves[2])
            assert out.dtype == torch.bfloat16
    gradients = torch.autograd.grad(local_residual(*leaves[:2], (3, 4), bias=leaves[2]).sum(), leaves)
    assert [grad.dtype for grad in gradients] == [torch.bfloat16, torch.float32, torch.float32]

    empty = torch.zeros(0, 12, 6, requires_grad=True)
    out = local_residual(empty, torch.zeros(0, 6, 9), (3, 4))
    assert out.shape == (0, 12, 6)
    assert torch.autograd.grad(out.sum(), empty)[0].shape == empty.shape

    wrong: list[tuple[dict[str, object], str]] = [
        ({'weight': weight[:1]}, 'weight has shape (1, 6, 9), must be (2, 6, 9) for v (2, 13, 6)'),
        ({'bias': bias[:5]}, 'bias has shape (5,), must be (6,)'),
        ({'key_mask': mask[:, 1:]}, 'key_mask has shape (2, 12), must be (2, 13)'),
        ({'key_mask': mask.float()}, 'key_mask has dtype torch.float32, must be torch.bool'),
        ({'v': v.long()}, 'v has dtype torch.int64'),
        ({'weight': weight.to('meta')}, 'weight is on meta, must be on cpu'),
        ({'hw': (4, 4)}, '13 tokens cannot hold a map of 4×4'),
    ]
    for change, message in wrong:
        given = {'v': v, 'weight': weight, 'hw': (3, 4), 'bias': bias, 'key_mask': mask, **change}
        with pytest.raises(ValueError, match=re.escape(message)):
            local_residual_triton(**given)  # type: ignore[arg-type]


def check_compile() -> None:
    """torch's checks of custom operators, and a program with dynamic sizes, with Triton on and off."""
    v, weight, bias, mask = make_inputs(torch.float32, (3, 4), 1, 2, 6)
    # The operators take weights as (B, 9, C).
    weight = weight.transpose(1, 2).contiguous()
    leaves = [v.detach().requires_grad_(), weight.requires_grad_(), bias.requires_grad_()]
    torch.library.opcheck(triton_local_residual._local_residual, (*leaves, mask, 3, 4))
    with torch.no_grad():
        torch.library.opcheck(
            triton_local_residual._local_residual_backward, (torch.ones(2, 12, 6), v, weight, mask, 3, 4)
        )
    compiled = torch.compile(local_residual, backend='aot_eager', fullgraph=True, dynamic=True)
    calls = count_calls()
    for hw, batch in (((4, 6), 2), ((5, 3), 3)):
        v, weight, bias, _ = make_inputs(torch.float64, hw, 1, batch, 6)
        for op, enabled in ((compiled, True), (compiled, False), (local_residual, False)):
            use_triton(enabled)
            before = len(calls)
            results = [
                run(lambda v, w, b, op=op, hw=hw: op(v, w, hw, bias=b), [v, weight, bias], torch.float64)
                for op in (op, local_residual_naive)
            ]
            assert_close(*results, torch.float64, (hw, batch, enabled))
            # Forward and backward.
            assert len(calls) - before == (2 if enabled else 0)
    use_triton(True)


def check_mixer() -> None:
    """A mixer with a class token and LePE, trained with Triton on and off."""
    torch.manual_seed(0)
    mixer = InLineMixer(8, 2, lepe=True)
    x = torch.randn(2, 13, 8)
    results = []
    for enabled in (False, True):
        use_triton(enabled)
        leaf = x.clone().requires_grad_()
        out = mixer(leaf, (3, 4), leaf)
        results.append([out, *torch.autograd.grad(out.square().sum(), [leaf, *mixer.parameters()])])
    for left, right in zip(*results, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)


def check_benchmark() -> None:
    """benchmarks/gpu.py compares the kernels with their references and times them."""
    words = '--device cpu --sizes 32 --families DeiT --dtypes bfloat16 --batch 1 --repetitions 1'
    sys.argv = ['gpu', *words.split(), '--warm-up', '1', '--implementations', 'eager', 'triton']
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert gpu.main() == 0
    rows = list(csv.DictReader(io.StringIO(printed.getvalue())))
    assert len(rows) == 2 * 2 * 2
    # The interpreter is slow: the benchmark has switched the kernels on, and only for one of the two.
    for eager, triton in zip(rows[::2], rows[1::2], strict=True):
        assert (eager['implementation'], triton['implementation']) == ('eager', 'triton')
        assert float(triton['median ms']) > 3 * float(eager['median ms'])
    use_triton(True)


def count_calls() -> list[str]:
    """Return a list that gets an entry for each launch of a kernel."""
    calls: list[str] = []
    for name in ('local_residual_kernel', 'local_residual_backward_kernel'):
        kernel = getattr(triton_local_residual, name)

        class Counted:
            def __getitem__(self, grid: object, kernel: object = kernel, name: str = name) -> object:
                calls.append(name)
                return kernel[grid]  # type: ignore[index]

        setattr(triton_local_residual, name, Counted())
    return calls


if __name__ == '__main__':
    assert triton_local_residual.INTERPRETED
    torch.set_num_threads(1)
    checks = {
        'reference': check_reference,
        'details': check_details,
        'mixer': check_mixer,
        'benchmark': check_benchmark,
        'compile': check_compile,
    }
    for name in sys.argv[1:] or checks:
        checks[name]()
        print(f'{name} passed', flush=True)
