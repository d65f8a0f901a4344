"""Fuzzer of the restricted unpickler: ``python -m tests.checkpoints.fuzz_unpickling --mutants 20000``.

Two kinds of hostile files are read:

- the grid: every allowed global with every instruction that creates or changes an object, and hostile
  arguments, in a plain pickle and in a checkpoint;
- mutants: real checkpoints and annotations with random changes of bytes, instructions or the zip structure.

Files are read in child processes, many per process. The only accepted outcomes are data, which is then
printed, copied and compared so that a wrong pointer would crash, and one line of a ``UserError``. A signal,
another exception, more than SECONDS for a file, or more than MEGABYTES for a process are failures.
"""

import argparse
import copy
import faulthandler
import io
import os
import pickle
import pickletools
import random
import resource
import signal
import sys
import tempfile
import traceback
import warnings
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.logging import HistoryBuffer

from inline.checkpoints import load_pickle, read_file
from inline.checkpoints.unpickling import _globals
from inline.utils.errors import UserError
from tests.checkpoints.pickle_writer import (
    POINTER_DTYPE,
    Build,
    Global,
    NewObject,
    Raw,
    Reduce,
    array,
    instructions,
    plain_dtype,
    storage,
    tensor,
    write_pickle,
    write_zip,
)

SECONDS = 20
MEGABYTES = 600
PER_PROCESS = 500
RECORDS = {'0': np.arange(4, dtype=np.float32).tobytes()}


@dataclass(frozen=True)
class HostileFile:
    """A file, the reader that it is for, and what is wrong with it."""

    content: bytes
    read: Callable[[io.BytesIO], Any]
    label: str


# Values where others are expected: numbers that overflow, types without a length, deep and recursive data.
HOSTILE: tuple[Any, ...] = (
    *(None, True, -1, 2**31, 2**62, -(2**63), 10**300, float('nan'), '', 'O', 'V8', 'U99999999', 'rot13'),
    *(b'', b'A' * 8, b'\xff' * 64, (), (0,), (2**62,), (2**40, 2**40), (-1,), ('x',), [], [[]], {}, {'a': 1}),
    *({1, 2}, {'_metadata': 1}, {'__class__': 1, '_log_history': None}, (None, {'mean': 1}), slice(1, 2)),
    Raw(b')' + b'\x85' * 300),
    Raw(b'(' * 50),
    Raw(b']q\x01h\x01a'),
    *(
        Global('numpy.ndarray'),
        Global('builtins.getattr'),
        Global('torch.float32'),
        Global('torch.QInt8Storage'),
    ),
    *(plain_dtype('f8'), POINTER_DTYPE, array(POINTER_DTYPE, (1,), b'A' * 8)),
    *(array(plain_dtype('f8'), (1,), b'A' * 8), storage(), storage(numel=2**40), tensor(storage())),
    Reduce(Global('numpy.dtype'), ('O', False, True)),
    NewObject(Global('mmengine.logging.history_buffer.HistoryBuffer')),
)
_DTYPE = plain_dtype('f8')
_HOOKS = Reduce(Global('collections.OrderedDict'), ())
_VECTOR = array(_DTYPE, (1,), b'A' * 8)
_HISTORY = Global('mmengine.logging.history_buffer.HistoryBuffer')
# Correct arguments: each is replaced by each hostile value.
CALLS: dict[str, tuple[Any, ...]] = {
    'torch._utils._rebuild_tensor': (storage(), 0, (2, 2), (2, 1)),
    'torch._utils._rebuild_tensor_v2': (storage(), 0, (2, 2), (2, 1), False, _HOOKS),
    'torch._utils._rebuild_tensor_v3': (storage(), 0, (4,), (1,), False, _HOOKS, Global('torch.float32')),
    'torch._utils._rebuild_parameter': (tensor(storage()), True, _HOOKS),
    'torch._utils._rebuild_qtensor': (storage('QInt8Storage'), 0, (4,), (1,), (1, 2), False, _HOOKS),
    'torch._utils._rebuild_sparse_tensor': (0, (tensor(storage()), tensor(storage()), (4,))),
    'torch._utils._rebuild_meta_tensor_no_storage': (Global('torch.float32'), (2,), (1,), False),
    'torch._utils._rebuild_nested_tensor': (tensor(storage()), tensor(storage()), (1,), (0,)),
    'torch._tensor._rebuild_from_type_v2': (
        *(Global('torch._utils._rebuild_tensor_v2'), Global('torch.Tensor')),
        *((storage(), 0, (4,), (1,), False, _HOOKS), {'a': 1}),
    ),
    'torch.storage._load_from_bytes': (b'\x80\x02}.',),
    'torch.device': ('cuda', 0),
    'torch.Size': ((1, 2),),
    'numpy.dtype': ('f8', False, True),
    'numpy._core.multiarray._reconstruct': (Global('numpy.ndarray'), (0,), b'b'),
    'numpy.core.multiarray.scalar': (_DTYPE, b'A' * 8),
    'numpy._core.numeric._frombuffer': (b'A' * 8, _DTYPE, (1,), 'C'),
    '_codecs.encode': ('abc', 'latin1'),
    'builtins.getattr': (_HISTORY, 'mean'),
    'builtins.slice': (1, 2, 3),
    'builtins.complex': (1.0, 2.0),
    'builtins.bytearray': ('abc', 'latin-1'),
    'collections.OrderedDict': ([('a', 1), ('b', 2)],),
    'collections.Counter': ({'a': 1},),
}
_EMPTY_ARRAY = array(_DTYPE, (1,), b'').owner
# Objects, and correct states of which each part is replaced.
STATES: tuple[tuple[Any, Any], ...] = (
    (_EMPTY_ARRAY, (1, (1,), _DTYPE, False, b'A' * 8)),
    (_VECTOR, (1, (1,), _DTYPE, False, b'A' * 8)),
    (Reduce(Global('numpy.dtype'), ('f8', False, True)), (3, '<', None, None, None, -1, -1, 0)),
    (NewObject(_HISTORY), {'_log_history': _VECTOR, '_count_history': _VECTOR, 'max_length': 5}),
    (_HOOKS, {'_metadata': {'': {'version': 1}}}),
    (NewObject(Global('argparse.Namespace')), {'lr': 0.1}),
    (tensor(storage()), (storage(), 0, (4,), (1,))),
    (Reduce(Global('torch._utils._rebuild_parameter'), (tensor(storage()), True, _HOOKS)), (1, 2)),
)
# Instructions that change the object below the top of the stack, with what they need there.
CHANGES = (b'b', b's', b'a', b'(Nu', b'(e', b'(NN\x90', b'(NNd', b'\x81', b'R', b'\x92', b'Q', b'o', b'\x93')


@cache
def grid() -> list[Any]:
    """Return the values of the grid."""
    names = sorted(_globals())
    values = [Reduce(Global(name), (hostile,)) for name in names for hostile in HOSTILE]
    values += [NewObject(Global(name), hostile) for name in names for hostile in HOSTILE]
    values += [Build(Global(name), hostile) for name in names for hostile in HOSTILE]
    values += [
        Raw(instructions(Global(name)) + instructions(hostile) + change)
        for name in names
        for hostile in HOSTILE[::4]
        for change in CHANGES
    ]
    for name, arguments in CALLS.items():
        values.append(Reduce(Global(name), arguments))
        values += [Reduce(Global(name), replaced) for replaced in _replace_each(arguments)]
    for owner, state in STATES:
        values.append(Build(owner, state))
        values += [Build(owner, replaced) for replaced in (*_replace_each(state), *HOSTILE)]
        values += [
            Raw(instructions(Build(owner, state)) + instructions(hostile) + change)
            for hostile in HOSTILE[::4]
            for change in CHANGES
        ]
    return values


def _replace_each(values: Any) -> Iterator[Any]:
    for hostile in HOSTILE:
        if isinstance(values, dict):
            yield from ({**values, key: hostile} for key in values)
        else:
            yield from ((*values[:i], hostile, *values[i + 1 :]) for i in range(len(values)))


def grid_file(index: int) -> HostileFile:
    """Return a value of the grid as a plain pickle (even indices) or inside a checkpoint."""
    value, label = grid()[index // 2], f'grid {index // 2}'
    if index % 2:
        content = write_zip(write_pickle({'state_dict': {'x': value}}), RECORDS)
        return HostileFile(content, read_file, f'{label} in a checkpoint')
    return HostileFile(write_pickle(value), load_pickle, f'{label} in a pickle')


def training_content() -> dict[str, Any]:
    """Return the content of a training checkpoint."""
    weights = OrderedDict(weight=torch.arange(6.0).reshape(2, 3), bias=torch.ones(2).half())
    weights._metadata = OrderedDict({'': {'version': 1}})  # type: ignore[attr-defined]
    groups = [{'lr': 0.1, 'betas': (0.9, 0.999), 'params': [0, 1]}]
    state = {0: {'step': torch.tensor(1.0), 'exp_avg': torch.zeros(2, 3)}}
    return {
        'meta': {'epoch': 0, 'iter': 3, 'seed': 7, 'cfg': 'a = 1', 'dataset_meta': {'classes': ('a', 'é')}},
        'state_dict': weights,
        'message_hub': {
            'log_scalars': {'loss': HistoryBuffer([0.5, 0.25], [1, 1])},
            'runtime_info': {'step': np.int64(1), 'mean': np.float32([1, 2])},
            'resumed_keys': {'loss': True},
        },
        'optimizer': {'state': state, 'param_groups': groups},
        'param_schedulers': [{'milestones': Counter({2: 1}), 'gamma': 0.1}],
        'args': argparse.Namespace(lr=0.1),
    }


@cache
def bases() -> list[tuple[str, bytes, Callable[[io.BytesIO], Any]]]:
    """Return real files: name, content and reader."""
    content = training_content()
    annotations = [
        {'img_path': 'a.jpg', 'gt_label': np.arange(3), 'box': np.float32([[1, 2, 3, 4]]), 's': {1}}
    ]
    annotations.append({'mask': b'\x00\xff', 'scores': torch.ones(2), 'flag': np.bool_(True), 'z': 1j})
    checkpoints = []
    for as_zip in (True, False):
        buffer = io.BytesIO()
        torch.save(content, buffer, _use_new_zipfile_serialization=as_zip)
        checkpoints.append(('zip' if as_zip else 'legacy', buffer.getvalue(), read_file))
    plain = [
        (f'protocol {protocol}', pickle.dumps(annotations, protocol), load_pickle)
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
    ]
    return checkpoints + plain


def mutant(seed: int) -> HostileFile:
    """Return a real file with one to four random changes; the same one for the same seed."""
    draw = random.Random(seed)
    name, content, read = draw.choice(bases())
    is_zip = name == 'zip'
    kind = draw.choice(('bytes', 'instructions', 'instructions', 'zip' if is_zip else 'instructions'))
    for _ in range(draw.randint(1, 4)):
        if kind == 'bytes':
            content = _change_bytes(content, draw)
        elif kind == 'zip':
            content = _change_zip(content, draw)
        elif is_zip:
            content = _change_member(content, draw)
        else:
            content = _change_instructions(content, draw)
    return HostileFile(content, read, f'mutant {seed}: {kind} of {name}')


def _change_bytes(content: bytes, draw: random.Random) -> bytes:
    changed = bytearray(content)
    start, length = draw.randrange(len(changed)), draw.choice((1, 1, 2, 4, 8, 64))
    match draw.randrange(5):
        case 0:
            changed[start] ^= 1 << draw.randrange(8)
        case 1:
            changed[start : start + length] = draw.randbytes(length)
        case 2:
            del changed[start : start + length]
        case 3:
            changed[start:start] = changed[draw.randrange(len(changed)) :][:length]
        case 4:
            changed[start : start + 4] = draw.choice((b'\xff' * 4, b'\0' * 4, b'\xff\xff\xff\x7f'))
    return bytes(changed) or b'.'


def _change_instructions(content: bytes, draw: random.Random) -> bytes:
    """Change instructions of the pickle that makes up most of the content."""
    begin = _data_start(content)
    try:
        starts = [begin + position for _, _, position in pickletools.genops(content[begin:])]
    except Exception:
        return _change_bytes(content, draw)
    i = draw.randrange(len(starts) - 1)
    start, end = starts[i], starts[i + 1]
    other = draw.randrange(len(starts) - 1)
    piece = content[starts[other] : starts[other + 1]]
    new = {
        'delete': b'',
        'repeat': content[start:end] * draw.choice((2, 3, 1000)),
        'replace': piece,
        'insert': piece + content[start:end],
        'code': bytes([ord(draw.choice(pickletools.opcodes).code)]) + content[start + 1 : end],
        'hostile': instructions(draw.choice(HOSTILE)),
        'insert hostile': instructions(draw.choice(HOSTILE)) + content[start:end],
        'global': instructions(Global(draw.choice(sorted(_globals())))),
        'change': content[start:end] + draw.choice(CHANGES),
    }
    return content[:start] + new[draw.choice(list(new))] + content[end:]


def _data_start(content: bytes) -> int:
    """Return where the largest pickle begins: the legacy format starts with three small ones."""
    stream, begin = io.BytesIO(content), 0
    if b'storage' not in content or not content.startswith(b'\x80\x02\x8a'):
        return 0
    for _ in range(3):
        try:
            pickletools.dis(stream, out=io.StringIO())
        except Exception:
            return 0
        begin = stream.tell()
    return begin


def _change_member(content: bytes, draw: random.Random) -> bytes:
    """Change the pickle in a checkpoint, and write the checkpoint again with correct checksums."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = [(name, archive.read(name)) for name in archive.namelist()]
    except Exception:
        return _change_bytes(content, draw)
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, 'w') as archive:
        warnings.simplefilter('ignore')
        for name, data in members:
            archive.writestr(name, _change_instructions(data, draw) if name.endswith('data.pkl') else data)
    return buffer.getvalue()


def _change_zip(content: bytes, draw: random.Random) -> bytes:
    """Change sizes, names or the number of members, or the directory."""
    directory = max(content.rfind(b'PK\x01\x02'), 0)
    changed = bytearray(content)
    if draw.random() < 0.4:
        position = draw.randrange(directory, len(changed))
        changed[position] = draw.choice((0, 1, 0x7F, 0xFF, draw.randrange(256)))
        return bytes(changed)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = [(name, archive.read(name)) for name in archive.namelist()]
    except Exception:
        return _change_bytes(content, draw)
    i = draw.randrange(len(members))
    name, data = members[i]
    match draw.randrange(5):
        case 0:
            members[i] = (name, data[: len(data) // 2])
        case 1:
            members[i] = (name, data + bytes(1000))
        case 2:
            del members[i]
        case 3:
            members.append((name, draw.choice(members)[1]))
        case 4:
            members[i] = (draw.choice(members)[0], data)
    compression = zipfile.ZIP_DEFLATED if draw.random() < 0.1 else zipfile.ZIP_STORED
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, 'w', compression) as archive:
        warnings.simplefilter('ignore')
        for name, data in members:
            archive.writestr(name, data)
    return buffer.getvalue()


def judge(file: HostileFile) -> str:
    """Read a file and use its data; return the outcome: data, error, or a description of a failure."""
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        try:
            data = file.read(io.BytesIO(file.content))
        except UserError as error:
            text = str(error)
            return 'error' if text and '\n' not in text and '\x1b' not in text else f'bad message {text!r}'
        use(data)
        return 'data'
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f'{type(error).__name__} in {Path(where.filename).name}:{where.lineno}: {str(error)[:200]}'
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def use(data: Any) -> None:
    """Touch every value: a wrong pointer or size crashes here."""
    repr(data)
    twin = copy.deepcopy(data)
    pickle.loads(pickle.dumps(twin))
    nodes = [(data, twin)]
    while nodes:
        one, other = nodes.pop()
        if isinstance(one, dict):
            nodes += zip(one.values(), other.values(), strict=True)
        elif isinstance(one, list | tuple):
            nodes += zip(one, other, strict=True)
        elif isinstance(one, torch.Tensor):
            torch.equal(one, other)
            one.clone().contiguous().flatten().tolist()
        elif isinstance(one, np.ndarray | np.generic):
            np.array_equal(one, other)
            np.asarray(one).copy().tolist()
        elif isinstance(one, HistoryBuffer):
            one.update(1.0)
            one.mean()
        elif not isinstance(one, argparse.Namespace):
            assert one == other or one != other


def run(files: Sequence[Callable[[], HostileFile]]) -> Counter[str]:
    """Read files in child processes and count the outcomes. Failures carry the label of their file."""
    outcomes: Counter[str] = Counter()
    done = 0
    while done < len(files):
        batch = files[done : done + PER_PROCESS]
        with tempfile.NamedTemporaryFile('r') as log:
            pid = os.fork()
            if pid == 0:
                _read_in_child(batch, log.name)
            _, status = os.waitpid(pid, 0)
            lines = log.read().splitlines()
        outcomes.update(lines)
        done += len(lines)
        if status != 0:
            cause = f'signal {os.WTERMSIG(status)}' if os.WIFSIGNALED(status) else f'status {status}'
            outcomes[f'FAILURE {cause}: {files[min(done, len(files) - 1)]().label}'] += 1
            done += 1
    return outcomes


def _read_in_child(batch: Sequence[Callable[[], HostileFile]], log: str) -> None:
    """Read files and write one outcome per line. Never returns."""
    warnings.simplefilter('ignore')
    faulthandler.disable()

    def give_up(*_: Any) -> None:
        raise TimeoutError(f'more than {SECONDS} s')

    signal.signal(signal.SIGALRM, give_up)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Virtual memory: an allocation of many gigabytes fails at once instead of slowing the machine down. The
    # libraries that other tests have loaded may have reserved a lot of it already.
    reserved = int(Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (reserved + 32 * 2**30, hard))
    with open(log, 'w', buffering=1) as written:
        for make in batch:
            file = make()
            outcome = judge(file)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            grown = (peak - before) / 1024
            if outcome in ('data', 'error') and grown < MEGABYTES:
                written.write(f'{outcome}\n')
            else:
                reason = outcome if grown < MEGABYTES else f'{grown:.0f} MB'
                written.write(f'FAILURE {file.label}: {" ".join(reason.split())}\n')
                before = peak
    os._exit(0)


def all_files(mutants: int, seed: int, step: int = 1) -> list[Callable[[], HostileFile]]:
    """Return every `step`-th file of the grid, and `mutants` mutants."""
    grid_indices = range(0, 2 * len(grid()), step)
    return [
        *((lambda index=index: grid_file(index)) for index in grid_indices),
        *((lambda number=number: mutant(number)) for number in range(seed, seed + mutants)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description='Fuzz the restricted unpickler.')
    parser.add_argument('--mutants', type=int, default=20_000, help='random mutants besides the grid')
    parser.add_argument('--seed', type=int, default=0, help='number of the first mutant')
    parser.add_argument('--step', type=int, default=1, help='read every n-th file of the grid')
    args = parser.parse_args()
    files = all_files(args.mutants, args.seed, args.step)
    outcomes = run(files)
    failures = [name for name in outcomes if name.startswith('FAILURE')]
    for name in failures:
        print(f'{outcomes[name]} × {name}')
    print(
        f'{len(files)} files ({len(files) - args.mutants} grid, {args.mutants} mutants): '
        f'{outcomes["data"]} data, {outcomes["error"]} errors in one line, {len(failures)} failures'
    )
    sys.exit(bool(failures))


if __name__ == '__main__':
    main()
