"""Malicious files through every way that a user has to hand one over: nothing in them runs."""

import argparse
import copy
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import cv2
import numpy as np
import pytest
import torch

from inline.analysis import subjects
from inline.engine import launch
from inline.engine.config import load_config
from inline.engine.publish import publish
from inline.engine.replay import replay
from inline.errors import UserError
from inline.export.model import build_subject
from inline.export.run import Request, export
from inline.hub import create_backbone
from inline.inference import InLineModel, loading, outputs
from inline.serve.served import read_models
from tests.conftest import ROOT
from tests.engine.crash_runs import CONFIG, Attempt, Runs
from tests.engine.malicious import FILES
from tests.engine.test_crash import COMMON

SHORT = {
    **COMMON,
    'train_cfg.max_iters': 4,
    'train_cfg.val_interval': 2,
    'default_hooks.checkpoint.max_keep_ckpts': 1,
}


@pytest.fixture(scope='module')
def trained(digit_scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """A run of two steps."""
    options = {**SHORT, 'train_cfg.max_iters': 2}
    runs = Runs(tmp_path_factory.mktemp('trained') / 'run', digit_scenes.parent, options)
    assert runs.attempt(Attempt(), resume=None)[0] == 0, runs.output()
    return runs


def handed_over(trained: Runs, path: Path, infos: dict[str, Any], **meta: Any) -> Path:
    """The checkpoint of the run, with something added."""
    content = torch.load(trained.folder / 'iter_2.pth', weights_only=False)
    content['meta'] |= meta
    content['message_hub']['runtime_info'] |= infos
    torch.save(content, path)
    return path


@pytest.mark.slow
def test_resuming_runs_nothing_and_removes_nothing_of_others(
    trained: Runs, digit_scenes: Path, tmp_path: Path
) -> None:
    trace, victim = tmp_path / 'trace', tmp_path / 'victim'
    victim.mkdir()
    (victim / 'mine.txt').write_text('mine')
    (victim / 'best_x_iter_1.pth').write_text('mine')
    runs = Runs(tmp_path / 'run', digit_scenes.parent, SHORT)
    infos = {
        'outdated_ckpts': [str(victim), str(victim / 'mine.txt'), str(victim / 'best_x_iter_1.pth')],
        'best_ckpt': str(victim / 'best_x_iter_1.pth'),
        'best_score': -1.0,
        'keep_ckpt_ids': ['../victim/mine.txt', str(victim), 1, 2],
    }
    bad = handed_over(trained, tmp_path / 'bad.pth', infos, config=f'open({str(trace)!r}, "w").close()')
    code, _ = runs.attempt(Attempt(), resume=str(bad))
    assert code == 0, runs.output()
    assert f'resume: from {bad}' in runs.output()
    assert (runs.folder / 'iter_4.pth').is_file()
    assert not trace.exists()
    assert sorted(path.name for path in victim.iterdir()) == ['best_x_iter_1.pth', 'mine.txt']


@pytest.mark.slow
def test_no_malicious_file_is_resumed(digit_scenes: Path, tmp_path: Path) -> None:
    runs = Runs(tmp_path / 'run', digit_scenes.parent, SHORT)
    for number, make in enumerate(FILES.values(), 2):
        (runs.folder / f'iter_{number}.pth').write_bytes(make(tmp_path / 'trace'))
    code, _ = runs.attempt(Attempt(), resume='auto')
    assert code == 2
    assert runs.output().count('resume: skipped') == len(FILES)
    assert 'can be resumed, see above' in runs.output()
    assert not (tmp_path / 'trace').exists()


def run_in(folder: Path, **given: Any) -> argparse.Namespace:
    """Arguments of tools/train.py, as its parser leaves them."""
    usual = {
        'config': str(CONFIG), 'cfg_options': {}, 'launcher': 'none', 'local_rank': 0, 'amp': False,
        'work_dir': str(folder / 'work'), 'data_root': str(folder), 'resume': None, 'pretrained': None,
        'no_validate': True, 'auto_scale_lr': False, 'trust_checkpoint': False,
    }  # fmt: skip
    return argparse.Namespace(**{**usual, **given})


def predict(path: str, folder: Path) -> None:
    cv2.imwrite(str(folder / 'image.png'), np.zeros((32, 32, 3), np.uint8))
    outputs.run(
        argparse.Namespace(
            config=str(CONFIG), checkpoint=path, inputs=[str(folder / 'image.png')], out=folder / 'out',
            device='cpu', batch_size=1, score_thr=0.3, tile=None, overlap=0, full_size=False, skip_bad=False,
            overwrite=True, trust_checkpoint=False,
        )
    )  # fmt: skip


def export_to(path: str, folder: Path) -> None:
    request = Request(
        name='x', checkpoint=path, kind='onnx', dynamic=False, size=None, what='model',
        with_preprocessing=False, int8=False, evaluate=False, out=folder / 'x.onnx',
    )  # fmt: skip
    list(export(loading.load_config(CONFIG), request))


def convert(path: str, folder: Path) -> None:
    with mock.patch('sys.argv', ['convert', path, str(folder / 'converted.pth')]):
        runpy.run_path(str(ROOT / 'tools' / 'convert_checkpoint.py'))['main']()


# What a user calls, with a file and a folder in which the digit scenes are.
ENTRIES: dict[str, Callable[[str, Path], Any]] = {
    'train --resume': lambda path, folder: launch.train(run_in(folder, resume=path)),
    'train --replay': lambda path, folder: replay(run_in(folder, replay=path)),
    'predict': predict,
    'InLineModel': lambda path, _: InLineModel(CONFIG, path, 'cpu'),
    'export': export_to,
    'export of a backbone': lambda path, _: build_subject(loading.load_config(CONFIG), path, what='backbone'),
    'serve': lambda path, _: read_models([(str(CONFIG), path)]),
    'analyze': lambda path, _: subjects.read_subject(str(CONFIG), path),
    'publish': lambda path, folder: publish(Path(path), folder / 'published'),
    'convert': convert,
    'hub': lambda path, _: create_backbone('inline_deit_tiny', pretrained=path),
}


@pytest.mark.parametrize('entry', ENTRIES)
def test_no_entry_runs_what_is_in_a_file(
    entry: str, digit_scenes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All files, one after the other; what is the same for each is made once."""
    (tmp_path / 'digit_scenes').symlink_to(digit_scenes)
    cfg = load_config(CONFIG)
    for module in (launch, loading, subjects):
        monkeypatch.setattr(module, 'load_config', lambda *_: copy.deepcopy(cfg))
    monkeypatch.chdir(tmp_path)
    for number, (kind, make) in enumerate(FILES.items()):
        path = tmp_path / f'{number}.pth'
        path.write_bytes(make(tmp_path / 'trace'))
        with pytest.raises(UserError, match=rf"{number}\.pth' (holds|cannot be read)"):
            ENTRIES[entry](str(path), tmp_path)
        assert not (tmp_path / 'trace').exists(), kind
