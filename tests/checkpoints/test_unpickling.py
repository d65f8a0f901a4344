"""Pickle and YAML files are read as data, and code in them does not run."""

import io
import pickle
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mmengine
import numpy as np
import pytest
import torch
from mmengine.fileio.handlers import file_handlers
from mmpretrain.datasets import MultiLabelDataset

from inline.checkpoints import load_pickle
from inline.openmmlab.patches import read_data_files_safely
from inline.utils.errors import UserError
from tests.checkpoints.malicious import RunsCode, legacy_bytes


@pytest.fixture(autouse=True)
def safe_handlers() -> Iterator[None]:
    before = dict(file_handlers)
    read_data_files_safely()
    yield
    file_handlers.update(before)


class TensorWithCode:
    """A pickled tensor whose bytes contain code."""

    def __init__(self, trace: Path) -> None:
        self.content = legacy_bytes(RunsCode(trace))

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return torch.storage._load_from_bytes, (self.content,)


@pytest.mark.parametrize('protocol', range(pickle.HIGHEST_PROTOCOL + 1))
def test_data_is_restored(protocol: int) -> None:
    data = {
        'ann': [{'labels': np.arange(3), 'box': np.float32([1, 2]), 'n': np.int64(4), 'rle': b'\xff\x00'}],
        'tensor': torch.arange(6.0).reshape(2, 3).t(),
        'mask': torch.tensor([True, False]),
        'kinds': OrderedDict(a={1, 2}, b=frozenset('x'), c=(1.5, None, 'é', 2**70, slice(1, 2), 1j)),
    }
    restored = load_pickle(io.BytesIO(pickle.dumps(data, protocol)))
    assert restored['kinds'] == data['kinds']
    assert torch.equal(restored['tensor'], data['tensor'])
    assert torch.equal(restored['mask'], data['mask'])
    (one,), (other,) = restored['ann'], data['ann']
    assert all(np.array_equal(one[key], other[key]) for key in ('labels', 'box', 'n'))
    assert one['rle'] == other['rle']


@pytest.mark.parametrize('case', ['top', 'eval', 'exec', 'nested', 'inside a tensor'])
@pytest.mark.parametrize('protocol', [0, 2, 4])
def test_code_in_annotations_does_not_run(case: str, protocol: int, tmp_path: Path) -> None:
    trace = tmp_path / 'trace'
    content = {
        'top': RunsCode(trace),
        'eval': RunsCode(trace, eval),
        'exec': RunsCode(trace, exec),
        'nested': {'metainfo': {'classes': ['a']}, 'data_list': [{'img_path': RunsCode(trace)}]},
        'inside a tensor': TensorWithCode(trace),
    }[case]
    path = tmp_path / 'annotations.pkl'
    path.write_bytes(pickle.dumps(content, protocol))
    with pytest.raises((UserError, pickle.UnpicklingError)):
        MultiLabelDataset(ann_file=str(path), data_root='', lazy_init=False)
    assert not trace.exists()
    pickle.loads(path.read_bytes())
    assert trace.exists(), 'the file runs code when it is unpickled without restriction'


def test_message_names_the_object(tmp_path: Path) -> None:
    (tmp_path / 'a.pickle').write_bytes(pickle.dumps(RunsCode(tmp_path / 'trace')))
    with pytest.raises(
        UserError, match=r'contains posix\.system, which is not plain data; it was not loaded'
    ):
        mmengine.load(str(tmp_path / 'a.pickle'))


@pytest.mark.parametrize('suffix', ['yaml', 'yml'])
def test_yaml_is_data(suffix: str, tmp_path: Path) -> None:
    path, trace = tmp_path / f'a.{suffix}', tmp_path / 'trace'
    path.write_text('classes: [a, b]\nsize: 3\n')
    assert mmengine.load(str(path)) == {'classes': ['a', 'b'], 'size': 3}
    path.write_text(f'!!python/object/apply:os.system ["touch {trace}"]\n')
    with pytest.raises(UserError, match='not plain data: could not determine a constructor'):
        mmengine.load(str(path))
    assert not trace.exists()


def test_files_of_mmengine_can_be_read(tmp_path: Path) -> None:
    mmengine.dump([{'scores': torch.ones(2)}], str(tmp_path / 'predictions.pkl'))
    assert mmengine.load(str(tmp_path / 'predictions.pkl'))[0]['scores'].tolist() == [1, 1]
