"""Triton kernels: correct in the interpreter, compiled for GPUs ahead of time, and off by default."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from inline.ops import backend, local_residual, local_residual_naive, use_triton
from inline.utils.errors import UserError
from tests.conftest import run_fresh

# Arguments of the kernels that do not have the dtype of the tokens.
POINTERS = {'mask_ptr': 'u8', 'sums_ptr': 'fp32'}


@pytest.mark.parametrize(
    'checks',
    [
        ('reference',),
        pytest.param(('details', 'mixer', 'benchmark', 'compile'), marks=pytest.mark.exhaustive),
    ],
    ids='-'.join,
)
def test_kernels_match_the_naive_reference_in_the_interpreter(checks: tuple[str, ...]) -> None:
    env = {**os.environ, 'TRITON_INTERPRET': '1', 'INLINE_TRITON': '1', 'OMP_NUM_THREADS': '1'}
    done = run_fresh([sys.executable, '-m', 'tests.ops.triton_interpreter', *checks], env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f'{name} passed' for name in checks]


@pytest.mark.slow
@pytest.mark.parametrize('capability', [80, pytest.param(90, marks=pytest.mark.exhaustive)])
def test_kernels_compile_to_machine_code(
    capability: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a GPU; ptxas assembles the PTX and reports registers."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from inline.ops import triton_local_residual as kernels

    monkeypatch.setenv('TRITON_CACHE_DIR', str(tmp_path))
    target = GPUTarget('cuda', capability, 32)
    for kernel in (kernels.local_residual_kernel, kernels.local_residual_backward_kernel):
        # Float32 with sizes of any kind, and half precision with sizes and strides that vectors divide.
        for dtype, aligned in (('fp32', False), ('fp16', True), ('bf16', True)):
            constants = {
                'HAS_BIAS': aligned,
                'HAS_MASK': aligned,
                'SUM_DTYPE': triton.language.float32,
                'BLOCK_N': kernels.BLOCK_TOKENS,
                'BLOCK_C': kernels.BLOCK_CHANNELS,
            }
            types = {
                name: f'*{POINTERS.get(name, dtype)}' if name.endswith('_ptr') else 'i32'
                for name in kernel.arg_names
            }
            types.update(dict.fromkeys(constants.keys() & types.keys(), 'constexpr'))
            divisible = [
                (index,)
                for index, (name, kind) in enumerate(types.items())
                if kind.startswith('*') or (aligned and (name == 'channels' or name.endswith('_stride')))
            ]
            source = ASTSource(
                kernel,
                types,
                {name: constants[name] for name, kind in types.items() if kind == 'constexpr'},
                {index: [['tt.divisibility', 16]] for index in divisible},
            )
            asm = triton.compile(source, target=target, options={'num_warps': kernels.NUM_WARPS}).asm
            assert f'.target sm_{capability}' in asm['ptx']
            assert f'.entry {kernel.__name__}' in asm['ptx']
            assert asm['cubin'].startswith(b'\x7fELF')
            assert not aligned or 'ld.global.v4' in asm['ptx']
            assert spilled_bytes(asm['ptx'], capability, tmp_path) == 0


def spilled_bytes(ptx: str, capability: int, folder: Path) -> int:
    """Return the bytes of registers that ptxas spills to memory."""
    from triton.backends.nvidia.compiler import get_ptxas

    source = folder / 'kernel.ptx'
    source.write_text(ptx)
    arch = f'sm_{capability}a' if capability == 90 else f'sm_{capability}'
    command = [get_ptxas(capability).path, '-v', f'--gpu-name={arch}', str(source), '-o', str(folder / 'out')]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    stores, loads = re.search(r'(\d+) bytes spill stores, (\d+) bytes spill loads', done.stderr).groups()
    return int(stores) + int(loads)


def test_off_by_default_and_not_imported() -> None:
    assert backend._switch == os.environ.get('INLINE_TRITON', '0') == '0'
    code = (
        'import sys, torch, inline.ops as ops; '
        'ops.local_residual(torch.ones(1, 6, 2), torch.ones(1, 2, 9), (2, 3)); '
        "sys.exit('triton' in sys.modules or 'inline.ops.triton_local_residual' in sys.modules)"
    )
    assert run_fresh([sys.executable, '-c', code]).returncode == 0


def make_small_inputs() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(2, 7, 4), torch.randn(2, 4, 9)


def test_no_gpu_is_an_error_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: False)
    monkeypatch.setattr(backend, '_switch', '0')
    with pytest.raises(UserError, match=r'^use_triton\(True\): Triton kernels need a GPU, .* finds none$'):
        use_triton(True)
    assert backend._switch == '0'
    v, weight = make_small_inputs()
    for value, message in (
        ('1', r'^INLINE_TRITON=1: Triton kernels need a GPU, and torch finds none$'),
        ('yes', r'^INLINE_TRITON=yes: must be 0 or 1$'),
    ):
        monkeypatch.setattr(backend, '_switch', value)
        with pytest.raises(UserError, match=message):
            local_residual(v, weight, (2, 3))
    use_triton(False)
    torch.testing.assert_close(
        local_residual(v, weight, (2, 3)), local_residual_naive(v, weight, (2, 3)), rtol=1e-5, atol=1e-5
    )


def test_missing_triton_is_an_error_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, 'triton', None)
    monkeypatch.delitem(sys.modules, 'inline.ops.triton_local_residual', raising=False)
    monkeypatch.setattr(backend, '_switch', '1')
    for enable in (use_triton, lambda: local_residual(*make_small_inputs(), (2, 3))):
        with pytest.raises(UserError) as raised:
            enable()
        expected = "Triton kernels need triton: pip install 'inline-attention[gpu]'"
        assert str(raised.value) == expected


def test_the_switch_affects_only_eager_and_compiled_code_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)
    monkeypatch.setattr(backend, '_switch', '1')
    devices = {name: backend.uses_triton(torch.device(name)) for name in ('cuda', 'cpu', 'meta')}
    assert devices == {'cuda': True, 'cpu': False, 'meta': False}
    monkeypatch.setattr(torch.jit, 'is_tracing', lambda: True)
    assert not backend.uses_triton(torch.device('cuda'))
    monkeypatch.undo()
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)
    monkeypatch.setattr(backend, '_switch', '1')
    seen = []
    torch.func.vmap(lambda x: (seen.append(backend.uses_triton(torch.device('cuda'))), x)[1])(torch.ones(2))
    assert seen == [False]
