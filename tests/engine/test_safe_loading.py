"""Malicious checkpoints leave no trace, whichever way they are loaded; our own need no trust."""

import http.server
import pickle
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.logging.history_buffer import HistoryBuffer
from mmengine.runner import CheckpointLoader, load_checkpoint
from mmengine.runner import checkpoint as mmengine_checkpoint

from inline.engine.pretrained import read_weights
from inline.engine.safe_loading import fetch, install, load, load_safely, trusting
from inline.errors import UserError
from inline.openmmlab import InLinePVT
from inline.weights import read_state_dict
from tests.conftest import ROOT, run_tool
from tests.engine.malicious import FILES, WEIGHT

CONFIG = ROOT / 'configs' / 'digits_quick' / 'inline-pvt-nano_digits.py'


PATHS: dict[str, Callable[[str], Any]] = {
    'load_safely': load_safely,
    'init_cfg': read_weights,
    'plain torch': read_state_dict,
    'MMEngine, load_from and resume': lambda path: CheckpointLoader.load_checkpoint(path, 'cpu'),
    'MMEngine, from an address': lambda path: mmengine_checkpoint.load_from_http(
        f'file://{path}', map_location='cpu', model_dir=f'{path}.fetched'
    ),
    'MMEngine, into a model': lambda path: load_checkpoint(torch.nn.Linear(1, 1), path),
}


@pytest.fixture
def unsafe(monkeypatch: pytest.MonkeyPatch) -> None:
    """MMEngine as it is, whatever an earlier test did to it; and nothing of this test is left."""
    untouched = {'_safe_torch_load': torch.load, 'load_url': torch.hub.load_state_dict_from_url}
    for name, whole in untouched.items():
        monkeypatch.setattr(mmengine_checkpoint, name, partial(whole, weights_only=False))


@pytest.fixture
def safe(unsafe: None) -> None:  # noqa: ARG001 (it restores)
    install()


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a server on this machine that hands out the test's folder."""
    monkeypatch.setenv('TORCH_HOME', str(tmp_path / 'torch'))
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    monkeypatch.setattr(http.server.SimpleHTTPRequestHandler, 'log_message', lambda *_: None)
    with http.server.ThreadingHTTPServer(('127.0.0.1', 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f'http://127.0.0.1:{server.server_port}'
        server.shutdown()


@pytest.mark.usefixtures('safe')
@pytest.mark.parametrize('way', PATHS)
@pytest.mark.parametrize('kind', FILES)
def test_a_malicious_file_is_refused_and_leaves_no_trace(kind: str, way: str, tmp_path: Path) -> None:
    trace = tmp_path / 'trace'
    (tmp_path / 'bad.pth').write_bytes(FILES[kind](trace))
    with pytest.raises(UserError, match=r"bad\.pth'"):
        PATHS[way](str(tmp_path / 'bad.pth'))
    assert not trace.exists()


def test_the_files_are_malicious(tmp_path: Path) -> None:
    """Else the test above would prove nothing."""
    for kind in FILES.keys() - {'zip, getattr'}:
        trace = tmp_path / kind.replace(' ', '_')
        (tmp_path / 'bad.pth').write_bytes(FILES[kind](trace))
        if kind == 'bare pickle':
            pickle.loads((tmp_path / 'bad.pth').read_bytes())
        else:
            torch.load(tmp_path / 'bad.pth', weights_only=False)
        assert trace.exists(), kind


def pvt(checkpoint: str) -> InLinePVT:
    arch = {
        'embed_dims': [8] * 4,
        'depths': [1] * 4,
        'num_heads': [1] * 4,
        'mlp_ratios': [1] * 4,
    }
    return InLinePVT(arch=arch, init_cfg={'type': 'Pretrained', 'checkpoint': checkpoint})


ADDRESSED: dict[str, Callable[[str], Any]] = {
    'read_weights': read_weights,
    'init_cfg': lambda address: pvt(address).init_weights(),
}


@pytest.mark.usefixtures('unsafe')
@pytest.mark.parametrize('way', ADDRESSED)
def test_an_address_is_safe_in_a_program_that_installed_nothing(
    way: str, served: str, tmp_path: Path
) -> None:
    for number, (kind, make) in enumerate(FILES.items()):
        (tmp_path / f'{number}.pth').write_bytes(make(tmp_path / 'trace'))
        with pytest.raises(UserError, match=rf"-{number}\.pth' (holds|cannot be read)"):
            ADDRESSED[way](f'{served}/{number}.pth')
        assert not (tmp_path / 'trace').exists(), kind


@pytest.mark.usefixtures('unsafe')
def test_mmengine_alone_runs_what_it_fetches(served: str, tmp_path: Path) -> None:
    """Else the test above would prove nothing."""
    (tmp_path / 'bad.pth').write_bytes(FILES['zip, top'](tmp_path / 'trace'))
    CheckpointLoader.load_checkpoint(f'{served}/bad.pth', 'cpu')
    assert (tmp_path / 'trace').exists()


def test_trust_is_the_users_to_give_and_ends_with_the_load(tmp_path: Path) -> None:
    for name in ('own', 'bad'):
        (tmp_path / f'{name}.pth').write_bytes(FILES['zip, beside the weights'](tmp_path / name))
    with trusting(True):
        assert read_weights(str(tmp_path / 'own.pth'), 'backbone.').keys() == {'x'}
        with trusting(False), pytest.raises(UserError, match='which is not data'):
            read_weights(str(tmp_path / 'bad.pth'))
    assert (tmp_path / 'own').exists()
    with pytest.raises(UserError, match='which is not data'):
        read_weights(str(tmp_path / 'bad.pth'))
    assert not (tmp_path / 'bad').exists()


@pytest.mark.parametrize('trust', [False, True])
def test_the_text_of_a_config_does_not_reach_mmengine_which_would_run_it(trust: bool, tmp_path: Path) -> None:
    torch.save({'meta': {'config': 'code', 'cfg': 'kept', 'epoch': 1}}, tmp_path / 'a.pth')
    torch.save({'meta': 'config', 'state_dict': WEIGHT}, tmp_path / 'b.pth')
    with trusting(trust):
        assert load(tmp_path / 'a.pth')['meta'] == {'cfg': 'kept', 'epoch': 1}
        assert load(tmp_path / 'b.pth')['meta'] == {}


def test_what_mmengine_saves_is_data(tmp_path: Path) -> None:
    history = HistoryBuffer([1.0, 2.0], [1, 1])
    content = {
        'state_dict': WEIGHT,
        'message_hub': {'log_scalars': {'train/loss': history}, 'step': np.int64(3), 'rate': np.float32(0.5)},
        'optimizer': {
            'state': {0: {'step': torch.tensor(1.0)}},
            'param_groups': [{'lr': 0.1, 'betas': (0.9, 0.9)}],
        },
    }
    torch.save(content, tmp_path / 'own.pth')
    loaded = load_safely(tmp_path / 'own.pth')
    assert loaded['message_hub']['log_scalars']['train/loss'].mean() == 1.5
    assert loaded['message_hub']['step'] == 3


def test_a_checkpoint_is_fetched_once(tmp_path: Path) -> None:
    torch.save({'state_dict': WEIGHT}, tmp_path / 'good.pth')
    for _ in range(2):
        fetched = fetch(f'file://{tmp_path}/good.pth', model_dir=str(tmp_path / 'kept'))
        assert fetched['state_dict'].keys() == WEIGHT.keys()
        (tmp_path / 'good.pth').unlink(missing_ok=True)
    assert [path.name.partition('-')[2] for path in (tmp_path / 'kept').iterdir()] == ['good.pth']
    with pytest.raises(UserError, match=r'cannot download file:///gone\.pth: '):
        fetch('file:///gone.pth', model_dir=str(tmp_path / 'kept'))


def test_two_addresses_that_end_in_the_same_name_are_two_files(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        torch.save({'number': number}, tmp_path / str(number) / 'weights.pth')
    for number in (0, 1, 0):
        fetched = fetch(f'file://{tmp_path}/{number}/weights.pth', model_dir=str(tmp_path / 'kept'))
        assert fetched['number'] == number


@pytest.mark.slow
def test_the_tools_refuse_it_in_one_line(digit_scenes: Path, tmp_path: Path) -> None:
    trace = tmp_path / 'trace'
    (tmp_path / 'bad.pth').write_bytes(FILES['zip, beside the weights'](trace))
    common = ['--data-root', digit_scenes.parent, '--work-dir', tmp_path / 'work']
    bad = str(tmp_path / 'bad.pth')
    for words in (
        ['tools/test.py', CONFIG, bad],
        ['tools/train.py', CONFIG, '--pretrained', bad],
        ['tools/train.py', CONFIG, '--resume', bad],
        ['tools/train.py', CONFIG, '--cfg-options', f'load_from={bad}'],
    ):
        done = (
            run_tool(*words, *common)
            if '--cfg-options' not in words
            else run_tool(*words[:2], *common, *words[2:])
        )
        assert done.returncode == 2, done.stderr[-2000:]
        assert done.stderr.strip().splitlines()[-1].startswith(f'error: checkpoint {bad!r} holds ')
        assert not trace.exists()
