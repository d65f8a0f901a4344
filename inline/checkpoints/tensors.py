"""Tensors in a pickle, built from storages with validated sizes.

torch's functions of the same names enlarge a storage that is too small for a tensor, and trust what a file
says about sparse, quantized and nested tensors. Weights are dense: the other kinds become a
:class:`UnsupportedTensor`, which is reported with its name once the whole file is read.
"""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from inline.checkpoints.plain_data import RefusedError, UnsupportedTensor, check_sizes

_DTYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    *(torch.uint64, torch.uint32, torch.uint16, torch.float8_e4m3fn, torch.float8_e5m2),
)


@dataclass(frozen=True)
class Storage:
    """Storage of tensors, and the dtype that it was saved with."""

    memory: torch.UntypedStorage
    dtype: torch.dtype


@dataclass(frozen=True)
class StorageType:
    """What a storage class such as ``torch.FloatStorage`` stands for in a pickle."""

    dtype: torch.dtype


def make_storage(content: bytes, device: Any = 'cpu') -> torch.UntypedStorage:
    """Copy bytes to the memory of a tensor."""
    if not content:
        return torch.UntypedStorage(0, device=device)
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).to(device).clone().untyped_storage()


def _make_tensor(
    unpickler: Any, storage: Any, offset: Any, size: Any, stride: Any, dtype: torch.dtype | None = None
) -> Tensor | UnsupportedTensor:
    if type(storage) is not Storage:
        raise RefusedError('it contains a tensor without a storage')
    dtype = dtype or storage.dtype
    if dtype not in _DTYPES:
        return UnsupportedTensor('quantized')
    check_sizes((offset,))
    check_sizes(size)
    check_sizes(stride)
    if len(size) != len(stride):
        raise RefusedError(f'it contains a tensor of shape {tuple(size)} with strides {tuple(stride)}')
    numel = torch.Size(size).numel()
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) if numel else offset - 1
    if (last + 1) * dtype.itemsize > storage.memory.nbytes():
        raise RefusedError(f'it contains a tensor of shape {tuple(size)} that is larger than its storage')
    # Strides of zero describe large tensors with little memory.
    unpickler.spend(numel * dtype.itemsize)
    tensor = torch.empty(0, dtype=dtype, device=storage.memory.device)
    tensor.set_(storage.memory, offset, tuple(size), tuple(stride))
    return tensor


def _rebuild_tensor(unpickler: Any, storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> Any:
    return _make_tensor(unpickler, storage, offset, size, stride)


def _rebuild_tensor_v3(unpickler: Any, *arguments: Any) -> Any:
    """Rebuild a tensor with the arguments storage, offset, size, stride, requires_grad, hooks and dtype."""
    storage, offset, size, stride, _, _, dtype = arguments[:7]
    if type(dtype) is not torch.dtype:
        raise RefusedError('it contains a tensor without a type')
    return _make_tensor(unpickler, storage, offset, size, stride, dtype)


def _rebuild_parameter(_: Any, data: Any, requires_grad: Any = True, *__: Any) -> Any:
    if type(data) is UnsupportedTensor:
        return data
    if type(data) is not Tensor or not (data.is_floating_point() or data.is_complex()):
        raise RefusedError('it contains a parameter that is not a tensor')
    return nn.Parameter(data, requires_grad is True)


def _rebuild_from_type(unpickler: Any, function: Any, _: Any, arguments: Any, *__: Any) -> Any:
    """Rebuild a tensor with attributes, without the attributes."""
    name = getattr(function, 'name', None)
    if type(name) is not str or name not in FUNCTIONS or name == _FROM_TYPE or type(arguments) is not tuple:
        raise RefusedError('it contains an unknown kind of tensor')
    return FUNCTIONS[name](unpickler, *arguments)


def _load_from_bytes(unpickler: Any, content: Any) -> Storage:
    """Read a storage in a plain pickle, which torch saves as a file of its own inside the pickle."""
    from inline.checkpoints.torch_format import read_legacy

    if type(content) is not bytes:
        raise RefusedError('it contains a tensor without a storage')
    unpickler.spend(2 * len(content))
    storage = read_legacy(io.BytesIO(content), len(content), 'cpu')
    if type(storage) is not Storage:
        raise RefusedError('it contains a tensor without a storage')
    return storage


def _make_size(_: Any, sizes: Sequence[Any] = ()) -> torch.Size:
    check_sizes(sizes)
    return torch.Size(sizes)


def _make_device(_: Any, name: Any, index: Any = None) -> torch.device:
    if type(name) is not str or type(index) not in (int, type(None)):
        raise RefusedError('it contains an invalid device')
    return torch.device(name) if index is None else torch.device(name, index)


def _unsupported(kind: str) -> Callable[..., UnsupportedTensor]:
    return lambda *_: UnsupportedTensor(kind)


_FROM_TYPE = 'torch._tensor._rebuild_from_type_v2'
FUNCTIONS: dict[str, Callable[..., Any]] = {
    'torch.Size': _make_size,
    'torch.device': _make_device,
    'torch.storage._load_from_bytes': _load_from_bytes,
    'torch.serialization._get_layout': lambda *_: None,
    'torch._utils._rebuild_tensor': _rebuild_tensor,
    'torch._utils._rebuild_tensor_v2': _rebuild_tensor,
    'torch._utils._rebuild_tensor_v3': _rebuild_tensor_v3,
    'torch._utils._rebuild_parameter': _rebuild_parameter,
    'torch._utils._rebuild_parameter_with_state': _rebuild_parameter,
    'torch._utils._rebuild_sparse_tensor': _unsupported('sparse'),
    'torch._utils._rebuild_qtensor': _unsupported('quantized'),
    'torch._utils._rebuild_meta_tensor_no_storage': _unsupported('a meta tensor without values'),
    'torch._utils._rebuild_nested_tensor': _unsupported('nested'),
    _FROM_TYPE: _rebuild_from_type,
}
# Layouts of quantized tensors; the tensors are refused, but the pickle refers to these first.
_QUANTIZED = ('per_tensor_affine', 'per_channel_affine', 'per_channel_affine_float_qparams')
CONSTANTS: dict[str, Any] = {
    **{str(dtype): dtype for dtype in _DTYPES},
    **{f'torch.{scheme}': scheme for scheme in _QUANTIZED},
    **{
        f'{module}.{name}': StorageType(dtype)
        for dtype, name in torch.storage._dtype_to_storage_type_map().items()
        for module in ('torch', 'torch.cuda')
    },
    'torch.storage.UntypedStorage': StorageType(torch.uint8),
}
