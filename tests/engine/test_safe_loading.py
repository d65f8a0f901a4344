"""Malicious checkpoints leave no trace, whichever way they are loaded; our own need no trust."""

import io
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.logging.history_buffer import HistoryBuffer
from mmengine.runner import CheckpointLoader, load_checkpoint
from mmengine.runner import checkpoint as mmengine_checkpoint

from inline.engine.pretrained import read_weights
from inline.engine.safe_loading import fetch, install, load_safely
from inline.errors import UserError
from inline.weights import read_state_dict
from tests.conftest import ROOT, run_tool

CONFIG = ROOT / 'configs' / 'digits_quick' / 'inline-pvt-nano_digits.py'


class Run:
    """Unpickled, it runs a command that leaves a file behind."""

    def __init__(self, trace: Path, how: Callable[..., Any] = os.system) -> None:
        self.trace, self.how = trace, how

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        if self.how is os.system:
            return os.system, (f'touch "{self.trace}"',)
        return self.how, (f'open({str(self.trace)!r}, "w").close()',)


class ByGetattr:
    """Reaches for more of a history than its statistics, by the getattr that names those."""

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return getattr, (HistoryBuffer, '__subclasses__')


def legacy(content: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer, _use_new_zipfile_serialization=False)
    return buffer.getvalue()


def zipped(content: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def bare(content: Any) -> bytes:
    return pickle.dumps(content)


WEIGHT = {'backbone.x': torch.zeros(1)}
FILES: dict[str, Callable[[Path], bytes]] = {
    'zip, top': lambda trace: zipped(Run(trace)),
    'zip, among the weights': lambda trace: zipped({'state_dict': {**WEIGHT, 'y': Run(trace)}}),
    'zip, beside the weights': lambda trace: zipped({'state_dict': WEIGHT, 'meta': Run(trace)}),
    'zip, nested': lambda trace: zipped({'state_dict': WEIGHT, 'meta': {'a': [(1, {'b': Run(trace)})]}}),
    'zip, optimizer': lambda trace: zipped({'state_dict': WEIGHT, 'optimizer': {'state': {0: Run(trace)}}}),
    'zip, moving average': lambda trace: zipped({'state_dict': WEIGHT, 'ema_state_dict': Run(trace)}),
    'zip, schedulers': lambda trace: zipped({'state_dict': WEIGHT, 'param_schedulers': [Run(trace)]}),
    'zip, message hub': lambda trace: zipped({'state_dict': WEIGHT, 'message_hub': {'x': Run(trace)}}),
    'zip, eval': lambda trace: zipped({'state_dict': WEIGHT, 'meta': Run(trace, eval)}),
    'zip, exec': lambda trace: zipped({'state_dict': WEIGHT, 'meta': Run(trace, exec)}),
    'zip, getattr': lambda _: zipped({'state_dict': WEIGHT, 'meta': ByGetattr()}),
    'legacy, top': lambda trace: legacy(Run(trace)),
    'legacy, beside the weights': lambda trace: legacy({'state_dict': WEIGHT, 'meta': Run(trace)}),
    'bare pickle': lambda trace: bare(Run(trace)),
}
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


@pytest.fixture(autouse=True)
def safe(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ('_safe_torch_load', 'load_url'):
        monkeypatch.setattr(mmengine_checkpoint, name, getattr(mmengine_checkpoint, name))
    install()
    yield
    install()


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


def test_trust_is_the_users_to_give(tmp_path: Path) -> None:
    trace = tmp_path / 'trace'
    (tmp_path / 'own.pth').write_bytes(FILES['zip, beside the weights'](trace))
    install(trust=True)
    assert read_weights(str(tmp_path / 'own.pth'), 'backbone.').keys() == {'x'}
    assert trace.exists()


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
    assert [path.name for path in (tmp_path / 'kept').iterdir()] == ['good.pth']
    with pytest.raises(UserError, match=r'cannot download file:///gone\.pth: '):
        fetch('file:///gone.pth', model_dir=str(tmp_path / 'kept'))


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
