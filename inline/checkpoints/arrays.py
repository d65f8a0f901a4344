"""Numpy arrays and scalars in a pickle, built from validated arguments.

numpy trusts the state of a pickled array and of its dtype: a file could declare its bytes to be pointers to
objects. Here a dtype is always one of numpy's own numeric ones, its state is never set, and an array has as
many bytes as its shape requires. Without numpy the functions are not available.
"""

import math
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from inline.checkpoints.plain_data import RefusedError, check_sizes
from inline.utils.arguments import format_value

if TYPE_CHECKING:
    import numpy as np
else:
    try:
        import numpy as np
    except ImportError:
        np = None

_TYPES = ('b1', 'i1', 'i2', 'i4', 'i8', 'u1', 'u2', 'u4', 'u8', 'f2', 'f4', 'f8', 'c8', 'c16')
_DTYPES = {} if np is None else {name: np.dtype(name) for name in _TYPES}
_NATIVE_ORDERS = ('|', '=', '<' if sys.byteorder == 'little' else '>')


def is_scalar(value: Any) -> bool:
    """Return whether `value` is a numpy number."""
    return np is not None and isinstance(value, np.bool_ | np.number)


def is_vector(value: Any) -> bool:
    """Return whether `value` is a one-dimensional array of real numbers."""
    return np is not None and type(value) is np.ndarray and value.ndim == 1 and value.dtype.kind in 'biuf'


def set_state(unpickler: Any, owner: Any, state: Any) -> bool:
    """Set the state of an array, or check that of a dtype. Return False for other objects."""
    if np is None:
        return False
    if isinstance(owner, np.dtype):
        # Every pickled dtype has a state, which repeats its name.
        is_plain = type(state) is tuple and len(state) >= 5 and state[2:5] == (None, None, None)
        if not is_plain or state[1] not in _NATIVE_ORDERS:
            raise RefusedError('it contains a numpy dtype with fields or a non-native byte order')
        return True
    if type(owner) is not np.ndarray:
        return False
    _, shape, dtype, fortran, content = state
    # A second state would free memory that is in use.
    if owner.nbytes or owner.shape != (0,):
        raise RefusedError('it sets the content of a numpy array twice')
    _check_content(unpickler, shape, dtype, content)
    owner.__setstate__((1, shape, dtype, fortran is True, bytes(content)))  # type: ignore[arg-type]
    return True


def _make_dtype(_: Any, name: Any, align: Any = False, copy: Any = True) -> Any:  # noqa: ARG001
    """Return numpy's own dtype; a copy could be given another state."""
    if type(name) is not str or name not in _DTYPES:
        raise RefusedError(
            f'it contains a numpy array of type {format_value(name)}: supported are {", ".join(_DTYPES)}'
        )
    return _DTYPES[name]


def _reconstruct(_: Any, cls: Any, shape: Any, kind: Any) -> Any:
    """Return the empty array that numpy pickles before the state."""
    if getattr(cls, 'name', None) != 'numpy.ndarray' or shape != (0,) or kind not in (b'b', 'b'):
        raise RefusedError('it contains a subclass of a numpy array')
    return np.empty(0, np.int8)


def _make_scalar(unpickler: Any, dtype: Any, content: Any) -> Any:
    _check_content(unpickler, (), dtype, content)
    return np.frombuffer(content, dtype)[0]


def _from_buffer(unpickler: Any, content: Any, dtype: Any, shape: Any, order: Any) -> Any:
    _check_content(unpickler, shape, dtype, content)
    return np.frombuffer(content, dtype).reshape(shape, order='F' if order == 'F' else 'C').copy(order='K')


def _check_content(unpickler: Any, shape: Any, dtype: Any, content: Any) -> None:
    check_sizes(shape)
    if type(content) not in (bytes, bytearray) or not any(dtype is known for known in _DTYPES.values()):
        raise RefusedError(f'it contains a numpy array of type {format_value(dtype)}')
    if math.prod(shape) * dtype.itemsize != len(content):
        raise RefusedError(
            f'it contains a numpy array of shape {tuple(shape)} and type {dtype} with {len(content)} bytes'
        )
    if dtype is _DTYPES['b1'] and content.translate(None, b'\0\1'):
        raise RefusedError('it contains a boolean numpy array with values other than 0 and 1')
    unpickler.spend(len(content))


def _functions() -> dict[str, Callable[..., Any]]:
    if np is None:
        return {}
    functions: dict[str, Callable[..., Any]] = {'numpy.dtype': _make_dtype}
    # numpy 2 renamed the package: files of both versions exist.
    for package in ('numpy.core', 'numpy._core'):
        functions[f'{package}.multiarray._reconstruct'] = _reconstruct
        functions[f'{package}.multiarray.scalar'] = _make_scalar
        functions[f'{package}.numeric._frombuffer'] = _from_buffer
    return functions


FUNCTIONS = _functions()
