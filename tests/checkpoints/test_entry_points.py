"""Every entry point accepts the same files with the same messages, and none runs code in a file."""

import argparse
import copy
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import cv2
import mmengine.fileio.handlers
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.fileio import LocalBackend
from mmengine.registry import MODELS, DefaultScope
from mmengine.runner import CheckpointLoader, Runner
from mmengine.runner import checkpoint as mmengine_checkpoint
from mmengine.runner import runner as mmengine_runner
from torch import Tensor

from inline.analysis import models as analysis_models
from inline.analysis.models import load_analysis_model
from inline.apis import InLineModel, loading, outputs
from inline.apis.export.model import build_export_model
from inline.apis.serve.controller import load_models
from inline.checkpoints import official, read_checkpoint, sources
from inline.checkpoints import reading as checkpoint_reading
from inline.commands.convert import main as run_convert
from inline.engine import launch
from inline.engine.config import load_config
from inline.engine.replay import replay
from inline.hub.publish import publish
from inline.utils.errors import UserError
from tests.checkpoints.formats import OFFICIAL, build_backbone, make_weights, write_formats
from tests.checkpoints.malicious import FILES
from tests.engine.crash_runs import Attempt, Runs
from tests.engine.test_crash import COMMON

SHORT = {
    **COMMON,
    'train_cfg.max_iters': 4,
    'train_cfg.val_interval': 2,
    'default_hooks.checkpoint.max_keep_ckpts': 1,
}
Weights = Mapping[str, Tensor]


class LoadedError(Exception):
    """Ends an entry point once its model has its weights."""


@pytest.fixture(scope='module')
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """Return the config of a small classifier, and its weights in all formats."""
    folder = tmp_path_factory.mktemp('formats')
    written = write_formats(folder)
    return folder / 'config.py', written


def run_args(config: Path, folder: Path, **given: Any) -> argparse.Namespace:
    """Return the arguments of tools/train.py and tools/test.py."""
    defaults = {
        'config': str(config), 'cfg_options': {}, 'launcher': 'none', 'local_rank': 0, 'amp': False,
        'work_dir': str(folder / 'work'), 'data_root': None, 'resume': None, 'pretrained': None,
        'no_validate': True, 'auto_scale_lr': False, 'trust_checkpoint': False, 'tta': False, 'out': None,
        'show_dir': None, 'allow_other_classes': False, 'verbose': False, 'epochs': None,
    }  # fmt: skip
    return argparse.Namespace(**{**defaults, **given})


def run_training(config: Path, folder: Path, **given: Any) -> Weights:
    """Start tools/train.py and return the weights with which the training would begin."""
    loaded = {}

    def stop(self: Runner) -> None:
        loaded.update(self.model.state_dict())
        raise LoadedError

    def load(self: Runner) -> None:
        load_or_resume(self)
        stop(self)

    load_or_resume = Runner.load_or_resume
    with mock.patch.object(Runner, 'load_or_resume', load), pytest.raises(LoadedError):
        launch.train(run_args(config, folder, **given))
    return loaded


def run_test(config: Path, source: str, folder: Path) -> Weights:
    """Start tools/test.py and return the weights that would be tested."""
    with mock.patch.object(Runner, 'test', autospec=True) as test:
        launch.test(run_args(config, folder, checkpoint=source, allow_other_classes=True))
    return test.call_args.args[0].model.state_dict()


def init_backbone(config: Path, source: str, folder: Path) -> Weights:  # noqa: ARG001 (as all entry points)
    cfg = load_config(config)
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        backbone = MODELS.build(
            {**cfg.model.backbone, 'init_cfg': {'type': 'Pretrained', 'checkpoint': source}}
        )
    backbone.init_weights()
    return {f'backbone.{name}': value for name, value in backbone.state_dict().items()}


def predict(config: Path, source: str, folder: Path) -> None:
    cv2.imwrite(str(folder / 'image.png'), np.zeros((32, 32, 3), np.uint8))
    outputs.run(
        argparse.Namespace(
            config=str(config), checkpoint=source, inputs=[str(folder / 'image.png')], out=folder / 'out',
            device='cpu', batch_size=1, score_thr=None, top_k=None, tile=None, overlap=0, full_size=False,
            skip_bad=False, overwrite=True, trust_checkpoint=False, allow_other_classes=False,
            runtime=None, precision=None,
        )
    )  # fmt: skip


def convert(source: str, folder: Path) -> Weights:
    out = folder / 'converted.pth'
    with mock.patch('sys.argv', ['convert', source, str(out), '--overwrite']):
        run_convert()
    return read_checkpoint(out).state_dict


def load_backbone(source: str) -> Weights:
    model = build_backbone()
    model.load_weights(source)
    return model.state_dict()


# From a config, a source of weights and a folder to the weights that are used; None if they are not known.
ENTRY_POINTS: dict[str, Callable[[Path, str, Path], Weights | None]] = {
    'init_cfg': init_backbone,
    'train --pretrained': lambda config, source, folder: {
        name: value
        for name, value in run_training(config, folder, pretrained=source).items()
        if name.startswith('backbone.')
    },
    'load_from': lambda config, source, folder: run_training(
        config, folder, cfg_options={'load_from': source}
    ),
    'test': run_test,
    'InLineModel': lambda config, source, _: InLineModel(config, source, 'cpu').model.state_dict(),
    'predict': predict,
    'serve': lambda config, source, _: load_models([(str(config), source)])[0].model.model.state_dict(),
    'export': lambda config, source, _: build_export_model(
        load_config(config), source
    ).toolbox_model.state_dict(),
    'export of a backbone': lambda config, source, _: {
        f'backbone.{name}': value
        for name, value in build_export_model(load_config(config), source, what='backbone')
        .toolbox_model.backbone.state_dict()
        .items()
    },
    'analysis': lambda config, source, _: load_analysis_model(str(config), source).model.state_dict(),
    'hub': lambda _, source, __: load_backbone(source),
    'convert': lambda _, source, folder: convert(source, folder),
    'publish': lambda _, source, folder: (
        read_checkpoint(publish(source, folder / 'published', overwrite=True).file).state_dict
    ),
}


@pytest.fixture
def prepared(
    files: tuple[Path, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, dict[str, str]]:
    """The files, with what is slow and the same for each entry point left out."""
    cfg = load_config(files[0])

    def load(_: Any, options: dict[str, Any] | None = None) -> Config:
        copied = copy.deepcopy(cfg)
        copied.merge_from_dict(options or {})
        return copied

    for module in (launch, loading, analysis_models):
        monkeypatch.setattr(module, 'load_config', load)
    for name in ('check_paths', 'validate_datasets'):
        monkeypatch.setattr(launch, name, lambda *_: [])
    for name in ('build_train_loop', 'build_param_scheduler'):
        monkeypatch.setattr(Runner, name, lambda *_: None)
    monkeypatch.setattr(official, 'OFFICIAL', OFFICIAL)
    monkeypatch.setenv('TORCH_HOME', str(tmp_path / 'torch'))
    monkeypatch.chdir(tmp_path)
    return files


@pytest.mark.slow
@pytest.mark.parametrize('entry', ENTRY_POINTS)
def test_every_entry_point_accepts_every_format(
    entry: str, prepared: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    config, written = prepared
    expected = make_weights()
    for name, source in written.items():
        loaded = ENTRY_POINTS[entry](config, source, tmp_path)
        if loaded is None:
            continue
        assert loaded.keys() <= expected.keys(), name
        assert sum(key.startswith('backbone.') for key in loaded) == len(expected) - 2, name
        assert all(torch.equal(loaded[key], expected[key]) for key in loaded), name


@pytest.mark.parametrize('entry', ENTRY_POINTS)
def test_every_entry_point_has_the_same_messages(
    entry: str, prepared: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    config, _ = prepared
    bad: dict[str, tuple[Any, str]] = {
        'gone.pth': (None, "checkpoint 'gone.pth' does not exist: give a .pth or .safetensors file, "),
        'text.pth': (b'text', "checkpoint 'text.pth' cannot be read: it is damaged or not a checkpoint"),
        'empty.pth': ({'epoch': 1}, "checkpoint 'empty.pth' contains no weights: expected tensors under "),
    }
    for name, (content, message) in bad.items():
        if isinstance(content, bytes):
            Path(name).write_bytes(content)
        elif content is not None:
            torch.save(content, name)
        with pytest.raises(UserError) as raised:
            ENTRY_POINTS[entry](config, name, tmp_path)
        # The flag or config key comes first where it names the file.
        assert message.removeprefix('checkpoint ') in str(raised.value), name


@pytest.mark.slow
@pytest.mark.parametrize('entry', [*ENTRY_POINTS, 'train --resume', 'train --replay'])
def test_no_entry_point_runs_code_in_a_file(
    entry: str, prepared: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    config, _ = prepared
    more: dict[str, Callable[[Path, str, Path], Any]] = {
        'train --resume': lambda config, source, folder: launch.train(
            run_args(config, folder, resume=source)
        ),
        'train --replay': lambda config, source, folder: replay(run_args(config, folder, replay=source)),
    }
    for number, (name, make) in enumerate(FILES.items()):
        path = tmp_path / f'{number}.pth'
        path.write_bytes(make(tmp_path / 'trace'))
        with pytest.raises(UserError, match=rf"{number}\.pth' (contains|cannot be)"):
            (ENTRY_POINTS | more)[entry](config, str(path), tmp_path)
        assert not (tmp_path / 'trace').exists(), name


def loading_functions() -> dict[str, Any]:
    """Return everything in the process that decides how files are loaded and written."""
    modules = {'torch': torch, 'torch.hub': torch.hub, 'torch.serialization': torch.serialization}
    modules |= {'checkpoint': mmengine_checkpoint, 'runner': mmengine_runner, 'LocalBackend': LocalBackend}
    functions = {
        f'{name}.{key}': value
        for name, module in modules.items()
        for key, value in vars(module).items()
        if inspect.isroutine(value) and not key.startswith('__')
    }
    handlers = {name: type(value) for name, value in mmengine.fileio.handlers.file_handlers.items()}
    return {**functions, **handlers, **CheckpointLoader._schemes}


def test_inference_does_not_change_how_the_process_loads_files(
    prepared: tuple[Path, dict[str, str]],
) -> None:
    config, written = prepared
    globals_before = set(torch.serialization.get_safe_globals())
    before = loading_functions()
    model = InLineModel(config, written['training'], 'cpu')
    model([np.zeros((32, 32, 3), np.uint8)], progress=False)
    after = loading_functions()
    assert [name for name in before if after[name] is not before[name]] == []
    assert after.keys() == before.keys()
    assert set(torch.serialization.get_safe_globals()) == globals_before


def test_inference_reads_the_file_once(
    prepared: tuple[Path, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, written = prepared
    read = []
    monkeypatch.setattr(
        checkpoint_reading, 'locate_checkpoint', lambda source: read.append(source) or sources.Path(source)
    )
    InLineModel(config, written['training'], 'cpu')
    assert read == [written['training']]


@pytest.fixture(scope='module')
def trained(digit_scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """A run of two steps."""
    options = {**SHORT, 'train_cfg.max_iters': 2}
    runs = Runs(tmp_path_factory.mktemp('trained') / 'run', digit_scenes.parent, options)
    assert runs.attempt(Attempt(), resume=None)[0] == 0, runs.output()
    return runs


def modify_checkpoint(trained: Runs, path: Path, infos: dict[str, Any], **meta: Any) -> Path:
    """Write the checkpoint of the run with additional entries."""
    content = torch.load(trained.folder / 'iter_2.pth', weights_only=False)
    content['meta'] |= meta
    content['message_hub']['runtime_info'] |= infos
    torch.save(content, path)
    return path


@pytest.mark.slow
def test_resuming_runs_no_code_and_removes_no_other_files(
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
    bad = modify_checkpoint(trained, tmp_path / 'bad.pth', infos, config=f'open({str(trace)!r}, "w").close()')
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
