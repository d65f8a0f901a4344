"""Writing pickles and checkpoints by hand: instructions that Python's own pickler would never write."""

import io
import pickle
import zipfile
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Global:
    """A class or function by its qualified name."""

    name: str


@dataclass(frozen=True)
class Reduce:
    """A call."""

    function: Any
    arguments: Any


@dataclass(frozen=True)
class NewObject:
    """An instance that is created without its constructor."""

    cls: Any
    arguments: Any = ()


@dataclass(frozen=True)
class Build:
    """An object whose state is set."""

    owner: Any
    state: Any


@dataclass(frozen=True)
class Persistent:
    """A reference to tensor data."""

    pid: Any


@dataclass(frozen=True)
class Raw:
    """Instructions as bytes."""

    code: bytes


def write_pickle(value: Any) -> bytes:
    """Return a pickle of plain values and of the classes above."""
    return pickle.PROTO + b'\x02' + instructions(value) + pickle.STOP


def instructions(value: Any) -> bytes:
    """Return the instructions that push a value."""
    match value:
        case Raw(code):
            return code
        case Global(name):
            module, _, attribute = name.rpartition('.')
            return pickle.GLOBAL + f'{module}\n{attribute}\n'.encode()
        case Reduce(function, arguments):
            return instructions(function) + instructions(arguments) + pickle.REDUCE
        case NewObject(cls, arguments):
            return instructions(cls) + instructions(arguments) + pickle.NEWOBJ
        case Build(owner, state):
            return instructions(owner) + instructions(state) + pickle.BUILD
        case Persistent(pid):
            return instructions(pid) + pickle.BINPERSID
        case tuple():
            return pickle.MARK + b''.join(map(instructions, value)) + pickle.TUPLE
        case list():
            return pickle.EMPTY_LIST + pickle.MARK + b''.join(map(instructions, value)) + pickle.APPENDS
        case dict():
            items = b''.join(instructions(key) + instructions(item) for key, item in value.items())
            return pickle.EMPTY_DICT + pickle.MARK + items + pickle.SETITEMS
        case bytes():
            return pickle.BINBYTES + len(value).to_bytes(4, 'little') + value
        case _:
            # Without the header and the last instruction.
            return pickle.dumps(value, 2)[2:-1]


def write_zip(pickled: bytes, records: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """Return a checkpoint as torch writes it, with tensor data in `records`."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, 'w', compression) as archive:
        archive.writestr('archive/data.pkl', pickled)
        archive.writestr('archive/byteorder', b'little')
        for key, content in records.items():
            archive.writestr(f'archive/data/{key}', content)
        archive.writestr('archive/version', b'3\n')
    return buffer.getvalue()


# Building blocks of hostile files.
OBJECT_FIELDS = {'f': (Reduce(Global('numpy.dtype'), ('O', False, True)), 0)}
POINTER_DTYPE = Build(
    Reduce(Global('numpy.dtype'), ('f8', False, True)), (3, '<', None, ('f',), OBJECT_FIELDS, 8, 8, 1)
)


def array(dtype: Any, shape: Any, content: Any, package: str = 'numpy._core') -> Build:
    """Return a pickled array with any dtype, shape and bytes."""
    empty = Reduce(Global(f'{package}.multiarray._reconstruct'), (Global('numpy.ndarray'), (0,), b'b'))
    return Build(empty, (1, shape, dtype, False, content))


def plain_dtype(name: str) -> Build:
    """Return a numeric dtype as numpy pickles it."""
    state = (3, '<', None, None, None, -1, -1, 0)
    return Build(Reduce(Global('numpy.dtype'), (name, False, True)), state)


def storage(kind: str = 'FloatStorage', key: str = '0', numel: Any = 4) -> Persistent:
    return Persistent(('storage', Global(f'torch.{kind}'), key, 'cpu', numel))


def tensor(source: Any, offset: Any = 0, size: Any = (4,), stride: Any = (1,)) -> Reduce:
    arguments = (source, offset, size, stride, False, Reduce(Global('collections.OrderedDict'), ()))
    return Reduce(Global('torch._utils._rebuild_tensor_v2'), arguments)
