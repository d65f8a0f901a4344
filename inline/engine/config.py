"""Reading a config, and checking it against everything that will be built from it.

:func:`load_config` reads a file, applies ``--cfg-options`` and replaces names of earlier versions.
:func:`check_config` finds errors before any data is read or any model is built.
"""

import inspect
import os
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.model import BaseModel
from mmengine.registry import Registry
from mmengine.runner import Runner
from mmengine.utils import get_object_from_string
from torch.utils.data import DataLoader

from inline import registry as registries
from inline.engine.config_components import check_components
from inline.engine.config_files import find_config_path
from inline.models.backbones.common import resolve_arch
from inline.models.backbones.deit import ARCHS, DeiTArch
from inline.utils.arguments import check_names, check_range, check_type, format_value, hint, parameters_of
from inline.utils.errors import UserError
from inline.utils.nested import walk_dicts

TOOLBOXES = ('mmpretrain', 'mmdet', 'mmseg')
_SCOPE = 'inline.'

# Names that earlier versions wrote into configs, and their current names.
TYPE_ALIASES = {
    'inline.ExactIterLoop': 'inline.ResumableIterTrainLoop',
    'inline.ExactEpochLoop': 'inline.ResumableEpochTrainLoop',
    'inline.WholeCheckpointHook': 'inline.AtomicCheckpointHook',
    'inline.BadDataHook': 'inline.DataValidationHook',
    'inline.detection.RetinaHead': 'inline.RetinaHead',
    'inline.segmentation.CrossEntropyLoss': 'inline.CrossEntropyLoss',
}
KEY_ALIASES = {'bad_data': 'data_validation', 'own_data': 'custom_data'}
# Earlier versions wrapped datasets in this type, and passed these arguments to the hook.
_OLD_WRAPPER = 'InLineCheckedDataset'
_OLD_HOOK_ARGUMENTS = ('folder', 'notes')

_Dict = dict[str, Any]
_Dicts = dict[str, Any] | list[dict[str, Any]] | None
DATALOADERS = ('train_dataloader', 'val_dataloader', 'test_dataloader')
# The settings of a config that the tools and MMEngine read, and their types.
TOP_LEVEL: dict[str, Any] = {
    'model': _Dict,
    'work_dir': str | None,
    'load_from': str | None,
    'resume': bool,
    'runner_type': str,
    'skip_nonfinite': int,
    'data_validation': _Dict,
    'loggers': str | list[str],
    'compile': bool | _Dict | None,
    'custom_data': str,
    'custom_root': str | None,
    'val_split': float | None,
    'ignore_label': int | str | list[int | str] | None,
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
    **dict.fromkeys(DATALOADERS, _Dict | None),
}
_DATALOADER_TYPES = {
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
# Settings that MMEngine requires together.
_PHASES = {
    'train': ('train_dataloader', 'train_cfg', 'optim_wrapper'),
    'val': ('val_dataloader', 'val_cfg', 'val_evaluator'),
    'test': ('test_dataloader', 'test_cfg', 'test_evaluator'),
}
_AUTO_SCALE_LR = {'enable': bool, 'base_batch_size': int}
_DATA_VALIDATION = {'max_skipped': float, 'max_pixels': int, 'read_timeout': float}
_RANDOMNESS = {'seed': int | None, 'diff_rank_seed': bool, 'deterministic': bool}
# The settings of the constructor for layer-wise learning rate decay.
_PARAMWISE = {
    'layer_decay_rate': float,
    'bias_decay_mult': float | None,
    'norm_decay_mult': float | None,
    'flat_decay_mult': float | None,
    'custom_keys': dict[str, _Dict],
}
# Arguments that must be at least 1, whatever the toolbox annotates.
_COUNTS = ('num_classes', 'in_channels', 'feat_channels')
_PLAIN_TYPES = (bool, int, float, str)


def load_config(path: str | Path, options: Mapping[str, Any] | None = None) -> Config:
    """Read a config file and override some of its settings.

    Args:
        path: The file, or its name in ``configs/``. Names that earlier versions used in it are replaced.
        options: Values by dotted key, as from ``--cfg-options``.
    """
    path = find_config_path(path)
    try:
        cfg = Config.fromfile(str(path))
    except (OSError, KeyError, SyntaxError, TypeError) as error:
        raise UserError(f'config {str(path)!r} cannot be read: {error}') from error
    except ImportError as error:
        raise UserError(
            f'config {str(path)!r} cannot be read: {_root_cause(error)}. '
            'PYTHONPATH must name the folder of a file in custom_imports'
        ) from error
    apply_aliases(cfg)
    options = {_current_key(key): value for key, value in (options or {}).items()}
    check_options(cfg, options)
    try:
        cfg.merge_from_dict(options)
    except (KeyError, TypeError, AssertionError, IndexError) as error:
        raise UserError(f'--cfg-options do not fit {str(path)!r}: {error}') from error
    if cfg.get('default_scope') not in TOOLBOXES:
        raise UserError(
            f'config {str(path)!r} has default_scope {cfg.get("default_scope")!r}: '
            f'it must name the toolbox, one of {", ".join(TOOLBOXES)}'
        )
    # The options may have old types.
    apply_aliases(cfg)
    return cfg


def apply_aliases(cfg: Config) -> None:
    """Replace names of earlier versions, in place: keys, types, and the wrapper of datasets."""
    for old, new in KEY_ALIASES.items():
        if old in cfg:
            cfg[new] = cfg.pop(old)
    for _, node in walk_dicts(cfg._cfg_dict):
        while node.get('type') == _OLD_WRAPPER:
            inner = node['dataset']
            node.clear()
            node.update(inner)
        if node.get('type') == 'inline.BadDataHook':
            for name in _OLD_HOOK_ARGUMENTS:
                node.pop(name, None)
        if isinstance(node.get('type'), str):
            node['type'] = TYPE_ALIASES.get(node['type'], node['type'])


def set_data_root(cfg: Config, root: str | Path) -> None:
    """Replace the folder ``data`` by `root` in all paths of datasets and evaluators, in place.

    A config with ``custom_data`` is for one dataset: `root` replaces that of a saved config, unless it is
    only the default of the environment.
    """
    if cfg.get('custom_root') and str(root) != os.environ.get('INLINE_DATA_ROOT'):
        cfg.custom_root = str(root)
    for _, node in walk_dicts(cfg._cfg_dict):
        for key in ('data_root', 'ann_file'):
            value = node.get(key)
            if isinstance(value, str) and Path(value).parts[:1] == ('data',):
                node[key] = str(Path(root, *Path(value).parts[1:]))


def starting_checkpoints(cfg: Config) -> Iterator[tuple[str, str]]:
    """Yield config key and path of every checkpoint that training starts from."""
    if cfg.get('load_from'):
        yield 'load_from', cfg.load_from
    for key, node in walk_dicts(cfg.get('model'), 'model'):
        if node.get('type') == 'Pretrained' and node.get('checkpoint'):
            yield f'{key}.checkpoint', node['checkpoint']


def image_size(cfg: Config) -> tuple[int, int]:
    """Return the height and width of the images that the backbone of a config is built for."""
    backbone = cfg.model.backbone
    size = backbone.get('img_size')
    if size is None and str(backbone.get('type')).endswith('InLineDeiT'):
        size = resolve_arch(backbone.get('arch', 'tiny'), ARCHS, DeiTArch).img_size
    size = 224 if size is None else size
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def check_options(cfg: Config, options: Mapping[str, Any]) -> None:
    """Raise a :class:`UserError` for ``--cfg-options`` that set a key which nothing reads."""
    known = {*cfg, *TOP_LEVEL, *inspect.signature(Runner).parameters}
    for key in options:
        first = key.split('.')[0]
        if first not in known:
            raise UserError(f'--cfg-options {key!r}: the config has no {first!r}{hint(first, sorted(known))}')


def check_config(cfg: Config) -> None:
    """Check the types of settings, the keys of dataloaders, and the arguments of all our components."""
    if 'model' not in cfg:
        raise UserError('the config has no model: it must be a dict with the type of a model')
    for name, expected in TOP_LEVEL.items():
        if name in cfg:
            check_type(name, cfg[name], expected)
    if 'type' not in cfg.model:
        raise UserError(f'model {format_value(cfg.model)}: must be a dict with the type of a model')
    for name in DATALOADERS:
        if cfg.get(name) is not None:
            _check_dataloader(name, cfg[name])
    if cfg.get('auto_scale_lr') is not None:
        _check_keys(cfg.auto_scale_lr, _AUTO_SCALE_LR, 'auto_scale_lr')
    if 'data_validation' in cfg:
        _check_keys(cfg.data_validation, _DATA_VALIDATION, 'data_validation')
        for name, value in cfg.data_validation.items():
            check_range(f'data_validation.{name}', value, 0, 2**40)
    if 'randomness' in cfg:
        _check_randomness(cfg.randomness)
    _check_optim_wrapper(cfg.get('optim_wrapper') or {})
    # Inner components first: their errors are more precise.
    for key, node in reversed(list(walk_dicts(cfg._cfg_dict))):
        if isinstance(node.get('type'), str) and node['type'].startswith(_SCOPE):
            try:
                check_component(node)
            except UserError as error:
                raise UserError(f'{key.removeprefix(".")}: {error}') from error
    check_components(cfg)


def check_phases(cfg: Config, needed: str) -> None:
    """Check that the settings of the phase `needed` are complete, and those of other phases all or none."""
    for phase, names in _PHASES.items():
        missing = [name for name in names if cfg.get(name) is None]
        if missing and (phase == needed or len(missing) < len(names)):
            raise UserError(f'the config has no {missing[0]}: {", ".join(names)} belong together')


def check_component(node: Mapping[Any, Any]) -> None:
    """Check the arguments of a dict whose type is a class of this package."""
    component = _resolve_type(node['type'])
    if not isinstance(component, type):
        return
    arguments = {name: value for name, value in node.items() if name not in ('type', '_scope_')}
    known = parameters_of(component)
    check_names(arguments, known, 'argument', component.__name__)
    if not issubclass(component, torch.nn.Module):
        return
    # A whole model builds its parts in the scope of the toolbox, which is not set yet.
    is_whole_model = issubclass(component, BaseModel)
    if is_whole_model or any(base.__module__.split('.')[0] in TOOLBOXES for base in component.__mro__):
        _check_toolbox_subclass(component, arguments, known)
    else:
        _check_backbone(component, arguments)


def check_paramwise(settings: Mapping[str, Any]) -> None:
    """Check ``paramwise_cfg`` of :class:`inline.engine.layer_decay.LayerDecayConstructor`."""
    _check_keys(settings, _PARAMWISE, 'paramwise_cfg')
    rate = settings.get('layer_decay_rate', 1)
    if not 0 < rate <= 1:
        raise UserError(f'layer_decay_rate {rate} of paramwise_cfg: must be above 0 and at most 1')


def _current_key(key: str) -> str:
    first, dot, rest = key.partition('.')
    return f'{KEY_ALIASES.get(first, first)}{dot}{rest}'


def _root_cause(error: BaseException) -> BaseException:
    """Return the first error of a chain: MMEngine's own message has many lines, but not the reason."""
    while error.__context__ is not None:
        error = error.__context__
    return error


def _check_dataloader(name: str, loader: Mapping[str, Any]) -> None:
    others = set(inspect.signature(DataLoader).parameters) - set(_DATALOADER_TYPES)
    check_names(loader, sorted([*_DATALOADER_TYPES, *others, 'disable_subprocess_warning']), 'key', name)
    for key, expected in _DATALOADER_TYPES.items():
        if key in loader:
            check_type(key, loader[key], expected, name)
        elif key in ('dataset', 'sampler'):
            raise UserError(f'{name} lacks {key}: it must be a dict with a type')
    check_range(f'{name}.batch_size', loader.get('batch_size', 1), 1, 2**20)
    check_range(f'{name}.num_workers', loader.get('num_workers', 0), 0, 1024)
    if loader.get('persistent_workers') and not loader.get('num_workers'):
        raise UserError(f'{name} has persistent_workers True and num_workers 0: use at least one worker')


def _check_optim_wrapper(wrapper: Mapping[str, Any]) -> None:
    constructor = wrapper.get('constructor', '')
    if isinstance(constructor, str) and constructor.startswith(_SCOPE):
        _resolve_type(constructor)
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
        raise UserError('randomness lacks seed: it must be an integer, or None for a random one')
    if settings['seed'] is not None:
        check_range('randomness.seed', settings['seed'], 0, 2**32 - 1)


def _check_toolbox_subclass(
    component: type[torch.nn.Module], arguments: Mapping[str, Any], known: Mapping[str, Any]
) -> None:
    """Check the types of arguments of a toolbox's class, from its annotations or default values."""
    parameters = inspect.signature(component).parameters
    for name, value in arguments.items():
        default = type(parameters[name].default) if name in parameters else None
        expected = int if name in _COUNTS else known[name] if known[name] in _PLAIN_TYPES else default
        if expected in _PLAIN_TYPES:
            check_type(name, value, expected, component.__name__)
        if name in _COUNTS:
            check_range(name, value, 1, 2**20)


def _check_backbone(component: type[torch.nn.Module], arguments: Mapping[str, Any]) -> None:
    """Build the backbone without memory, so that its constructor checks the arguments."""
    with torch.device('meta'):
        model = component(**arguments)
    size = sum(tensor.numel() * tensor.element_size() for tensor in model.parameters())
    memory = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
    if size > memory:
        raise UserError(
            f'arch {format_value(arguments.get("arch"))} of {component.__name__} has {size / 2**30:,.0f} GiB '
            f'of parameters: this machine has {memory / 2**30:,.0f}'
        )


@cache
def _resolve_type(name: str) -> Any:
    """Return the class or function of a ``type='inline.…'``: a registered name or a full import path."""
    if '.' in name.removeprefix(_SCOPE):
        found = get_object_from_string(name)
        if found is None:
            raise UserError(f'unknown type {name!r}: the package has nothing with this name')
        return found
    own = [one for one in vars(registries).values() if isinstance(one, Registry) and one.scope == 'inline']
    for registry in own:
        found = registry.get(name.removeprefix(_SCOPE))
        if found is not None:
            return found
    names = {key for registry in own for key in registry.module_dict} | registries.LAZY_MODULES.keys()
    known = sorted(f'{_SCOPE}{key}' for key in names)
    raise UserError(f'unknown type {name!r}: choose one of {", ".join(known)}{hint(name, known)}')
