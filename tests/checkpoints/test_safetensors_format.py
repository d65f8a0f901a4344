"""safetensors files: written, read by every reader, and refused in one line when damaged."""

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

from inline.checkpoints import read_file
from inline.checkpoints.official import OFFICIAL
from inline.checkpoints.safetensors_format import write_checkpoint
from inline.engine.logs import read_test_metrics
from inline.engine.resume import check_resumable
from inline.utils.errors import UserError
from tests.checkpoints.malicious import RunsCode, zip_bytes
from tests.checkpoints.test_reading import READERS, patched, unpatched
from tests.conftest import ROOT, run_tool

CONFIG = ROOT / 'configs' / 'digits_quick' / 'inline-pvt-nano_digits.py'
__all__ = ['patched', 'unpatched']


def call_tool(name: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a tool in a new process: MMEngine gives two runs that start within one second the same log."""
    done = run_tool(f'tools/{name}.py', *words)
    assert 'Traceback' not in done.stderr, done.stderr[-3000:]
    return done


def weights() -> dict[str, torch.Tensor]:
    """Return tied tensors, views, non-contiguous tensors, and several dtypes."""
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


def test_weights_and_meta_are_restored(tmp_path: Path) -> None:
    meta = {
        'cfg': 'model = dict(type="x")\n',
        'dataset_meta': {'classes': ('a', 'é "quoted"'), 'palette': np.array([[1, 2, 3]])},
        'iter': 7,
        'seed': None,
    }
    write_checkpoint({'state_dict': weights(), 'meta': meta, 'optimizer': {}}, tmp_path / 'a.safetensors')
    restored = read_file(tmp_path / 'a.safetensors')
    assert restored.keys() == {'state_dict', 'meta'}
    for name, tensor in weights().items():
        assert restored['state_dict'][name].dtype == tensor.dtype
        assert torch.equal(restored['state_dict'][name], tensor)
    assert restored['meta']['cfg'] == meta['cfg']
    assert restored['meta']['dataset_meta'] == {'classes': ['a', 'é "quoted"'], 'palette': [[1, 2, 3]]}
    assert (restored['meta']['iter'], restored['meta']['seed']) == (7, None)
    assert [path.name for path in tmp_path.iterdir()] == ['a.safetensors']


def test_the_format_is_detected_from_the_content(tmp_path: Path) -> None:
    save_file({'x': torch.ones(2)}, tmp_path / 'a.bin', metadata={'format': 'pt', 'note': 'not JSON'})
    for source in (tmp_path / 'a.bin', io.BytesIO((tmp_path / 'a.bin').read_bytes())):
        restored = read_file(source)
        assert restored['state_dict']['x'].tolist() == [1, 1]
        assert restored['meta'] == {'format': 'pt', 'note': 'not JSON'}


@pytest.mark.usefixtures('patched')
@pytest.mark.parametrize('reader', READERS)
def test_every_reader_reads_it(reader: str, tmp_path: Path) -> None:
    write_checkpoint({'state_dict': nn.Linear(1, 1).state_dict()}, tmp_path / 'a.safetensors')
    loaded = READERS[reader](str(tmp_path / 'a.safetensors'))
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
    'a pickle': lambda trace: pickle.dumps(RunsCode(trace)),
    'a checkpoint of torch': lambda trace: zip_bytes({'state_dict': RunsCode(trace)}),
}


@pytest.mark.usefixtures('patched')
@pytest.mark.parametrize('reader', READERS)
def test_damage_is_one_line_in_every_reader(reader: str, tmp_path: Path) -> None:
    for number, (name, make) in enumerate(DAMAGED.items()):
        path = tmp_path / f'{number}.safetensors'
        path.write_bytes(make(tmp_path / 'trace'))
        if reader == 'MMEngine, other storage' and b'{' not in path.read_bytes()[8:9]:
            # Without a file name the format is detected from the first bytes.
            continue
        with pytest.raises(UserError, match=r'cannot be read: it is damaged or not a checkpoint$') as raised:
            READERS[reader](str(path))
        assert '\n' not in str(raised.value), name
        assert not (tmp_path / 'trace').exists(), name


def test_only_tensors_are_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match='extra has type dict: a safetensors file holds tensors only'):
        write_checkpoint({'state_dict': {'extra': {}}}, tmp_path / 'a.safetensors')
    (tmp_path / 'file').touch()
    with pytest.raises(UserError, match='cannot write'):
        write_checkpoint({'state_dict': weights()}, tmp_path / 'file' / 'a.safetensors')
    assert [path.name for path in tmp_path.iterdir()] == ['file']


def test_resuming_needs_a_training_state() -> None:
    with pytest.raises(
        UserError, match=r"--resume 'a\.safetensors': .* has weights but no training state"
    ) as raised:
        check_resumable('a.safetensors')
    assert 'load_from=FILE' in str(raised.value)
    check_resumable('a.pth')


def test_authors_weights_are_converted_from_and_to_it(tmp_path: Path) -> None:
    shapes = json.loads((ROOT / 'tests/data/golden/official_state_dicts.json').read_text())['inline_deit_t']
    theirs = {name: torch.randn(shape) for name, shape in shapes.items()}
    torch.save({'model': theirs}, tmp_path / 'theirs.pth')
    save_file(theirs, tmp_path / 'theirs.safetensors')
    call_tool('convert_checkpoint', tmp_path / 'theirs.pth', tmp_path / 'ours.pth')
    call_tool('convert_checkpoint', tmp_path / 'theirs.safetensors', tmp_path / 'ours.safetensors')
    plain, safe_file = (read_file(tmp_path / f'ours{end}') for end in ('.pth', '.safetensors'))
    assert plain['state_dict'].keys() == safe_file['state_dict'].keys()
    assert all(torch.equal(safe_file['state_dict'][name], x) for name, x in plain['state_dict'].items())
    assert safe_file['meta']['model'] == plain['meta']['model']
    assert safe_file['meta']['model'] in OFFICIAL


@pytest.mark.slow
def test_the_tools_accept_it_like_a_pth(digit_scenes: Path, tmp_path: Path) -> None:
    common = ['--data-root', digit_scenes.parent]
    options = ['--cfg-options', 'train_cfg.max_iters=1', 'train_dataloader.batch_size=2']
    for loader in ('train', 'val', 'test'):
        options += [f'{loader}_dataloader.num_workers=0', f'{loader}_dataloader.persistent_workers=False']
    call_tool('train', CONFIG, *common, '--no-validate', '--work-dir', tmp_path / 'run', *options)
    saved, weights_file = tmp_path / 'run' / 'iter_1.pth', tmp_path / 'own.safetensors'
    assert 'our weights' in call_tool('convert_checkpoint', saved, weights_file).stdout
    assert read_file(weights_file)['meta']['dataset_meta']['classes']

    metrics = []
    for checkpoint in (saved, weights_file):
        folder = tmp_path / checkpoint.suffix[1:]
        call_tool('test', CONFIG, checkpoint, *common, '--work-dir', folder, *options)
        metrics.append(read_test_metrics(folder)['accuracy/top1'])
    assert metrics[0] == metrics[1]

    begin = ['train', CONFIG, *common, '--no-validate', '--work-dir']
    call_tool(*begin, tmp_path / 'pretrained', '--pretrained', weights_file, *options)
    call_tool(*begin, tmp_path / 'loaded', *options, f'load_from={weights_file}')
    logs = [next((tmp_path / name).glob('*/*.log')).read_text() for name in ('pretrained', 'loaded')]
    assert re.search(r"pretrained weights '.*own\.safetensors': (\d+) of \1 tensors match", logs[0])
    assert re.search(r'Load checkpoint from .*own\.safetensors', logs[1])
    refused = call_tool(*begin, tmp_path / 'resumed', '--resume', weights_file, *options)
    assert refused.returncode == 2
    assert 'has weights but no training state' in refused.stderr
