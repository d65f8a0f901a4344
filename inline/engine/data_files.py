"""Annotations and predictions in pickled and YAML files, read as data: nothing in one is executed.

MMEngine unpickles whatever a config names as annotations, and builds any Python object that YAML asks for.
"""

import io
import pickle
from collections import OrderedDict
from typing import IO, Any

import numpy as np
import torch
import yaml
from mmengine.fileio import PickleHandler, YamlHandler, register_handler
from numpy._core import multiarray
from numpy._core.numeric import _frombuffer  # type: ignore[attr-defined]

from inline.errors import UserError


def load_pickled(file: IO[bytes]) -> Any:
    """Numbers, text, containers, arrays and tensors; what is anything else is refused by its name.

    A damaged file raises what :mod:`pickle` raises.
    """
    return _DataUnpickler(file).load()


def install() -> None:
    """Let MMEngine read pickled and YAML files in this way only."""
    register_handler(['pickle', 'pkl'])(_DataPickleHandler)
    register_handler(['yaml', 'yml'])(_DataYamlHandler)


def _encode(text: str, encoding: str) -> bytes:
    """How old protocols write bytes; other encodings than theirs would be programs of their own."""
    if encoding != 'latin1':
        raise pickle.UnpicklingError(f'bytes encoded as {encoding!r}')
    return text.encode('latin1')


def _storage(content: bytes) -> Any:
    """In place of torch's own, which unpickles the bytes of a tensor whole."""
    return torch.load(io.BytesIO(content), weights_only=True)


_DATA: dict[tuple[str, str], Any] = {
    ('builtins', 'bytearray'): bytearray,
    ('builtins', 'complex'): complex,
    ('builtins', 'frozenset'): frozenset,
    ('builtins', 'set'): set,
    ('builtins', 'slice'): slice,
    ('collections', 'OrderedDict'): OrderedDict,
    ('_codecs', 'encode'): _encode,
    ('numpy', 'dtype'): np.dtype,
    ('numpy', 'ndarray'): np.ndarray,
    # The module was renamed between the versions of numpy that files come from.
    **{
        (f'numpy.{core}.{module}', part.__name__): part
        for core in ('core', '_core')
        for module, part in (
            ('multiarray', multiarray._reconstruct),
            ('multiarray', multiarray.scalar),
            ('numeric', _frombuffer),
        )
    },
    ('torch._utils', '_rebuild_tensor_v2'): torch._utils._rebuild_tensor_v2,
    ('torch.storage', '_load_from_bytes'): _storage,
}


class _DataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        # Old protocols call Python 3's builtins by their old name.
        known = _DATA.get((module.replace('__builtin__', 'builtins'), name))
        if known is None:
            raise UserError(
                f'a pickled data file holds {module}.{name}, which is not data, and was not read: '
                'give annotations as JSON'
            )
        return known


class _DataPickleHandler(PickleHandler):
    """MMEngine's, but a file is read as data."""

    def load_from_fileobj(self, file: IO[bytes]) -> Any:
        return load_pickled(file)


class _DataYamlHandler(YamlHandler):
    """MMEngine's, but a file is read as data."""

    def load_from_fileobj(self, file: IO[str]) -> Any:
        try:
            return yaml.safe_load(file)
        except yaml.YAMLError as error:
            reason = ' '.join(str(error).split())
            raise UserError(f'a YAML file cannot be read as data: {reason}') from error
