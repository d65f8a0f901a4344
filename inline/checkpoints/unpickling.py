"""Restricted unpickling with one allow-list.

Pickle can run code while a file is loaded. Both readers here build only the objects of :func:`safe_globals`:

- :func:`load_torch` reads what ``torch.save`` wrote, with torch's own weights-only unpickler;
- :func:`load_pickle` reads plain pickle files such as annotations and predictions, whose protocols 3 to 5
  torch's unpickler does not support.
"""

import argparse
import io
import pickle
import sys
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import IO, Any

import torch

from inline.utils.errors import UserError

_HISTORY = 'mmengine.logging.history_buffer'
_STATISTICS = ('min', 'max', 'mean', 'current')
# Per thread and task, so that trust never outlives its `with` block: see :func:`trust_checkpoints`.
_trusted: ContextVar[bool] = ContextVar('trusted', default=False)
# torch's list of safe globals belongs to the process: a thread that is done would remove another one's.
_lock = Lock()


@contextmanager
def trust_checkpoints(trust: bool = True) -> Iterator[None]:
    """Within this context, unpickle checkpoints without restriction if `trust` is true.

    Such files can run code. This is what ``--trust-checkpoint`` does for one run.
    """
    token = _trusted.set(trust)
    try:
        yield
    finally:
        _trusted.reset(token)


def load_torch(file: Any, map_location: Any = 'cpu') -> Any:
    """Return the content of a file that ``torch.save`` wrote, given as a path or a binary file object."""
    if _trusted.get():
        return torch.load(file, map_location=map_location, weights_only=False)
    allowed: list[Any] = [(value, name) for name, value in safe_globals().items()]
    with _lock, torch.serialization.safe_globals(allowed):
        return torch.load(file, map_location=map_location, weights_only=True)


def load_pickle(file: IO[bytes]) -> Any:
    """Return the numbers, strings, containers, arrays and tensors in a plain pickle file.

    Raises a :class:`UserError` that names any other object, and the errors of :mod:`pickle` for damage.
    """
    return _RestrictedUnpickler(file).load()


def safe_globals() -> dict[str, Any]:
    """Return what a pickle may refer to, by qualified name. Some names map to a harmless substitute."""
    allowed: dict[str, Any] = {
        'builtins.bytearray': bytearray,
        'builtins.complex': complex,
        'builtins.frozenset': frozenset,
        'builtins.set': set,
        'builtins.slice': slice,
        'collections.OrderedDict': OrderedDict,
        '_codecs.encode': _encode,
        'torch._utils._rebuild_tensor_v2': torch._utils._rebuild_tensor_v2,
        'torch.storage._load_from_bytes': _load_from_bytes,
        # Training scripts of the authors store their settings next to the weights.
        'argparse.Namespace': argparse.Namespace,
        'yacs.config.CfgNode': OrderedDict,
        # MMEngine's log history refers to its statistics with getattr.
        f'{_HISTORY}.HistoryBuffer': _history_class(),
        'builtins.getattr': _get_statistic,
    }
    return allowed | _numpy_globals()


class HistoryBuffer:
    """Substitute for MMEngine's class of that name in a process that has not imported MMEngine."""


def _history_class() -> type:
    """Return MMEngine's HistoryBuffer, which resuming needs, if the process has imported it."""
    module = sys.modules.get(_HISTORY)
    return HistoryBuffer if module is None else module.HistoryBuffer


def _get_statistic(owner: Any, name: str) -> Any:
    """Replace getattr, which would reach any attribute, for the statistics of a HistoryBuffer."""
    if owner is not _history_class() or name not in _STATISTICS:
        raise pickle.UnpicklingError(f'GLOBAL getattr({owner!r}, {name!r}) is not allowed')
    return getattr(owner, name, None)


def _numpy_globals() -> dict[str, Any]:
    """Return the functions and types of pickled arrays and scalars; none if numpy is not installed."""
    try:
        import numpy as np
        from numpy._core import multiarray, numeric
    except ImportError:
        return {}
    allowed: dict[str, Any] = {'numpy.ndarray': np.ndarray, 'numpy.dtype': np.dtype}
    # numpy 2 renamed the package: files of both versions exist.
    for package in ('numpy.core', 'numpy._core'):
        allowed[f'{package}.multiarray._reconstruct'] = multiarray._reconstruct
        allowed[f'{package}.multiarray.scalar'] = multiarray.scalar
        allowed[f'{package}.numeric._frombuffer'] = numeric._frombuffer  # type: ignore[attr-defined]
    for scalar in (np.bool_, np.uint8, np.uint32, np.int64, np.float32, np.float64):
        dtype = type(np.dtype(scalar))
        allowed[f'{dtype.__module__}.{dtype.__name__}'] = dtype
    return allowed


def _encode(text: str, encoding: str) -> bytes:
    """Decode bytes as protocols 0 to 2 write them; other codecs could run more code."""
    if encoding != 'latin1':
        raise pickle.UnpicklingError(f'bytes encoded as {encoding!r}')
    return text.encode('latin1')


def _load_from_bytes(content: bytes) -> Any:
    """Replace torch's function of that name, which unpickles the bytes of a tensor without restriction."""
    return torch.load(io.BytesIO(content), weights_only=True)


class _RestrictedUnpickler(pickle.Unpickler):
    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self._allowed = safe_globals()

    def find_class(self, module: str, name: str) -> Any:
        # Protocols 0 to 2 use Python 2's name of the module.
        qualified = f'{module.replace("__builtin__", "builtins")}.{name}'
        if qualified not in self._allowed:
            raise UserError(
                f'a pickle file contains {qualified}, which is not plain data; it was not loaded: '
                'provide the annotations as JSON'
            )
        return self._allowed[qualified]
