"""Checks of data that was read from an untrusted file, before anything else uses it."""

import argparse
import math
import pickle
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from types import NoneType
from typing import Any

import torch
from torch import Tensor, nn

from inline.utils.arguments import format_value
from inline.utils.errors import UserError, printable

_CONTAINERS = (dict, OrderedDict, Counter, list, tuple, set, frozenset, argparse.Namespace)
_LEAVES = (str, bytes, bytearray, int, float, complex, bool, NoneType, slice)
_TORCH_LEAVES = (Tensor, nn.Parameter, torch.dtype, torch.Size, torch.device)
_MAX_DEPTH = 100
_MAX_BITS = 2048
_MAX_DIMS = 32
_MAX_ELEMENTS = 2**48
# A reference to a shared object takes two bytes.
_ITEMS_PER_BYTE = 4
_FREE_ITEMS = 100_000
_MAX_NAME = 100


class RefusedError(pickle.UnpicklingError):
    """Content that is not loaded. The message is a clause that starts with 'it' and gives the reason."""


@dataclass(frozen=True)
class UnsupportedTensor:
    """Stands for a tensor that is not dense; `kind` says what it is."""

    kind: str


def check_sizes(sizes: Any) -> None:
    """Raise unless `sizes` is a tuple or list of a few non-negative integers whose product is not huge."""
    if type(sizes) not in (tuple, list, torch.Size) or len(sizes) > _MAX_DIMS:
        raise RefusedError('it contains an invalid shape')
    if not all(type(size) is int and size >= 0 for size in sizes):
        raise RefusedError('it contains an invalid shape')
    if math.prod(size for size in sizes if size) > _MAX_ELEMENTS:
        raise RefusedError('it contains an invalid shape')


def check_plain_data(data: Any, num_bytes: int) -> None:
    """Raise unless `data` is a tree of plain values that is not much larger than its file.

    Objects may be shared, but shared lists of shared lists grow exponentially when they are printed, compared
    or written as JSON, and very deep nesting or a list that contains itself ends in a recursion error.

    Args:
        data: What was read.
        num_bytes: Size of the file.
    """
    limit = _ITEMS_PER_BYTE * num_bytes + _FREE_ITEMS
    # The number of items at and below a container that has been visited.
    counts: dict[int, int] = {}
    root = _Node('', data)
    path = [root]
    active = {id(data)}
    while path:
        node = path[-1]
        child = next(node.children, None)
        if child is None:
            path.pop()
            active.discard(id(node.value))
            counts[id(node.value)] = node.count
            if path:
                path[-1].count += node.count
            if node.count > limit:
                raise RefusedError(f'it has more than {limit:,} items')
            continue
        name, value = child
        if type(value) not in _CONTAINERS:
            _check_leaf(value, path, name)
            node.count += 1
        elif id(value) in active:
            raise RefusedError(f'{_name(path, name)} contains itself')
        elif id(value) in counts:
            node.count += counts[id(value)]
        elif len(path) >= _MAX_DEPTH:
            raise RefusedError(f'it is nested more than {_MAX_DEPTH} levels deep')
        else:
            active.add(id(value))
            path.append(_Node(name, value))


class _Node:
    """A container on the path from the root to the current item."""

    def __init__(self, name: str, value: Any) -> None:
        self.name, self.value, self.count = name, value, 1
        self.children = iter(_children(value))


def _children(value: Any) -> Iterable[tuple[str, Any]]:
    """Yield names and values of the items of a container; a leaf yields itself."""
    if type(value) not in _CONTAINERS:
        yield '', value
        return
    if isinstance(value, dict):
        yield from ((str(key)[:_MAX_NAME] if type(key) is str else '', item) for key, item in value.items())
        # Keys that are tuples are small: their hash has been computed.
        yield from (('', item) for item in vars(value).values()) if type(value) is OrderedDict else ()
    elif isinstance(value, argparse.Namespace):
        yield from vars(value).items()
    else:
        yield from (('', item) for item in value)


def _check_leaf(value: Any, path: list[_Node], name: str) -> None:
    if type(value) is UnsupportedTensor:
        raise RefusedError(
            f'{_name(path, name)} is {value.kind}: only dense tensors with values are supported'
        )
    if type(value) is int and value.bit_length() > _MAX_BITS:
        raise RefusedError(f'{_name(path, name)} is an integer of {value.bit_length()} bits')
    # Operators use the bytes of a boolean mask as numbers.
    is_mask = isinstance(value, Tensor) and value.dtype is torch.bool and value.numel() > 0
    if is_mask and value.view(torch.uint8).max() > 1:
        raise RefusedError(f'{_name(path, name)} is a boolean tensor with values other than 0 and 1')
    is_known = type(value) in _LEAVES or type(value) in _TORCH_LEAVES or _is_array(value)
    if not is_known and type(value).__name__ != 'HistoryBuffer':
        described = getattr(value, 'name', type(value).__name__)
        raise RefusedError(f'it contains {described}, which is not plain data')


def _is_array(value: Any) -> bool:
    return (
        type(value).__module__ == 'numpy' and getattr(getattr(value, 'dtype', None), 'kind', 'O') in 'biufc'
    )


def _name(path: list[_Node], name: str) -> str:
    """Return a description such as ``tensor 'backbone.norm.weight' in 'state_dict'``."""
    names = [repr(printable(part)) for part in (*(node.name for node in path), name) if part]
    return ' in '.join(reversed(names[-2:])) or 'the data'


def check_dense(name: str, tensor: Tensor, source: str) -> None:
    """Raise a :class:`UserError` for a tensor that cannot be copied into the weights of a model."""
    kind = None
    if tensor.is_meta:
        kind = 'a meta tensor without values'
    elif tensor.is_quantized:
        kind = 'quantized'
    elif tensor.is_nested or tensor.layout is not torch.strided:
        kind = 'nested' if tensor.is_nested else 'sparse'
    elif tensor.is_complex():
        kind = 'complex'
    if kind is not None:
        raise UserError(
            f'checkpoint {source!r}: tensor {format_value(name)} is {kind}: '
            'only dense tensors with real values are supported'
        )
