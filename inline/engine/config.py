"""Reading a config, and checking it against everything that will be built from it.

:func:`load_config` reads a file, applies ``--cfg-options`` and replaces names of earlier versions.
:func:`check_config` finds errors before any data is read or any model is built.
"""

import inspect
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mmengine.config import Config, ConfigDict
from mmengine.runner import Runner
from torch.utils.data import DataLoader

from inline.engine.config_components import (
    TOOLBOXES,
    check_channels,
    check_components,
    check_inline_component,
    resolve_inline_type,
)
from inline.engine.config_files import find_config_path
from inline.models.backbones.common import resolve_arch
from inline.models.backbones.deit import ARCHS, DeiTArch
from inline.utils.arguments import check_names, check_range, check_type, format_value, hint
from inline.utils.errors import UserError
from inline.utils.nested import leaf_datasets, max_num_classes, walk_dicts

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
_LOOPS = {
    'EpochBasedTrainLoop': 'inline.ResumableEpochTrainLoop',
    'IterBasedTrainLoop': 'inline.ResumableIterTrainLoop',
}
_CHECKPOINT_HOOK = 'inline.AtomicCheckpointHook'
# Names in `default_hooks`, and types.
_HOOKS = {
    'data_validation': 'inline.DataValidationHook',
    'nonfinite_loss': 'inline.NonFiniteLossHook',
    'preemption': 'inline.PreemptionHook',
    'summary': 'inline.SummaryHook',
}


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
    """Replace the folder ``data`` by `root` in all paths of datasets, evaluators and stored logits, in place.

    A config with ``custom_data`` has one dataset: `root` replaces its folder, but a default from the
    environment does not replace the folder in a saved config.
    """
    if cfg.get('custom_root') and str(root) != os.environ.get('INLINE_DATA_ROOT'):
        cfg.custom_root = str(root)
    for _, node in walk_dicts(cfg._cfg_dict):
        for key in ('data_root', 'ann_file', 'file'):
            value = node.get(key)
            if isinstance(value, str) and Path(value).parts[:1] == ('data',):
                node[key] = str(Path(root, *Path(value).parts[1:]))


def starting_checkpoints(cfg: Config) -> Iterator[tuple[str, str]]:
    """Yield config key and path of every checkpoint that training reads: starting weights, teachers."""
    if cfg.get('load_from'):
        yield 'load_from', cfg.load_from
    for key, node in walk_dicts(cfg.get('model'), 'model'):
        if node.get('type') == 'Pretrained' and node.get('checkpoint'):
            yield f'{key}.checkpoint', node['checkpoint']
        if node.get('teacher_checkpoint'):
            yield f'{key}.teacher_checkpoint', node['teacher_checkpoint']


def backbone_config(cfg: Config) -> ConfigDict:
    """Return the config of the backbone that is trained: of the model, or of the student of a distiller."""
    model = cfg.model.get('student', cfg.model)
    if 'backbone' not in model:
        raise UserError(f'model {format_value(str(model.get("type")))} has no backbone')
    return model.backbone


def use_student(cfg: Config) -> None:
    """Replace a distiller by its student, in place: its checkpoints hold the student."""
    if cfg.model.get('type') == 'inline.Distiller':
        cfg.model = cfg.model.student


def image_size(cfg: Config) -> tuple[int, int]:
    """Return the height and width of the images that the backbone of a config is built for."""
    backbone = backbone_config(cfg)
    size = backbone.get('img_size')
    if size is None and str(backbone.get('type')).endswith('InLineDeiT'):
        size = resolve_arch(backbone.get('arch', 'tiny'), ARCHS, DeiTArch).img_size
    size = 224 if size is None else size
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def check_options(cfg: Config, options: Mapping[str, Any]) -> None:
    """Raise a :class:`UserError` for ``--cfg-options`` that set an unknown key."""
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
    backbone = None
    # Inner components first: their errors are more precise.
    for key, node in reversed(list(walk_dicts(cfg._cfg_dict))):
        if isinstance(node.get('type'), str) and node['type'].startswith(_SCOPE):
            try:
                module = check_inline_component(node)
            except UserError as error:
                raise UserError(f'{key.removeprefix(".")}: {error}') from error
            backbone = module if key == '.model.backbone' else backbone
    if backbone is not None:
        check_channels(cfg.model, backbone)
    check_components(cfg)


def check_phases(cfg: Config, needed: str) -> None:
    """Check that the phase `needed` has all of its settings, and every other phase all or none."""
    for phase, names in _PHASES.items():
        missing = [name for name in names if cfg.get(name) is None]
        if missing and (phase == needed or len(missing) < len(names)):
            raise UserError(f'the config has no {missing[0]}: {", ".join(names)} belong together')


def check_paramwise(settings: Mapping[str, Any]) -> None:
    """Check ``paramwise_cfg`` of :class:`inline.engine.layer_decay.LayerDecayConstructor`."""
    _check_keys(settings, _PARAMWISE, 'paramwise_cfg')
    rate = settings.get('layer_decay_rate', 1)
    if not 0 < rate <= 1:
        raise UserError(f'layer_decay_rate {rate} of paramwise_cfg: must be above 0 and at most 1')


def use_inline_components(cfg: Config) -> None:
    """Replace the loops, hooks and image loaders of MMEngine and the toolboxes by ours, in the config.

    Configs based on ``configs/_base_/runtime/`` name ours already, except in what they inherit from a
    toolbox. The settings ``data_validation`` and ``skip_nonfinite`` of a config are passed on to the
    components that they configure. Loops, hooks and transforms of other packages are kept. This function is
    idempotent.
    """
    _use_resumable_loop(cfg)
    _use_hooks(cfg)
    _use_image_loaders(cfg)


def _use_resumable_loop(cfg: Config) -> None:
    train_cfg = cfg.get('train_cfg')
    if train_cfg is None:
        return
    if 'by_epoch' in train_cfg:
        train_cfg['type'] = 'EpochBasedTrainLoop' if train_cfg.pop('by_epoch') else 'IterBasedTrainLoop'
    train_cfg['type'] = _LOOPS.get(_class_name(train_cfg), train_cfg.get('type'))


def _use_hooks(cfg: Config) -> None:
    hooks = cfg.setdefault('default_hooks', ConfigDict())
    hooks.setdefault('checkpoint', ConfigDict(type=_CHECKPOINT_HOOK, interval=1))
    named = [hook for hook in (*hooks.values(), *(cfg.get('custom_hooks') or ())) if isinstance(hook, dict)]
    for hook in named:
        if hook.get('type') in ('CheckpointHook', 'mmengine.CheckpointHook'):
            hook['type'] = _CHECKPOINT_HOOK
    for name, hook_type in _HOOKS.items():
        if not any(hook.get('type') == hook_type for hook in named):
            hooks[name] = ConfigDict(type=hook_type)
            named.append(hooks[name])
    settings = {
        'inline.NonFiniteLossHook': {'skip': cfg.get('skip_nonfinite')},
        'inline.DataValidationHook': {'max_skipped': (cfg.get('data_validation') or {}).get('max_skipped')},
    }
    for hook in named:
        for key, value in settings.get(str(hook.get('type')), {}).items():
            if value is not None:
                hook[key] = value


def _use_image_loaders(cfg: Config) -> None:
    max_pixels = (cfg.get('data_validation') or {}).get('max_pixels')
    settings = {} if max_pixels is None else {'max_pixels': max_pixels}
    datasets = [one for name in DATALOADERS for one in leaf_datasets((cfg.get(name) or {}).get('dataset'))]
    pipelines = [cfg.get('tta_pipeline'), *(dataset.get('pipeline') for dataset in datasets)]
    for _, step in walk_dicts(pipelines):
        if _class_name(step) in ('LoadImageFromFile', 'LoadImage'):
            step.pop('file_client_args', None)
            step.update(type='inline.LoadImage', **settings)
        elif _class_name(step) in ('LoadAnnotations', 'LoadLabelMap') and cfg.default_scope == 'mmseg':
            step.pop('imdecode_backend', None)
            step.update(type='inline.LoadLabelMap', num_classes=max_num_classes(cfg.model), **settings)


def _class_name(node: dict[str, Any]) -> str:
    """Return the class that `node` is built as, without its scope or module."""
    component = node.get('type')
    return str(getattr(component, '__name__', component)).rpartition('.')[2]


def _current_key(key: str) -> str:
    first, dot, rest = key.partition('.')
    return f'{KEY_ALIASES.get(first, first)}{dot}{rest}'


def _root_cause(error: BaseException) -> BaseException:
    """Return the first error of a chain: MMEngine's own message is long and omits the reason."""
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
        resolve_inline_type(constructor)
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
