"""Logging to Weights & Biases and MLflow, with mocks of their packages."""

import argparse
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from mmengine.config import Config
from mmengine.registry import VISUALIZERS, init_default_scope

from inline.engine.launch import add_loggers, read_config
from inline.utils.errors import UserError
from tests.conftest import ROOT

CONFIG = ROOT / 'configs' / 'digits_quick' / 'inline-pvt-nano_digits.py'


def arguments(config: Path, work_dir: Path, **options: Any) -> argparse.Namespace:
    return argparse.Namespace(
        config=str(config),
        work_dir=str(work_dir),
        cfg_options=options,
        data_root=None,
        launcher='none',
        trust_checkpoint=False,
        local_rank=0,
    )


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> dict[str, MagicMock]:
    """Mocks of the packages. This wandb has `finish` but no `join`."""
    wandb, mlflow = MagicMock(), MagicMock()
    del wandb.join
    mlflow.MlflowException = RuntimeError
    mlflow.get_experiment_by_name.return_value = None
    monkeypatch.setitem(sys.modules, 'wandb', wandb)
    monkeypatch.setitem(sys.modules, 'mlflow', mlflow)
    monkeypatch.delenv('MLFLOW_TRACKING_URI', raising=False)
    return {'wandb': wandb, 'mlflow': mlflow}


def log(cfg: Config, tmp_path: Path, name: str) -> None:
    """Use the visualizer as a run does."""
    init_default_scope(cfg.default_scope)
    visualizer = VISUALIZERS.build({**cfg.visualizer, 'save_dir': str(tmp_path), 'name': name})
    visualizer.add_config(cfg)
    visualizer.add_scalars({'loss': 0.5}, step=3)
    visualizer.close()


def test_loggers_in_a_config(packages: dict[str, MagicMock], tmp_path: Path) -> None:
    config = tmp_path / 'mine.py'
    config.write_text(f"_base_ = '{CONFIG}'\nloggers = ['wandb', 'mlflow']\n")
    work_dir = tmp_path / 'my_run'
    work_dir.mkdir()
    cfg = read_config(arguments(config, work_dir))
    log(cfg, work_dir, 'both')
    wandb, mlflow = packages['wandb'], packages['mlflow']
    assert wandb.init.call_args.kwargs['project'] == 'inline'
    assert wandb.init.call_args.kwargs['name'] == 'my_run'
    assert wandb.log.call_args.args[0] == {'loss': 0.5}
    wandb.finish.assert_called_once()
    mlflow.set_experiment.assert_called_once_with('inline')
    mlflow.log_metrics.assert_called_once_with({'loss': 0.5}, 3)
    logged = mlflow.log_params.call_args.args[0]
    assert 0 < len(logged) <= 100
    assert 'inline-pvt' not in str(mlflow.set_tracking_uri.call_args)
    mlflow.end_run.assert_called_once()
    # The default backends are kept.
    assert list(work_dir.rglob('events.out.tfevents*'))
    assert '"loss": 0.5' in next(work_dir.rglob('scalars.json')).read_text()


def test_loggers_on_the_command_line(packages: dict[str, MagicMock], tmp_path: Path) -> None:
    cfg = read_config(arguments(CONFIG, tmp_path, loggers='wandb'))
    assert [backend['type'] for backend in cfg.visualizer.vis_backends] == [
        'LocalVisBackend',
        'TensorboardVisBackend',
        'WandbVisBackend',
    ]
    assert not packages['wandb'].init.called


def test_mlflow_uses_the_address_in_the_environment(
    packages: dict[str, MagicMock], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('MLFLOW_TRACKING_URI', 'http://tracker:5000')
    cfg = read_config(arguments(CONFIG, tmp_path, loggers=['mlflow']))
    log(cfg, tmp_path, 'mlflow_elsewhere')
    packages['mlflow'].set_tracking_uri.assert_called_once_with('http://tracker:5000')


def test_a_backend_in_the_config_is_not_changed(packages: dict[str, MagicMock]) -> None:
    own = {'type': 'WandbVisBackend', 'init_kwargs': {'project': 'mine'}}
    cfg = Config({'visualizer': {'vis_backends': [own]}, 'work_dir': 'w', 'loggers': ['wandb']})
    add_loggers(cfg)
    assert cfg.visualizer.vis_backends == [own]
    assert not packages['wandb'].init.called


@pytest.mark.parametrize('package', ['wandb', 'mlflow'])
def test_a_missing_package_is_an_error(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    work_dir = tmp_path / 'run'
    with pytest.raises(UserError, match=f'logger {package!r} needs .*: pip install {package}'):
        read_config(arguments(CONFIG, work_dir, loggers=[package]))
    backend = {'wandb': 'WandbVisBackend', 'mlflow': 'MLflowVisBackend'}[package]
    with pytest.raises(UserError, match=f'pip install {package}'):
        read_config(arguments(CONFIG, work_dir, **{'visualizer.vis_backends': [{'type': backend}]}))
    assert not work_dir.exists()


def test_an_unknown_logger_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown logger 'comet': choose one of wandb, mlflow"):
        read_config(arguments(CONFIG, tmp_path, loggers=['comet']))
