"""``loggers = ['wandb', 'mlflow']`` in a config: where scalars go besides files and TensorBoard."""

import importlib
import os
from pathlib import Path
from typing import Any

from mmengine.config import Config

from inline.errors import UserError

# MMEngine's backends, and the packages that they need.
BACKENDS = {'wandb': 'WandbVisBackend', 'mlflow': 'MLflowVisBackend'}
# Short enough for MLflow's limit on parameters; the whole config is stored as a text beside them.
TRACKED = ('optim_wrapper', 'train_cfg', 'randomness')


def add_loggers(cfg: Config) -> None:
    """Add the backends that a config's ``loggers`` names, and refuse those whose package is missing."""
    names = cfg.get('loggers') or []
    names = [names] if isinstance(names, str) else list(names)
    backends = (cfg.get('visualizer') or {}).get('vis_backends') or []
    for name in names:
        if name not in BACKENDS:
            raise UserError(f'unknown logger {name!r}: loggers takes {", ".join(BACKENDS)}')
        if BACKENDS[name] not in [backend.get('type') for backend in backends]:
            backends = [*backends, {'type': BACKENDS[name], **_options(name, cfg)}]
    for package, backend in BACKENDS.items():
        if backend in [one.get('type') for one in backends]:
            _require(package)
    if names:
        cfg.visualizer.vis_backends = backends


def _options(name: str, cfg: Config) -> dict[str, Any]:
    run = Path(cfg.work_dir).name
    if name == 'wandb':
        return {'init_kwargs': {'project': 'inline', 'name': run}}
    options = {'exp_name': 'inline', 'run_name': run, 'tracked_config_keys': [k for k in TRACKED if k in cfg]}
    # MMEngine would write to the work directory whatever the environment says.
    address = os.environ.get('MLFLOW_TRACKING_URI')
    return {**options, 'tracking_uri': address} if address else options


def _require(package: str) -> None:
    try:
        module = importlib.import_module(package)
    except ImportError as error:
        raise UserError(
            f'logger {package!r} needs the package {package}: pip install {package}, '
            'or take it out of the config'
        ) from error
    # MMEngine ends a run by the older of two names for the same.
    if package == 'wandb' and not hasattr(module, 'join'):
        setattr(module, 'join', module.finish)  # noqa: B010 (a module has no such attribute for mypy)
