"""The switch for Triton kernels, which are off by default until someone times them on a GPU.

:func:`use_triton` or the environment variable ``INLINE_TRITON=1`` turns them on. They apply to tensors on a
GPU. With ``TRITON_INTERPRET=1``, set before the first use, Triton's interpreter runs them on a CPU, slowly,
for tests. Programs of torch.export and torch.jit.trace and transforms of torch.func never use them.
"""

import os

import torch

from inline.ops.tokens import is_transforming
from inline.utils.errors import UserError

VARIABLE = 'INLINE_TRITON'
_switch = os.environ.get(VARIABLE, '0')


def use_triton(enabled: bool = True) -> None:
    """Turn Triton kernels on or off in this process. Raise if they are turned on and cannot run."""
    global _switch
    if enabled:
        _check_gpu('use_triton(True)')
    _switch = '1' if enabled else '0'


def uses_triton(device: torch.device) -> bool:
    """Return whether ops on this device run Triton kernels. Raise if they are on and cannot run."""
    if _switch == '0':
        return False
    if _switch != '1':
        raise UserError(f'{VARIABLE}={_switch}: must be 0 or 1')
    if torch.compiler.is_exporting() or torch.jit.is_tracing() or is_transforming():
        return False
    if device.type == 'cpu':
        return _check_gpu(f'{VARIABLE}=1')
    return device.type == 'cuda'


def _check_gpu(purpose: str) -> bool:
    """Raise if Triton is not installed or there is no GPU; return whether kernels are interpreted."""
    from inline.ops.triton_local_residual import INTERPRETED

    if not INTERPRETED and not torch.cuda.is_available():
        raise UserError(f'{purpose}: Triton kernels need a GPU, and torch finds none')
    return INTERPRETED
