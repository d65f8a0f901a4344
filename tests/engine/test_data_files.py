"""Pickled and YAML files of data: data comes back, code does not run, whoever reads them."""

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

from inline.engine.data_files import install, load_pickled
from inline.errors import UserError
from tests.engine.malicious import Run, legacy


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    before = dict(file_handlers)
    install()
    yield
    file_handlers.update(before)


class Holds:
    """A tensor whose bytes hold something else."""

    def __init__(self, trace: Path) -> None:
        self.content = legacy(Run(trace))

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return torch.storage._load_from_bytes, (self.content,)


@pytest.mark.parametrize('protocol', range(pickle.HIGHEST_PROTOCOL + 1))
def test_data_comes_back(protocol: int) -> None:
    data = {
        'ann': [{'labels': np.arange(3), 'box': np.float32([1, 2]), 'n': np.int64(4), 'rle': b'\xff\x00'}],
        'tensor': torch.arange(6.0).reshape(2, 3).t(),
        'mask': torch.tensor([True, False]),
        'kinds': OrderedDict(a={1, 2}, b=frozenset('x'), c=(1.5, None, 'é', 2**70, slice(1, 2), 1j)),
    }
    back = load_pickled(io.BytesIO(pickle.dumps(data, protocol)))
    assert back['kinds'] == data['kinds']
    assert torch.equal(back['tensor'], data['tensor'])
    assert torch.equal(back['mask'], data['mask'])
    (one,), (other,) = back['ann'], data['ann']
    assert all(np.array_equal(one[key], other[key]) for key in ('labels', 'box', 'n'))
    assert one['rle'] == other['rle']


@pytest.mark.parametrize('how', ['top', 'eval', 'exec', 'nested', 'inside a tensor'])
@pytest.mark.parametrize('protocol', [0, 2, 4])
def test_code_in_annotations_does_not_run(how: str, protocol: int, tmp_path: Path) -> None:
    trace = tmp_path / 'trace'
    bad = {
        'top': Run(trace),
        'eval': Run(trace, eval),
        'exec': Run(trace, exec),
        'nested': {'metainfo': {'classes': ['a']}, 'data_list': [{'img_path': Run(trace)}]},
        'inside a tensor': Holds(trace),
    }[how]
    path = tmp_path / 'annotations.pkl'
    path.write_bytes(pickle.dumps(bad, protocol))
    with pytest.raises((UserError, pickle.UnpicklingError)):
        MultiLabelDataset(ann_file=str(path), data_root='', lazy_init=False)
    assert not trace.exists()
    pickle.loads(path.read_bytes())
    assert trace.exists()


def test_what_an_annotation_file_holds_is_told(tmp_path: Path) -> None:
    (tmp_path / 'a.pickle').write_bytes(pickle.dumps(Run(tmp_path / 'trace')))
    with pytest.raises(UserError, match=r'holds posix\.system, which is not data, and was not read'):
        mmengine.load(str(tmp_path / 'a.pickle'))


@pytest.mark.parametrize('end', ['yaml', 'yml'])
def test_yaml_is_data(end: str, tmp_path: Path) -> None:
    path, trace = tmp_path / f'a.{end}', tmp_path / 'trace'
    path.write_text('classes: [a, b]\nsize: 3\n')
    assert mmengine.load(str(path)) == {'classes': ['a', 'b'], 'size': 3}
    path.write_text(f'!!python/object/apply:os.system ["touch {trace}"]\n')
    with pytest.raises(UserError, match='cannot be read as data: could not determine a constructor'):
        mmengine.load(str(path))
    assert not trace.exists()


def test_what_mmengine_dumps_is_read(tmp_path: Path) -> None:
    mmengine.dump([{'scores': torch.ones(2)}], str(tmp_path / 'predictions.pkl'))
    assert mmengine.load(str(tmp_path / 'predictions.pkl'))[0]['scores'].tolist() == [1, 1]
