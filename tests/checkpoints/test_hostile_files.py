"""Files that stay within the allowed names, but give them hostile arguments, sizes or states."""

import io
import json
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.logging import HistoryBuffer
from torch import nn

from inline.checkpoints import load_partial_state_dict, load_pickle, read_checkpoint, read_file
from inline.utils.errors import UserError
from tests.checkpoints.malicious import zip_bytes
from tests.checkpoints.pickle_writer import (
    POINTER_DTYPE,
    Build,
    Global,
    NewObject,
    Raw,
    Reduce,
    array,
    plain_dtype,
    storage,
    tensor,
    write_pickle,
    write_zip,
)

FOUR = {'0': np.arange(4, dtype=np.float32).tobytes()}
HISTORY = Global('mmengine.logging.history_buffer.HistoryBuffer')
MEAN = Reduce(Global('builtins.getattr'), (HISTORY, 'mean'))
MAX = Reduce(Global('builtins.getattr'), (HISTORY, 'max'))
VECTOR = array(plain_dtype('f8'), (1,), bytes(8))
# A deep tuple as a key: its hash is computed recursively.
DEEP_KEY = Raw(b'})' + b'\x85' * 200_000 + b'Ns')
# Ten lists, each of which holds the one before ten times.
LAUGHS = Raw(b'(]Na' + b''.join(b'q%c](' % i + b'h%c' % i * 10 + b'e' for i in range(1, 11)) + b't')
ITSELF = Raw(b']q\x01h\x01a')
REFUSED: dict[str, tuple[Any, str]] = {
    'array of pointers': (array(POINTER_DTYPE, (1,), b'A' * 8), "type 'O'"),
    'array of objects': (array(Reduce(Global('numpy.dtype'), ('O',)), (1,), [1]), "type 'O'"),
    'dtype with fields': (
        Build(Reduce(Global('numpy.dtype'), ('f8',)), (3, '<', None, ('f',), {}, 8, 8, 1)),
        'dtype with fields',
    ),
    'array of another byte order': (
        Build(Reduce(Global('numpy.dtype'), ('f8',)), (3, '>', None, None, None, -1, -1, 0)),
        'non-native byte order',
    ),
    'array of text': (array(Reduce(Global('numpy.dtype'), ('U9',)), (1,), bytes(36)), "type 'U9'"),
    'array with few bytes': (array(plain_dtype('f8'), (1000,), bytes(8)), r'shape \(1000,\).* 8 bytes'),
    'array that is set twice': (Build(VECTOR, (1, (1,), plain_dtype('f8'), False, bytes(8))), 'twice'),
    'invalid boolean mask': (array(plain_dtype('b1'), (1,), b'\xff'), 'values other than 0 and 1'),
    'large bytearray': (
        Reduce(Global('builtins.bytearray'), (2**33,)),
        'has a int where a bytes is expected',
    ),
    'state of a class': (Build(HISTORY, (None, {'mean': 1})), 'a state of mmengine.*HistoryBuffer'),
    'history without numbers': (Build(NewObject(HISTORY), {'_log_history': 1}), 'without numbers'),
    'class as data': (Global('builtins.set'), 'contains builtins.set, which is not plain data'),
    'deep key': (DEEP_KEY, 'key of type tuple'),
    'shared lists': (LAUGHS, 'has more than .* items'),
    'list in itself': (ITSELF, 'contains itself'),
    'deep nesting': (Raw(b')' + b'\x85' * 500), 'nested more than 100 levels'),
    'large integer': (Raw(b'I0x' + b'f' * 1000 + b'\n'), 'an integer of 4000 bits'),
    'declared bytes': (Raw(b'\x96' + (2**32).to_bytes(8, 'little') + b'abc'), 'expands to more than'),
    'codec': (Reduce(Global('_codecs.encode'), ('x', 'rot13')), "bytes encoded as 'rot13'"),
}
REFUSED_TENSORS: dict[str, tuple[Any, str]] = {
    'declared larger than its data': (
        tensor(storage(numel=2**20), size=(2**20,)),
        'fewer bytes than declared',
    ),
    'larger than its storage': (tensor(storage(), size=(5,)), r'shape \(5,\) .* larger than its storage'),
    'behind its storage': (tensor(storage(), offset=1), 'larger than its storage'),
    'of negative size': (tensor(storage(), size=(-1,)), 'invalid shape'),
    'that overflows': (tensor(storage(), size=(2**62, 4), stride=(0, 1)), 'invalid shape'),
    'expanded': (tensor(storage(), size=(2**20,), stride=(0,)), 'expands to more than'),
    'invalid boolean mask': (
        tensor(storage('BoolStorage', numel=16), size=(16,)),
        'values other than 0 and 1',
    ),
}


def read_as_pickle(value: Any) -> Any:
    return load_pickle(io.BytesIO(write_pickle(value)))


def read_as_checkpoint(value: Any) -> Any:
    content = write_pickle({'state_dict': {'x': tensor(storage())}, 'message_hub': {'runtime_info': value}})
    return read_file(io.BytesIO(write_zip(content, FOUR)))


@pytest.mark.parametrize('case', REFUSED)
@pytest.mark.parametrize('read', [read_as_pickle, read_as_checkpoint])
def test_hostile_arguments_and_states_are_refused(read: Any, case: str) -> None:
    value, message = REFUSED[case]
    with pytest.raises(UserError, match=message) as raised:
        read(value)
    assert '\n' not in str(raised.value)


@pytest.mark.parametrize('case', REFUSED_TENSORS)
def test_hostile_tensors_are_refused(case: str) -> None:
    value, message = REFUSED_TENSORS[case]
    with pytest.raises(UserError, match=message):
        read_as_checkpoint(value)


def test_the_same_pieces_in_a_correct_file_are_data() -> None:
    """Otherwise the tests above could fail for another reason."""
    data = read_as_checkpoint([VECTOR, tensor(storage(), 1, (3,)), MEAN])['message_hub']['runtime_info']
    assert data[0].tolist() == [0]
    assert data[1].tolist() == [1, 2, 3]


@pytest.mark.parametrize('as_zip', [True, False])
def test_files_of_numpy_1_load(as_zip: bool) -> None:
    """numpy 2 renamed numpy.core to numpy._core."""
    content = {'state_dict': {'x': torch.ones(1)}, 'a': np.float32([1, 2]), 'b': np.int64(3)}
    content['history'] = HistoryBuffer([0.5], [1])
    buffer = io.BytesIO()
    torch.save(content, buffer, _use_new_zipfile_serialization=as_zip)
    old = buffer.getvalue()
    if as_zip:
        with zipfile.ZipFile(buffer) as archive:
            pickled = archive.read('archive/data.pkl').replace(b'numpy._core', b'numpy.core')
            old = write_zip(pickled, {'0': archive.read('archive/data/0')})
    else:
        old = old.replace(b'numpy._core', b'numpy.core')
    assert b'numpy.core' in old
    assert b'numpy._core' not in old
    loaded = read_file(io.BytesIO(old))
    assert loaded['a'].tolist() == [1, 2]
    assert loaded['b'] == 3
    assert loaded['history'].mean() == 0.5


def test_a_log_history_does_not_change_the_statistics_of_the_process() -> None:
    before = dict(HistoryBuffer([1.0], [1])._statistics_methods)
    state = {
        '_log_history': VECTOR,
        '_count_history': VECTOR,
        'max_length': 5,
        'statistics_methods': {'mean': MAX, 'evil': MEAN},
    }
    read = read_as_checkpoint(Build(NewObject(HISTORY), state))['message_hub']['runtime_info']
    assert type(read) is HistoryBuffer
    assert read.max_length == 5
    assert HistoryBuffer._statistics_methods == before
    assert read.statistics('current') == 0


def test_a_checkpoint_is_not_larger_in_memory_than_its_file() -> None:
    pickled = write_pickle({'x': tensor(storage(numel=2**20), size=(2**20,))})
    zeros = {'0': bytes(2**22)}
    assert read_file(io.BytesIO(write_zip(pickled, zeros)))['x'].numel() == 2**20
    compressed = write_zip(pickled, zeros, zipfile.ZIP_DEFLATED)
    assert len(compressed) < 2**14
    with pytest.raises(UserError, match=r'is compressed, which torch\.save never does'):
        read_file(io.BytesIO(compressed))
    # The directory twice: two members for the same bytes.
    file = write_zip(pickled, zeros)
    start, end = file.index(b'PK\x01\x02'), file.index(b'PK\x05\x06')
    directory, last = file[start:end], bytearray(file[end:])
    last[8:12] = (8).to_bytes(2, 'little') * 2
    last[12:16] = (2 * len(directory)).to_bytes(4, 'little')
    with pytest.raises(UserError, match='members have more bytes than the file'):
        read_file(io.BytesIO(file[:start] + 2 * directory + bytes(last)))


def quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8)


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize(
    ('make', 'kind'),
    [
        (lambda: torch.eye(2).to_sparse(), 'sparse'),
        (lambda: torch.eye(2).to_sparse_csr(), 'sparse'),
        (quantized, 'quantized'),
        (lambda: torch.ones(2, device='meta'), 'a meta tensor without values'),
        (lambda: torch.ones(2, dtype=torch.complex64), 'complex'),
    ],
)
def test_tensors_that_are_not_dense_are_named(make: Any, kind: str, tmp_path: Path) -> None:
    content = zip_bytes({'state_dict': {'backbone.good': torch.ones(1), 'backbone.bad': make()}})
    (tmp_path / 'x.pth').write_bytes(content)
    with pytest.raises(UserError, match=rf"x\.pth'.*'backbone\.bad'.* is {kind}"):
        read_checkpoint(tmp_path / 'x.pth')


class WithMask(nn.Module):
    """A module with a parameter and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))
        self.register_buffer('mask', torch.zeros(2))


def test_weights_with_nan_are_refused_and_masks_may_be_infinite() -> None:
    model = WithMask()
    good = {'weight': torch.ones(2), 'mask': torch.tensor([0, -torch.inf])}
    assert load_partial_state_dict(model, good, 'x.pth').exact
    for name, value in (('weight', torch.nan), ('weight', torch.inf), ('mask', torch.nan)):
        bad = {**good, name: torch.tensor([0, value])}
        with pytest.raises(UserError, match=f"'x.pth': tensor '{name}' contains NaN or infinity"):
            load_partial_state_dict(model, bad, 'x.pth')
    assert model.weight.tolist() == [1, 1]
    for dtype in (torch.float16, torch.bfloat16, torch.float8_e5m2):
        weights = {'weight': torch.tensor([0, torch.nan]).to(dtype)}
        with pytest.raises(UserError, match='contains NaN'):
            load_partial_state_dict(model, weights, 'x.pth')


def test_control_characters_do_not_reach_the_terminal(tmp_path: Path) -> None:
    evil = '\x1b]0;title\x07\x9b2J\u202e\n'
    torch.save({'state_dict': {evil: torch.ones(1)}}, tmp_path / 'a.pth')
    read = read_checkpoint(tmp_path / 'a.pth')
    with pytest.raises(UserError, match=r'not in the model: \\x1b\]0;title\\x07\\x9b2J\\u202e\\n$') as raised:
        load_partial_state_dict(WithMask(), read.state_dict, read.source)
    assert str(raised.value).isprintable()
    torch.save({'state_dict': {evil: torch.eye(2).to_sparse()}}, tmp_path / 'b.pth')
    with pytest.raises(UserError, match=r'x07.*is sparse') as raised:
        read_checkpoint(tmp_path / 'b.pth')
    assert str(raised.value).isprintable()
    meta = {'dataset_meta': {'classes': ('cat', evil), 'palette': 'random'}}
    torch.save({'state_dict': {'x': torch.ones(1)}, 'meta': meta}, tmp_path / 'c.pth')
    found = read_checkpoint(tmp_path / 'c.pth').dataset_meta
    assert found == {'classes': ('cat', '\\x1b]0;title\\x07\\x9b2J\\u202e\\n')}
    meta['dataset_meta']['classes'] = 5
    torch.save({'state_dict': {'x': torch.ones(1)}, 'meta': meta}, tmp_path / 'd.pth')
    with pytest.raises(UserError, match='its classes are 5, must be a list of names'):
        assert read_checkpoint(tmp_path / 'd.pth').dataset_meta


def test_versions_of_modules_are_numbers(tmp_path: Path) -> None:
    weights = OrderedDict(weight=torch.ones(2), mask=torch.ones(2))
    weights._metadata = {'': 5, 'a': {'version': 'x'}, 'b': {'version': 2, 'other': 3}}  # type: ignore[attr-defined]
    torch.save({'state_dict': weights}, tmp_path / 'a.pth')
    state_dict = read_checkpoint(tmp_path / 'a.pth').state_dict
    assert state_dict._metadata == {'b': {'version': 2}}  # type: ignore[attr-defined]
    assert load_partial_state_dict(WithMask(), state_dict, 'a.pth').exact


def test_attributes_of_containers_do_not_hide_methods() -> None:
    hidden = Build(Reduce(Global('collections.OrderedDict'), ()), {'items': 1, '_metadata': {'': {}}})
    read = read_as_pickle([hidden, Build(NewObject(Global('argparse.Namespace')), {'lr': 0.1})])
    assert list(read[0].items()) == []
    assert read[1].lr == 0.1


@pytest.mark.parametrize('content', [b'', b'hello', b'\x80\x04', b'(' * 100, pickle.dumps([1, 2])[:-1]])
def test_a_damaged_pickle_is_one_line(content: bytes) -> None:
    with pytest.raises(UserError, match=r'^a pickle file is damaged or not a pickle$'):
        load_pickle(io.BytesIO(content))


def test_deep_json_in_safetensors_is_one_line(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    path = tmp_path / 'a.safetensors'
    save_file({'x': torch.ones(1)}, path, {'meta': '[' * 100_000})
    with pytest.raises(UserError, match='cannot be read'):
        read_checkpoint(path)
    save_file({'x': torch.ones(1)}, path, {'meta': json.dumps({'epoch': 1})})
    assert read_checkpoint(path).meta == {'epoch': 1}
