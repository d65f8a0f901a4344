"""Reading checkpoints: every format gives the same weights, and no code in a file runs."""

import argparse
import http.server
import io
import pickle
import sys
import threading
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.logging import HistoryBuffer, MMLogger
from mmengine.runner import CheckpointLoader, load_checkpoint
from mmengine.runner import checkpoint as mmengine_checkpoint

from inline.checkpoints import official, read_checkpoint, read_file, trust_checkpoints
from inline.openmmlab.backbones import InLinePVT
from inline.openmmlab.patches import load_checkpoints_safely
from inline.utils.errors import UserError
from tests.checkpoints.formats import CLASSES, OFFICIAL, make_weights, write_formats
from tests.checkpoints.malicious import FILES, POINTERS, WEIGHTS
from tests.conftest import ROOT, run_tool

CONFIG = ROOT / 'configs' / 'digits_quick' / 'inline-pvt-nano_digits.py'
READERS: dict[str, Callable[[str], Any]] = {
    'read_file': read_file,
    'read_checkpoint': lambda path: read_checkpoint(path).content,
    'MMEngine, file': lambda path: CheckpointLoader.load_checkpoint(path, 'cpu'),
    'MMEngine, URL': lambda path: mmengine_checkpoint.load_from_http(f'file://{path}', map_location='cpu'),
    'MMEngine, other storage': lambda path: mmengine_checkpoint._safe_torch_load(
        io.BytesIO(Path(path).read_bytes()), map_location='cpu'
    ),
    'MMEngine, into a model': lambda path: load_checkpoint(torch.nn.Linear(1, 1), path),
}


@pytest.fixture
def unpatched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """MMEngine as installed, whatever earlier tests did to it; and this test's patches are undone."""
    monkeypatch.setenv('TORCH_HOME', str(tmp_path / 'torch'))
    loaders = {
        **CheckpointLoader._schemes,
        '': mmengine_checkpoint.load_from_local,
        'http://': mmengine_checkpoint.load_from_http,
        'https://': mmengine_checkpoint.load_from_http,
    }
    monkeypatch.setattr(CheckpointLoader, '_schemes', loaders)
    functions = {'_safe_torch_load': torch.load, 'load_url': torch.hub.load_state_dict_from_url}
    for name, function in functions.items():
        monkeypatch.setattr(mmengine_checkpoint, name, partial(function, weights_only=False))


@pytest.fixture
def patched(unpatched: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001 (it restores)
    from mmengine.runner import runner

    monkeypatch.setattr(runner, '_load_checkpoint_to_model', runner._load_checkpoint_to_model)
    load_checkpoints_safely()


@pytest.fixture(scope='module')
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return write_formats(tmp_path_factory.mktemp('formats'))


def test_every_format_gives_the_same_weights(
    sources: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv('TORCH_HOME', str(tmp_path))
    monkeypatch.setattr(official, 'OFFICIAL', OFFICIAL)
    weights = make_weights()
    for name, source in sources.items():
        checkpoint = read_checkpoint(source)
        assert checkpoint.state_dict.keys() == weights.keys(), name
        assert all(torch.equal(checkpoint.state_dict[key], weights[key]) for key in weights), name
        assert checkpoint.source == source
        assert checkpoint.is_ema == name.endswith('EMA'), name
        assert (checkpoint.official is not None) == name.startswith('authors'), name
        has_classes = name.startswith(('training', 'published', 'URL'))
        assert tuple(checkpoint.dataset_meta.get('classes', ())) == (CLASSES if has_classes else ()), name
    content = read_checkpoint(sources['training']).content
    assert {'optimizer', 'message_hub', 'meta', 'state_dict'} <= content.keys()


def test_settings_of_training_scripts_are_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts store a Namespace of argparse or a CfgNode of yacs, which need not be installed."""
    module = types.ModuleType('yacs.config')
    module.CfgNode = type('CfgNode', (dict,), {'__module__': 'yacs.config', '__qualname__': 'CfgNode'})
    monkeypatch.setitem(sys.modules, 'yacs', types.ModuleType('yacs'))
    monkeypatch.setitem(sys.modules, 'yacs.config', module)
    settings = module.CfgNode(lr=0.1)
    content = {'model': {'module.a': torch.ones(2)}, 'args': argparse.Namespace(lr=0.1), 'config': settings}
    torch.save(content, tmp_path / 'c.pth')
    monkeypatch.undo()
    assert read_checkpoint(tmp_path / 'c.pth').state_dict['a'].tolist() == [1, 1]


@pytest.mark.parametrize('content', [{'state_dict': {}}, {'epoch': 3}, [1, 2], {'model': {'type': 'x'}}])
def test_a_file_without_weights_is_refused(content: Any, tmp_path: Path) -> None:
    torch.save(content, tmp_path / 'empty.pth')
    with pytest.raises(UserError, match=r"empty\.pth' contains no weights"):
        read_checkpoint(tmp_path / 'empty.pth')


@pytest.mark.parametrize('content', [b'', b'hello', b'PK\x03\x04 no zip', b'\x80\x02}q\x00X'])
def test_a_damaged_file_is_refused_in_one_line(content: bytes, tmp_path: Path) -> None:
    (tmp_path / 'c.pth').write_bytes(content)
    with pytest.raises(UserError, match=r"c\.pth' cannot be read: it is damaged or not a checkpoint$"):
        read_checkpoint(tmp_path / 'c.pth')
    with pytest.raises(UserError, match=r"checkpoint '.*gone\.pth' does not exist: give a \.pth"):
        read_checkpoint(tmp_path / 'gone.pth')


@pytest.mark.usefixtures('patched')
@pytest.mark.parametrize('reader', READERS)
def test_malicious_files_are_refused_and_leave_no_trace(reader: str, tmp_path: Path) -> None:
    trace = tmp_path / 'trace'
    for number, (name, make) in enumerate(FILES.items()):
        path = tmp_path / f'bad{number}.pth'
        path.write_bytes(make(trace))
        with pytest.raises(UserError, match=r'^checkpoint .* (contains|cannot be)') as raised:
            READERS[reader](str(path))
        assert path.name in str(raised.value) or 'from memory' in str(raised.value)
        assert '\n' not in str(raised.value)
        assert not trace.exists(), name


def test_the_files_are_malicious(tmp_path: Path) -> None:
    """Otherwise the test above would not test anything."""
    for name in FILES.keys() - {'zip, getattr', POINTERS}:
        trace = tmp_path / name.replace(' ', '_')
        (tmp_path / 'bad.pth').write_bytes(FILES[name](trace))
        if name == 'plain pickle':
            pickle.loads((tmp_path / 'bad.pth').read_bytes())
        else:
            torch.load(tmp_path / 'bad.pth', weights_only=False)
        assert trace.exists(), name


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a local server for the files of the test."""
    monkeypatch.setenv('TORCH_HOME', str(tmp_path / 'torch'))
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    monkeypatch.setattr(http.server.SimpleHTTPRequestHandler, 'log_message', lambda *_: None)
    with http.server.ThreadingHTTPServer(('127.0.0.1', 0), handler) as running:
        threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True).start()
        yield f'http://127.0.0.1:{running.server_port}'
        running.shutdown()


def pvt(checkpoint: str) -> InLinePVT:
    arch = {'embed_dims': [8] * 4, 'depths': [1] * 4, 'num_heads': [1] * 4, 'mlp_ratios': [1] * 4}
    return InLinePVT(arch=arch, init_cfg={'type': 'Pretrained', 'checkpoint': checkpoint})


@pytest.mark.usefixtures('unpatched')
@pytest.mark.parametrize('read', [read_checkpoint, lambda url: pvt(url).init_weights()])
def test_urls_are_safe_without_patches(read: Callable[[str], Any], server: str, tmp_path: Path) -> None:
    for number, (name, make) in enumerate(FILES.items()):
        (tmp_path / f'{number}.pth').write_bytes(make(tmp_path / 'trace'))
        with pytest.raises(UserError, match=rf"/{number}\.pth' (contains|cannot be)"):
            read(f'{server}/{number}.pth')
        assert not (tmp_path / 'trace').exists(), name


@pytest.mark.usefixtures('unpatched')
def test_mmengine_without_patches_runs_code_of_a_download(server: str, tmp_path: Path) -> None:
    """Otherwise the test above would not test anything."""
    (tmp_path / 'bad.pth').write_bytes(FILES['zip, top'](tmp_path / 'trace'))
    CheckpointLoader.load_checkpoint(f'{server}/bad.pth', 'cpu')
    assert (tmp_path / 'trace').exists()


def test_trust_ends_with_its_context(tmp_path: Path) -> None:
    for name in ('own', 'bad'):
        (tmp_path / f'{name}.pth').write_bytes(FILES['zip, meta'](tmp_path / name))
    with trust_checkpoints():
        assert read_checkpoint(tmp_path / 'own.pth').state_dict.keys() == {'backbone.x'}
        with trust_checkpoints(False), pytest.raises(UserError, match='which is not plain data'):
            read_checkpoint(tmp_path / 'bad.pth')
    assert (tmp_path / 'own').exists()
    with pytest.raises(UserError, match='which is not plain data'):
        read_checkpoint(tmp_path / 'bad.pth')
    assert not (tmp_path / 'bad').exists()


@pytest.mark.usefixtures('patched')
@pytest.mark.parametrize('trust', [False, True])
def test_mmengine_does_not_get_the_config_text_that_it_would_run(trust: bool, tmp_path: Path) -> None:
    meta = {'config': 'code', 'cfg': 'kept', 'epoch': 1}
    torch.save({'meta': meta, 'state_dict': WEIGHTS}, tmp_path / 'a.pth')
    torch.save({'meta': 'config', 'state_dict': WEIGHTS}, tmp_path / 'b.pth')
    with trust_checkpoints(trust):
        for name, kept in (('a', {'cfg': 'kept', 'epoch': 1}), ('b', {})):
            assert CheckpointLoader.load_checkpoint(str(tmp_path / f'{name}.pth'))['meta'] == kept


def test_threads_can_read_at_the_same_time(sources: dict[str, str]) -> None:
    with ThreadPoolExecutor(8) as pool:
        read = list(pool.map(read_checkpoint, [sources['training']] * 64))
    assert all(checkpoint.meta['iter'] == 2 for checkpoint in read)


def test_what_mmengine_saves_needs_no_trust(tmp_path: Path) -> None:
    history = HistoryBuffer([1.0, 2.0], [1, 1])
    content = {
        'state_dict': WEIGHTS,
        'message_hub': {'log_scalars': {'train/loss': history}, 'step': np.int64(3), 'rate': np.float32(0.5)},
        'optimizer': {
            'state': {0: {'step': torch.tensor(1.0)}},
            'param_groups': [{'lr': 0.1, 'betas': (0.9, 0.9)}],
        },
    }
    torch.save(content, tmp_path / 'own.pth')
    loaded = read_file(tmp_path / 'own.pth')
    assert loaded['message_hub']['log_scalars']['train/loss'].mean() == 1.5
    assert loaded['message_hub']['step'] == 3


@pytest.mark.usefixtures('patched')
def test_load_from_reports_and_refuses(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from mmengine.runner import runner

    logger = MMLogger.get_current_instance()
    logger.addHandler(caplog.handler)
    model = torch.nn.Linear(2, 1)
    torch.save({'state_dict': {'module.weight': torch.ones(1, 2), 'x': torch.ones(1)}}, tmp_path / 'a.pth')
    loaded = CheckpointLoader.load_checkpoint(str(tmp_path / 'a.pth'))
    runner._load_checkpoint_to_model(model, loaded, False)
    assert model.weight.tolist() == [[1, 1]]
    logger.removeHandler(caplog.handler)
    expected = "a.pth': 1 of 2 tensors match; 1 missing from the file: bias; 1 not in the model: x"
    assert expected in caplog.text
    runner._load_checkpoint_to_model(model, {'weight': torch.zeros(1, 2)}, False)
    assert model.weight.tolist() == [[0, 0]]
    torch.save({'state_dict': {'x': torch.ones(1)}}, tmp_path / 'b.pth')
    with pytest.raises(UserError, match=r"b\.pth' has a different architecture than Linear: 0 of 2"):
        runner._load_checkpoint_to_model(model, CheckpointLoader.load_checkpoint(str(tmp_path / 'b.pth')))


@pytest.mark.slow
def test_the_tools_refuse_a_malicious_file_in_one_line(digit_scenes: Path, tmp_path: Path) -> None:
    trace = tmp_path / 'trace'
    (tmp_path / 'bad.pth').write_bytes(FILES['zip, meta'](trace))
    common = ['--data-root', digit_scenes.parent, '--work-dir', tmp_path / 'work']
    bad = str(tmp_path / 'bad.pth')
    for words in (
        ['tools/test.py', CONFIG, bad, *common],
        ['tools/train.py', CONFIG, '--pretrained', bad, *common],
        ['tools/train.py', CONFIG, '--resume', bad, *common],
        ['tools/train.py', CONFIG, *common, '--cfg-options', f'load_from={bad}'],
    ):
        done = run_tool(*words)
        assert done.returncode == 2, done.stderr[-2000:]
        assert done.stderr.strip().splitlines()[-1].startswith(f'error: checkpoint {bad!r} contains ')
        assert not trace.exists()
