"""safetensors wherever a .pth is taken: every path loads it, and damage is told in one line."""

import io
import json
import pickle
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from inline.engine.config import check_resumable
from inline.engine.safe_loading import load_safely
from inline.errors import UserError
from inline.official.catalogue import OFFICIAL
from inline.safetensors_files import write_checkpoint
from tests.conftest import ROOT, run_tool
from tests.engine.malicious import Run, zipped
from tests.engine.test_safe_loading import PATHS, safe, unsafe

CONFIG = ROOT / 'configs' / 'digits_quick' / 'inline-pvt-nano_digits.py'
__all__ = ['safe', 'unsafe']


def call_tool(name: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """A tool in a process of its own: MMEngine gives two runs that begin in one second the same log."""
    done = run_tool(f'tools/{name}.py', *words)
    assert 'Traceback' not in done.stderr, done.stderr[-3000:]
    return done


def weights() -> dict[str, torch.Tensor]:
    """With two names for one tensor, views of one memory, gaps, and types besides float32."""
    base = torch.arange(24.0).reshape(4, 6)
    return {
        'backbone.tied': base,
        'head.tied': base,
        'row': base[1],
        'transposed': base.t(),
        'strided': base[:, ::2],
        'half': torch.ones(3, dtype=torch.bfloat16),
        'count': torch.tensor(7),
        'empty': torch.zeros(0, 4),
    }


def test_weights_and_their_description_come_back(tmp_path: Path) -> None:
    meta = {
        'cfg': 'model = dict(type="x")\n',
        'dataset_meta': {'classes': ('a', 'é "quoted"'), 'palette': np.array([[1, 2, 3]])},
        'iter': 7,
        'seed': None,
    }
    write_checkpoint({'state_dict': weights(), 'meta': meta, 'optimizer': {}}, tmp_path / 'a.safetensors')
    back = load_safely(tmp_path / 'a.safetensors')
    assert back.keys() == {'state_dict', 'meta'}
    for name, tensor in weights().items():
        assert back['state_dict'][name].dtype == tensor.dtype
        assert torch.equal(back['state_dict'][name], tensor)
    assert back['meta']['cfg'] == meta['cfg']
    assert back['meta']['dataset_meta'] == {'classes': ['a', 'é "quoted"'], 'palette': [[1, 2, 3]]}
    assert (back['meta']['iter'], back['meta']['seed']) == (7, None)
    assert [path.name for path in tmp_path.iterdir()] == ['a.safetensors']


def test_a_file_of_another_program_is_known_by_its_content(tmp_path: Path) -> None:
    save_file({'x': torch.ones(2)}, tmp_path / 'a.bin', metadata={'format': 'pt', 'note': 'not JSON'})
    for source in (tmp_path / 'a.bin', io.BytesIO((tmp_path / 'a.bin').read_bytes())):
        back = load_safely(source)
        assert back['state_dict']['x'].tolist() == [1, 1]
        assert back['meta'] == {'format': 'pt', 'note': 'not JSON'}


@pytest.mark.usefixtures('safe')
@pytest.mark.parametrize('way', PATHS)
def test_every_path_loads_it(way: str, tmp_path: Path) -> None:
    write_checkpoint({'state_dict': nn.Linear(1, 1).state_dict()}, tmp_path / 'a.safetensors')
    loaded = PATHS[way](str(tmp_path / 'a.safetensors'))
    assert 'weight' in loaded.get('state_dict', loaded)


def header(content: dict[str, Any], data: bytes = b'') -> bytes:
    text = json.dumps(content).encode()
    return len(text).to_bytes(8, 'little') + text + data


TENSOR = {'dtype': 'F32', 'shape': [2], 'data_offsets': [0, 8]}
DAMAGED: dict[str, Callable[[Path], bytes]] = {
    'empty': lambda _: b'',
    'truncated': lambda _: header({'x': TENSOR}, bytes(4)),
    'header cut off': lambda _: header({'x': TENSOR}, bytes(8))[:20],
    'huge header': lambda _: (2**62).to_bytes(8, 'little') + b'{' + bytes(100),
    'header longer than the file': lambda _: (10**6).to_bytes(8, 'little') + b'{}',
    'no JSON': lambda _: (4).to_bytes(8, 'little') + b'{"x"',
    'deep JSON': lambda _: (200_000).to_bytes(8, 'little') + b'{"a":' * 40_000,
    'overlapping': lambda _: header({'x': TENSOR, 'y': TENSOR}, bytes(8)),
    'wrong size': lambda _: header({'x': {**TENSOR, 'shape': [2**40]}}, bytes(8)),
    'unknown type': lambda _: header({'x': {**TENSOR, 'dtype': 'CODE'}}, bytes(8)),
    'a pickle': lambda trace: pickle.dumps(Run(trace)),
    'a checkpoint of torch': lambda trace: zipped({'state_dict': Run(trace)}),
}


@pytest.mark.usefixtures('safe')
@pytest.mark.parametrize('way', PATHS)
@pytest.mark.parametrize('kind', DAMAGED)
def test_damage_is_told_in_one_line_by_every_path(kind: str, way: str, tmp_path: Path) -> None:
    (tmp_path / 'a.safetensors').write_bytes(DAMAGED[kind](tmp_path / 'trace'))
    with pytest.raises(UserError, match=r"a\.safetensors' cannot be read: it is damaged") as told:
        PATHS[way](str(tmp_path / 'a.safetensors'))
    assert '\n' not in str(told.value)
    assert not (tmp_path / 'trace').exists()


def test_what_is_no_tensor_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match='extra is of type dict: a safetensors file holds tensors only'):
        write_checkpoint({'state_dict': {'extra': {}}}, tmp_path / 'a.safetensors')
    (tmp_path / 'file').touch()
    with pytest.raises(UserError, match='cannot write'):
        write_checkpoint({'state_dict': weights()}, tmp_path / 'file' / 'a.safetensors')
    assert [path.name for path in tmp_path.iterdir()] == ['file']


def test_resuming_needs_more_than_weights() -> None:
    with pytest.raises(UserError, match=r"--resume 'a\.safetensors': .* holds weights and no state") as told:
        check_resumable('a.safetensors')
    assert 'load_from=FILE' in str(told.value)
    check_resumable('a.pth')


def test_the_authors_weights_convert_from_and_to_it(tmp_path: Path) -> None:
    shapes = json.loads((ROOT / 'tests/data/golden/official_state_dicts.json').read_text())['inline_deit_t']
    theirs = {name: torch.randn(shape) for name, shape in shapes.items()}
    torch.save({'model': theirs}, tmp_path / 'theirs.pth')
    save_file(theirs, tmp_path / 'theirs.safetensors')
    call_tool('convert_checkpoint', tmp_path / 'theirs.pth', tmp_path / 'ours.pth')
    call_tool('convert_checkpoint', tmp_path / 'theirs.safetensors', tmp_path / 'ours.safetensors')
    plain, safe_file = (load_safely(tmp_path / f'ours{end}') for end in ('.pth', '.safetensors'))
    assert plain['state_dict'].keys() == safe_file['state_dict'].keys()
    assert all(torch.equal(safe_file['state_dict'][name], x) for name, x in plain['state_dict'].items())
    assert safe_file['meta']['model'] == plain['meta']['model']
    assert safe_file['meta']['model'] in OFFICIAL


@pytest.mark.slow
def test_the_tools_take_it_as_they_take_a_pth(digit_scenes: Path, tmp_path: Path) -> None:
    common = ['--data-root', digit_scenes.parent]
    options = ['--cfg-options', 'train_cfg.max_iters=1', 'train_dataloader.batch_size=2']
    for loader in ('train', 'val', 'test'):
        options += [f'{loader}_dataloader.num_workers=0', f'{loader}_dataloader.persistent_workers=False']
    call_tool('train', CONFIG, *common, '--no-validate', '--work-dir', tmp_path / 'run', *options)
    saved, weights_file = tmp_path / 'run' / 'iter_1.pth', tmp_path / 'own.safetensors'
    assert 'weights of ours' in call_tool('convert_checkpoint', saved, weights_file).stdout
    assert load_safely(weights_file)['meta']['dataset_meta']['classes']

    metrics = []
    for checkpoint in (saved, weights_file):
        folder = tmp_path / checkpoint.suffix[1:]
        call_tool('test', CONFIG, checkpoint, *common, '--work-dir', folder, *options)
        metrics.append(json.loads(next(folder.glob('*/*.json')).read_text())['accuracy/top1'])
    assert metrics[0] == metrics[1]

    begin = ['train', CONFIG, *common, '--no-validate', '--work-dir']
    call_tool(*begin, tmp_path / 'pretrained', '--pretrained', weights_file, *options)
    call_tool(*begin, tmp_path / 'loaded', *options, f'load_from={weights_file}')
    logs = [next((tmp_path / name).glob('*/*.log')).read_text() for name in ('pretrained', 'loaded')]
    assert re.search(r"pretrained weights '.*own\.safetensors': (\d+) of \1 tensors fit", logs[0])
    assert re.search(r'Load checkpoint from .*own\.safetensors', logs[1])
    refused = call_tool(*begin, tmp_path / 'resumed', '--resume', weights_file, *options)
    assert refused.returncode == 2
    assert 'holds weights and no state of a training' in refused.stderr
