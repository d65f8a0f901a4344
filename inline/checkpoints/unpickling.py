"""Restricted unpickling: numbers, text, containers, arrays and tensors, and nothing else.

Pickle can run code while a file is loaded, and even harmless classes can crash the process if a file gives
them an invalid state. Here a file cannot call functions or set attributes. Every name that a file may use
stands for a function of this package that validates its arguments (:func:`_globals`), the state of an object
is set by a function that validates it (:func:`_set_state`), and all other pickle instructions only build
plain containers.

:class:`RestrictedUnpickler` reads one pickle. :func:`load_pickle` reads plain pickle files such as
annotations and predictions; :mod:`inline.checkpoints.torch_format` reads what ``torch.save`` wrote.
"""

import argparse
import io
import pickle
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from types import NoneType
from typing import IO, Any, ClassVar

import torch

from inline.checkpoints import arrays, tensors
from inline.checkpoints.plain_data import RefusedError, check_plain_data
from inline.utils.arguments import format_value
from inline.utils.errors import UserError, printable

_HISTORY = 'mmengine.logging.history_buffer'
_STATISTICS = ('min', 'max', 'mean', 'current')
_KEY_TYPES = (str, bytes, float, bool, complex, NoneType, frozenset, torch.dtype)
# Python hashes nested tuples recursively, without a limit, and integers modulo 2**61 - 1.
_MAX_KEY_ITEMS = 1000
_MAX_KEY_DEPTH = 8
_MAX_KEY_BITS = 60
# Bytes that arrays, tensors and byte strings may hold, per byte of the file. Each of the steps from text to
# bytes to an array counts, and tensors may share memory.
EXPANSION = 8
_FREE_BYTES = 2**20
_MAX_NAME = 200


class DamagedPickleError(UserError):
    """A plain pickle file that is truncated or damaged."""


class NotPlainDataError(RefusedError):
    """A pickle that refers to a class or function that is not allowed."""

    def __init__(self, name: str) -> None:
        self.name = printable(name[:_MAX_NAME])
        super().__init__(f'it contains {self.name}, which is not plain data')


@dataclass(frozen=True)
class Global:
    """What a name in a pickle stands for. It is not callable: only the unpickler can use it.

    Args:
        name: Qualified name.
        call: Function for the instruction REDUCE; it gets the unpickler and the arguments.
        new: Function for NEWOBJ, without arguments.
    """

    name: str
    call: Callable[..., Any] | None = None
    new: Callable[[], Any] | None = None


class HistoryBuffer:
    """Substitute for MMEngine's class of that name in a process that has not imported MMEngine."""


class RestrictedUnpickler(pickle._Unpickler):
    """Reads one pickle from a file.

    This is Python's own unpickler in pure Python, in which single instructions can be replaced. In C, a
    small file could make it allocate any amount of memory or overflow the stack.

    Args:
        file: A binary file; after :meth:`load` its position is after the pickle.
        size: Size of the file in bytes, which limits the data that the pickle may expand to.
        find_storage: Returns the storage for a persistent id; without it, persistent ids are refused.
    """

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)
    # Attributes of the base class.
    stack: list[Any]
    append: Callable[[Any], None]
    pop_mark: Callable[[], list[Any]]
    read: Callable[[int], bytes]

    def __init__(
        self, file: IO[bytes], size: int, find_storage: Callable[[Any], tensors.Storage] | None = None
    ) -> None:
        super().__init__(file, encoding='utf-8')
        self._find_storage = find_storage
        self._limit = self._left = EXPANSION * size + _FREE_BYTES

    def spend(self, num_bytes: int) -> None:
        """Count bytes before they are allocated; raise if the file expands too much."""
        self._left -= num_bytes
        if self._left < 0:
            raise RefusedError(f'it expands to more than {self._limit:,} bytes, {EXPANSION} times its size')

    def find_class(self, module: str, name: str) -> Any:
        # Protocols 0 to 2 use Python 2's name of the module.
        qualified = f'{"builtins" if module == "__builtin__" else module}.{name}'
        found = _globals().get(qualified)
        if found is None:
            raise NotPlainDataError(qualified)
        return found

    def persistent_load(self, pid: Any) -> Any:
        if self._find_storage is None:
            raise RefusedError('it refers to tensors outside of the file')
        return self._find_storage(pid)

    def _load_reduce(self) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        if type(function) is not Global or function.call is None or type(arguments) is not tuple:
            raise NotPlainDataError(f'a call of {_describe(function)}')
        self.append(function.call(self, *arguments))

    def _load_newobj(self) -> None:
        arguments, cls = self.stack.pop(), self.stack.pop()
        if type(cls) is not Global or cls.new is None or arguments != ():
            raise NotPlainDataError(f'an object of {_describe(cls)}')
        self.append(cls.new())

    def _load_build(self) -> None:
        state = self.stack.pop()
        _set_state(self, self.stack[-1], state)

    def _load_append(self) -> None:
        value = self.stack.pop()
        _expect(self.stack[-1], list).append(value)

    def _load_appends(self) -> None:
        items = self.pop_mark()
        _expect(self.stack[-1], list).extend(items)

    def _load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        _set_items(self.stack[-1], [key, value])

    def _load_setitems(self) -> None:
        items = self.pop_mark()
        _set_items(self.stack[-1], items)

    def _load_dict(self) -> None:
        items = self.pop_mark()
        self.append({})
        _set_items(self.stack[-1], items)

    def _load_additems(self) -> None:
        items = self.pop_mark()
        _check_keys(items)
        _expect(self.stack[-1], set).update(items)

    def _load_frozenset(self) -> None:
        items = self.pop_mark()
        _check_keys(items)
        self.append(frozenset(items))

    def _load_bytearray8(self) -> None:
        # Python's own instruction allocates the declared length before it reads.
        length = int.from_bytes(self.read(8), 'little')
        self.spend(length)
        self.append(bytearray(self.read(length)))

    def _refuse(self) -> None:
        raise pickle.UnpicklingError('an instruction that plain data does not need')

    dispatch |= {
        pickle.REDUCE[0]: _load_reduce,
        pickle.NEWOBJ[0]: _load_newobj,
        pickle.BUILD[0]: _load_build,
        pickle.APPEND[0]: _load_append,
        pickle.APPENDS[0]: _load_appends,
        pickle.SETITEM[0]: _load_setitem,
        pickle.SETITEMS[0]: _load_setitems,
        pickle.DICT[0]: _load_dict,
        pickle.ADDITEMS[0]: _load_additems,
        pickle.FROZENSET[0]: _load_frozenset,
        pickle.BYTEARRAY8[0]: _load_bytearray8,
        pickle.INST[0]: _refuse,
        pickle.OBJ[0]: _refuse,
        pickle.NEWOBJ_EX[0]: _refuse,
        pickle.PERSID[0]: _refuse,
        pickle.LONG4[0]: _refuse,
        pickle.EXT1[0]: _refuse,
        pickle.EXT2[0]: _refuse,
        pickle.EXT4[0]: _refuse,
        pickle.NEXT_BUFFER[0]: _refuse,
        pickle.READONLY_BUFFER[0]: _refuse,
    }


def load_pickle(file: IO[bytes]) -> Any:
    """Return the numbers, strings, containers, arrays and tensors in a plain pickle file.

    Raises:
        UserError: The file contains anything else, or is damaged (:class:`DamagedPickleError`).
    """
    content = file.read()
    try:
        data = RestrictedUnpickler(io.BytesIO(content), len(content)).load()
        check_plain_data(data, len(content))
    except NotPlainDataError as error:
        raise UserError(
            f'a pickle file contains {error.name}, which is not plain data; it was not loaded: '
            'provide the annotations as JSON'
        ) from error
    except RefusedError as error:
        raise UserError(
            f'a pickle file cannot be loaded: {error}; provide the annotations as JSON'
        ) from error
    except Exception as error:
        # Damaged bytes cause all kinds of errors.
        raise DamagedPickleError('a pickle file is damaged or not a pickle') from error
    return data


def find_history_class() -> type:
    """Return MMEngine's HistoryBuffer, which resuming needs, if the process has imported it."""
    module = sys.modules.get(_HISTORY)
    return HistoryBuffer if module is None else module.HistoryBuffer


@cache
def _globals() -> dict[str, Global]:
    """Return what a pickle may refer to, by qualified name."""
    functions: dict[str, Callable[..., Any]] = {
        'builtins.bytearray': _make_bytearray,
        'builtins.complex': _make_complex,
        'builtins.frozenset': lambda _, items=(): frozenset(_check_keys(_expect(items, list, tuple))),
        'builtins.set': lambda _, items=(): set(_check_keys(_expect(items, list, tuple))),
        'builtins.slice': _make_slice,
        # MMEngine's log history refers to its statistics with getattr.
        'builtins.getattr': _get_statistic,
        'collections.Counter': _make_counter,
        'collections.OrderedDict': _make_ordered_dict,
        '_codecs.encode': _encode,
        **tensors.FUNCTIONS,
        **arrays.FUNCTIONS,
    }
    classes: dict[str, Callable[[], Any]] = {
        'collections.OrderedDict': OrderedDict,
        # Training scripts of the authors store their settings next to the weights.
        'argparse.Namespace': argparse.Namespace,
        'yacs.config.CfgNode': OrderedDict,
        f'{_HISTORY}.HistoryBuffer': lambda: find_history_class()(),
    }
    names = {*functions, *classes, 'numpy.ndarray', 'torch.Tensor', 'torch.nn.parameter.Parameter'}
    allowed: dict[str, Any] = {name: Global(name, functions.get(name), classes.get(name)) for name in names}
    return allowed | tensors.CONSTANTS


def _set_state(unpickler: RestrictedUnpickler, owner: Any, state: Any) -> None:
    """Validate and set the state of an object, which the instruction BUILD would set as it is."""
    if type(owner) is OrderedDict:
        # State dicts store module versions here; other attributes could hide methods.
        metadata = _expect(state, dict, OrderedDict).get('_metadata')
        if metadata is not None:
            owner._metadata = _expect(metadata, dict, OrderedDict)  # type: ignore[attr-defined]
    elif type(owner) is argparse.Namespace:
        attributes = _expect(state, dict)
        for name in attributes:
            _expect(name, str)
        vars(owner).update(attributes)
    elif type(owner) is find_history_class():
        _set_history(owner, _expect(state, dict))
    elif not arrays.set_state(unpickler, owner, state):
        raise NotPlainDataError(f'a state of {_describe(owner)}')


def _set_history(owner: Any, state: Mapping[str, Any]) -> None:
    """Set the numbers of a HistoryBuffer.

    Its own ``__setstate__`` would also add statistics from the file to those of all instances.
    """
    histories: list[Any] = [state.get(name) for name in ('_log_history', '_count_history')]
    if not all(map(arrays.is_vector, histories)) or histories[0].size != histories[1].size:
        raise RefusedError('it contains a log history without numbers')
    owner._log_history, owner._count_history = histories
    owner.max_length = max(1, _expect(state.get('max_length', 1_000_000), int))


def _set_items(target: Any, items: list[Any]) -> None:
    if type(target) not in (dict, OrderedDict):
        raise NotPlainDataError(f'items of {_describe(target)}')
    _check_keys(items[::2])
    for i in range(0, len(items), 2):
        target[items[i]] = items[i + 1]


def _check_keys(keys: Iterable[Any]) -> Iterable[Any]:
    """Return the keys of a dict or the items of a set if it is safe to hash them."""
    for key in keys:
        if type(key) is not str:
            _check_key(key)
    return keys


def _check_key(key: Any) -> None:
    nodes, visited = [(key, 0)], 0
    while nodes:
        node, depth = nodes.pop()
        visited += 1
        if type(node) is tuple and depth < _MAX_KEY_DEPTH and len(node) + visited < _MAX_KEY_ITEMS:
            nodes += [(item, depth + 1) for item in node]
        elif type(node) is int and node.bit_length() <= _MAX_KEY_BITS:
            continue
        elif type(node) not in _KEY_TYPES and not arrays.is_scalar(node):
            raise RefusedError(f'a dict has a key of type {type(node).__name__}')


def _get_statistic(_: RestrictedUnpickler, owner: Any, name: Any) -> None:
    """Replace getattr, which could access any attribute, for the statistics of a HistoryBuffer."""
    is_history = type(owner) is Global and owner.name == f'{_HISTORY}.HistoryBuffer'
    if not is_history or name not in _STATISTICS:
        raise NotPlainDataError('builtins.getattr')


def _make_ordered_dict(_: RestrictedUnpickler, pairs: Any = ()) -> OrderedDict[Any, Any]:
    made: OrderedDict[Any, Any] = OrderedDict()
    for pair in _expect(pairs, list, tuple):
        key, value = _expect(pair, list, tuple)
        _set_items(made, [key, value])
    return made


def _make_counter(unpickler: RestrictedUnpickler, counts: Any = None) -> Counter[Any]:
    counts = _expect({} if counts is None else counts, dict)
    unpickler.spend(len(counts))
    return Counter({key: _expect(count, int) for key, count in counts.items()})


def _make_slice(_: RestrictedUnpickler, *limits: Any) -> slice:
    start, stop, step = (_expect(limit, int, NoneType) for limit in limits)
    return slice(start, stop, step)


def _make_complex(_: RestrictedUnpickler, real: Any, imaginary: Any) -> complex:
    return complex(_expect(real, float), _expect(imaginary, float))


def _make_bytearray(unpickler: RestrictedUnpickler, content: Any = b'', encoding: Any = None) -> bytearray:
    """Copy bytes, or encode text as Python 2 writes them. A number would allocate that many bytes."""
    if encoding is not None:
        content = _encode(unpickler, content, encoding)
    unpickler.spend(len(_expect(content, bytes)))
    return bytearray(content)


def _encode(unpickler: RestrictedUnpickler, text: Any, encoding: Any) -> bytes:
    """Restore bytes as protocols 0 to 2 write them; other codecs could run more code."""
    if encoding not in ('latin1', 'latin-1'):
        raise RefusedError(f'it contains bytes encoded as {format_value(encoding)}')
    unpickler.spend(len(_expect(text, str)))
    return bytes(text.encode('latin1'))


def _expect(value: Any, *types: type) -> Any:
    if type(value) not in types:
        raise RefusedError(f'it has a {type(value).__name__} where a {types[0].__name__} is expected')
    return value


def _describe(value: Any) -> str:
    return value.name if type(value) is Global else type(value).__name__
