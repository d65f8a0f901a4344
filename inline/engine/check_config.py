"""Holding a config against what will take it, before anything is built or any data is read."""

import inspect
import os
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import torch
from mmengine.config import Config
from mmengine.registry import Registry
from mmengine.runner import Runner
from mmengine.utils import get_object_from_string
from torch.utils.data import DataLoader

from inline import registry as registries
from inline.arguments import check_names, check_range, check_type, hint, parameters_of, told
from inline.errors import UserError

SCOPE = 'inline.'
_TOOLBOXES = ('mmpretrain.', 'mmdet.', 'mmseg.')
# Of which a module has at least one, whatever its toolbox says of their type.
_COUNTS = ('num_classes', 'in_channels', 'feat_channels')
_PLAIN = (bool, int, float, str)
_Dict = dict[str, Any]
_Dicts = dict[str, Any] | list[dict[str, Any]] | None
LOADERS = ('train_dataloader', 'val_dataloader', 'test_dataloader')
# What the tools and MMEngine read of a config, and what it must be.
TOP_LEVEL: dict[str, Any] = {
    'model': _Dict,
    'work_dir': str | None,
    'load_from': str | None,
    'resume': bool,
    'runner_type': str,
    'skip_nonfinite': int,
    'bad_data': _Dict,
    'loggers': str | list[str],
    'compile': bool | _Dict | None,
    'own_data': str,
    'launcher': str,
    'auto_scale_lr': _Dict | None,
    'optim_wrapper': _Dict | None,
    'param_scheduler': _Dicts,
    'default_hooks': _Dict | None,
    'custom_hooks': list[_Dict] | None,
    'model_wrapper_cfg': _Dict | None,
    'data_preprocessor': _Dict | None,
    'randomness': _Dict,
    'env_cfg': _Dict,
    'visualizer': _Dict | None,
    'tta_model': _Dict | None,
    'tta_pipeline': list[_Dict] | None,
    **{f'{phase}_cfg': _Dict | None for phase in ('train', 'val', 'test')},
    **{f'{phase}_evaluator': _Dicts for phase in ('val', 'test')},
    **dict.fromkeys(LOADERS, _Dict | None),
}
_LOADER_TYPES = {
    'dataset': _Dict,
    'sampler': _Dict,
    'batch_size': int,
    'num_workers': int,
    'persistent_workers': bool,
    'pin_memory': bool,
    'drop_last': bool,
    'prefetch_factor': int | None,
    'num_batch_per_epoch': int | None,
}
_TRAIN_CFG = ('max_iters', 'max_epochs', 'val_begin', 'val_interval')
# What MMEngine takes together or not at all.
_PHASES = {
    'train': ('train_dataloader', 'train_cfg', 'optim_wrapper'),
    'val': ('val_dataloader', 'val_cfg', 'val_evaluator'),
    'test': ('test_dataloader', 'test_cfg', 'test_evaluator'),
}
_AUTO_SCALE_LR = {'enable': bool, 'base_batch_size': int}
_RANDOMNESS = {'seed': int | None, 'diff_rank_seed': bool, 'deterministic': bool}
# What the constructor for layer-wise decay of the learning rate reads.
_PARAMWISE = {
    'layer_decay_rate': float,
    'bias_decay_mult': float | None,
    'norm_decay_mult': float | None,
    'flat_decay_mult': float | None,
    'custom_keys': dict[str, _Dict],
}


def check_options(cfg: Config, options: Mapping[str, Any]) -> None:
    """Refuse ``--cfg-options`` that would begin a setting which nothing reads."""
    known = {*cfg, *TOP_LEVEL, *inspect.signature(Runner).parameters}
    for key in options:
        first = key.split('.')[0]
        if first not in known:
            raise UserError(f'--cfg-options {key!r}: the config has no {first!r}{hint(first, sorted(known))}')


def check_config(cfg: Config) -> None:
    """Refuse wrong types at the top, unknown keys of data loaders, and all that our modules do not take."""
    if 'model' not in cfg:
        raise UserError('the config has no model: it must be a dict with the type of a model')
    for name, kind in TOP_LEVEL.items():
        if name in cfg:
            check_type(name, cfg[name], kind)
    if 'type' not in cfg.model:
        raise UserError(f'model {told(cfg.model)}: must be a dict with the type of a model')
    for name in LOADERS:
        if cfg.get(name) is not None:
            _check_loader(name, cfg[name])
    for name, value in (cfg.get('train_cfg') or {}).items():
        if name in _TRAIN_CFG:
            check_type(name, value, int, 'train_cfg')
    if cfg.get('auto_scale_lr') is not None:
        _check_keys(cfg.auto_scale_lr, _AUTO_SCALE_LR, 'auto_scale_lr')
    if 'randomness' in cfg:
        _check_randomness(cfg.randomness)
    _check_constructor(cfg.get('optim_wrapper') or {})
    for key, node in _typed(cfg._cfg_dict):
        try:
            check_module(node)
        except UserError as error:
            raise UserError(f'{key}: {error}') from error


def check_phases(cfg: Config, needed: str) -> None:
    """Refuse a config without a part of the phase that is `needed`, or with some parts of another."""
    for phase, names in _PHASES.items():
        missing = [name for name in names if cfg.get(name) is None]
        if missing and (phase == needed or len(missing) < len(names)):
            raise UserError(f'the config has no {missing[0]}: {", ".join(names)} belong together')


def check_module(node: Mapping[Any, Any]) -> None:
    """Refuse a dict with a type of ours and what its constructor does not take."""
    kind = _find(node['type'])
    if not isinstance(kind, type):
        return
    options = {name: value for name, value in node.items() if name not in ('type', '_scope_')}
    known = parameters_of(kind)
    check_names(options, known, 'argument', kind.__name__)
    if not issubclass(kind, torch.nn.Module):
        return
    if any(base.__module__.startswith(_TOOLBOXES) for base in kind.__mro__):
        _check_changed(kind, options, known)
    else:
        _check_backbone(kind, options)


def check_paramwise(settings: Mapping[str, Any]) -> None:
    """Of :class:`inline.engine.layer_decay.LayerDecayConstructor`: a slip here would change no rate."""
    _check_keys(settings, _PARAMWISE, 'paramwise_cfg')
    rate = settings.get('layer_decay_rate', 1)
    if not 0 < rate <= 1:
        raise UserError(f'layer_decay_rate {rate} of paramwise_cfg: must be above 0 and at most 1')


def _check_loader(name: str, loader: Mapping[str, Any]) -> None:
    known = [*_LOADER_TYPES, *(set(inspect.signature(DataLoader).parameters) - set(_LOADER_TYPES))]
    known.append('disable_subprocess_warning')
    check_names(loader, sorted(known), 'key', name)
    for key, kind in _LOADER_TYPES.items():
        if key in loader:
            check_type(key, loader[key], kind, name)
        elif key in ('dataset', 'sampler'):
            raise UserError(f'{name} lacks {key}: it must be a dict with a type')
    check_range(f'{name}.batch_size', loader.get('batch_size', 1), 1, 2**20)
    check_range(f'{name}.num_workers', loader.get('num_workers', 0), 0, 1024)
    if loader.get('persistent_workers') and not loader.get('num_workers'):
        raise UserError(f'{name} has persistent_workers True and num_workers 0: keep at least one, or none')


def _check_constructor(wrapper: Mapping[str, Any]) -> None:
    constructor = wrapper.get('constructor', '')
    if isinstance(constructor, str) and constructor.startswith(SCOPE):
        _find(constructor)
        paramwise = wrapper.get('paramwise_cfg')
        check_type('optim_wrapper.paramwise_cfg', paramwise, _Dict | None)
        check_paramwise(paramwise or {})


def _check_keys(settings: Mapping[str, Any], known: Mapping[str, Any], owner: str) -> None:
    check_names(settings, known, 'key', owner)
    for name, value in settings.items():
        check_type(name, value, known[name], owner)


def _check_randomness(settings: Mapping[str, Any]) -> None:
    _check_keys(settings, _RANDOMNESS, 'randomness')
    if 'seed' not in settings:
        raise UserError('randomness lacks seed: it must be a whole number, or None for any')
    if settings['seed'] is not None:
        check_range('randomness.seed', settings['seed'], 0, 2**32 - 1)


def _check_changed(kind: type[torch.nn.Module], options: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Of a toolbox's module with a change of ours: types, as its annotations or defaults tell them."""
    defaults = inspect.signature(kind).parameters
    for name, value in options.items():
        default = type(defaults[name].default) if name in defaults else None
        expected = int if name in _COUNTS else known[name] if known[name] in _PLAIN else default
        if expected in _PLAIN:
            check_type(name, value, expected, kind.__name__)
        if name in _COUNTS:
            check_range(name, value, 1, 2**20)


def _check_backbone(kind: type[torch.nn.Module], options: Mapping[str, Any]) -> None:
    """Build it without its numbers, so that whatever its constructor refuses is refused now."""
    with torch.device('meta'):
        model = kind(**options)
    size = sum(tensor.numel() * tensor.element_size() for tensor in model.parameters())
    memory = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
    if size > memory:
        raise UserError(
            f'arch {told(options.get("arch"))} of {kind.__name__} makes {size / 2**30:,.0f} GiB of '
            f'parameters: this machine has {memory / 2**30:,.0f}'
        )


def _typed(node: Any, key: str = '') -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each dict of a config whose type is one of ours, the innermost first, with its dotted key."""
    if isinstance(node, list | tuple):
        node = dict(enumerate(node))
    elif not isinstance(node, Mapping):
        return
    for name, child in node.items():
        yield from _typed(child, f'{key}.{name}' if key else str(name))
    kind = node.get('type')
    if isinstance(kind, str) and kind.startswith(SCOPE):
        yield key, node


@cache
def _find(name: str) -> Any:
    """The class, or function, that a type of ours names: as it is registered, or by its whole path."""
    if '.' in name.removeprefix(SCOPE):
        placed = get_object_from_string(name)
        if placed is None:
            raise UserError(f'unknown type {name!r}: the package has nothing of this name')
        return placed
    ours = [
        item for item in vars(registries).values() if isinstance(item, Registry) and item.scope == 'inline'
    ]
    for registry in ours:
        found = registry.get(name.removeprefix(SCOPE))
        if found is not None:
            return found
    known = sorted({f'{SCOPE}{key}' for registry in ours for key in registry.module_dict})
    raise UserError(f'unknown type {name!r}: choose one of {", ".join(known)}{hint(name, known)}')
