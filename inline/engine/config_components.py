"""Checks of the components that MMEngine and the toolboxes build: optimizer, schedules, loops, hooks, data.

MMEngine reports an unknown type or key with a traceback, and often late: a misspelt option of the checkpoint
hook after the first epoch. Here the types are looked up in the registries and the keys are compared with the
constructors, before any data is read.
"""

import inspect
import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import torch
from mmengine import registry as registries
from mmengine.config import Config
from mmengine.hooks import CheckpointHook
from mmengine.model import BaseModel
from mmengine.registry import DefaultScope, Registry
from mmengine.utils import get_object_from_string

from inline import registry as inline_registries
from inline.utils.arguments import check_names, check_range, check_type, format_value, hint, parameters_of
from inline.utils.errors import UserError
from inline.utils.nested import walk_dicts

_Node = Mapping[str, Any]
_LOADERS = ('train_dataloader', 'val_dataloader', 'test_dataloader')
# Arguments that MMEngine passes to constructors.
_INJECTED = ('params', 'runner', 'dataloader', 'evaluator')
# Keys that MMEngine reads itself.
_COMMON = ('type', '_scope_')
_SCHEDULER_KEYS = ('convert_to_iter_based', 'epoch_length')
_WRAPPER_KEYS = ('constructor', 'paramwise_cfg')
_LOOP_TYPES = {'val_cfg': 'ValLoop', 'test_cfg': 'TestLoop'}
_PRECISIONS = ('float16', 'bfloat16', 'float32', 'float64')
_COUNTS = ('max_epochs', 'max_iters', 'val_begin', 'val_interval', 'accumulative_counts')
# Optimizer options that must not be negative.
_NOT_NEGATIVE = ('lr', 'weight_decay', 'momentum', 'eps')
_MAX_SHOWN = 12
TOOLBOXES = ('mmpretrain', 'mmdet', 'mmseg')
_SCOPE = 'inline.'
# Arguments that must be at least 1, regardless of the toolbox's annotations.
_SIZES = ('num_classes', 'in_channels', 'feat_channels')
_PLAIN_TYPES = (bool, int, float, str)
# Necks that take every feature map of the backbone, with the list of their channels as `in_channels`.
_NECKS = ('FPN', 'PAFPN', 'ChannelMapper', 'MultiLevelNeck')


def check_components(cfg: Config) -> None:
    """Raise a :class:`UserError` for an unknown type or key, or an impossible value, in a config."""
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        _check_optim_wrapper(cfg.get('optim_wrapper'))
        for key, scheduler in _nodes(cfg.get('param_scheduler'), 'param_scheduler'):
            _check_scheduler(key, scheduler)
        _check_loops(cfg)
        _check_hooks(cfg)
        for name in _LOADERS:
            _check_loader(name, cfg.get(name) or {})
        for name in ('val_evaluator', 'test_evaluator'):
            for key, metric in _nodes(cfg.get(name), name):
                if _find(registries.EVALUATOR, metric.get('type')) is None:
                    check_component(key, metric, registries.METRICS)
        backends = (cfg.get('visualizer') or {}).get('vis_backends')
        check_type('visualizer.vis_backends', backends, list[dict[str, Any]] | None)
        if 'runner_type' in cfg:
            check_component('runner_type', {'type': cfg.runner_type}, registries.RUNNERS)
        for key, node in _nodes(backends, 'visualizer.vis_backends'):
            check_component(key, node, registries.VISBACKENDS)
    level = cfg.get('log_level', 'INFO')
    if level not in logging.getLevelNamesMapping():
        raise UserError(f'log_level {level!r}: must be one of DEBUG, INFO, WARNING, ERROR')


def check_component(
    key: str, node: _Node, registry: Registry, more_keys: Sequence[str] = (), default: str | None = None
) -> dict[str, Any]:
    """Check type and keys of a dict that is built from a registry.

    Args:
        key: Dotted key of the dict, for messages.
        node: The dict.
        registry: One of MMEngine's.
        more_keys: Keys that are not arguments of the constructor.
        default: Type of a dict without one.

    Returns:
        The parameters of the constructor with their types, empty if they are unknown.
    """
    check_type(key, node, dict[str, Any])
    kind = node.get('type', default)
    if kind is None:
        raise UserError(f'{key} {format_value(dict(node))}: lacks type')
    check_type(f'{key}._scope_', node.get('_scope_'), str | None)
    component = _find(registry, kind, node.get('_scope_'))
    if component is None:
        known = _names(registry)
        shown = ', '.join(known[:_MAX_SHOWN]) + (', …' if len(known) > _MAX_SHOWN else '')
        raise UserError(f'{key}: unknown {registry.name} {kind!r}: choose one of {shown}{hint(kind, known)}')
    parameters = constructor_parameters(component)
    if parameters:
        owner = f'{component.__name__} in {key}'
        known = [name for name in (*parameters, *more_keys) if name not in _INJECTED]
        check_names({name: node[name] for name in node if name not in _COMMON}, known, 'key', owner)
        for name, value in node.items():
            if isinstance(value, str) and not _accepts_text(parameters.get(name)):
                check_type(name, value, parameters[name], owner)
    return parameters


def check_inline_component(node: Mapping[Any, Any]) -> torch.nn.Module | None:
    """Check the arguments of a dict whose type is a class of this package.

    Returns:
        The module on the meta device if it is a backbone, otherwise None.
    """
    component = resolve_inline_type(node['type'])
    if not isinstance(component, type):
        return None
    arguments = {name: value for name, value in node.items() if name not in ('type', '_scope_')}
    known = parameters_of(component)
    check_names(arguments, known, 'argument', component.__name__)
    if not issubclass(component, torch.nn.Module):
        return None
    # A complete model builds its modules in the scope of the toolbox, which is not set yet.
    is_whole_model = issubclass(component, BaseModel)
    if is_whole_model or any(base.__module__.split('.')[0] in TOOLBOXES for base in component.__mro__):
        _check_toolbox_subclass(component, arguments, known)
        return None
    return _check_backbone(component, arguments)


def check_channels(model: Mapping[str, Any], backbone: Any) -> None:
    """Check ``in_channels`` of the neck, or of the heads if they follow the backbone.

    Args:
        model: Config of a classifier, detector or segmentor.
        backbone: One of ours, as built from the config.
    """
    channels = [backbone.dims[i] for i in backbone.out_indices]
    neck = model.get('neck')
    if isinstance(neck, dict) and neck.get('type') in _NECKS:
        _check_in_channels('model.neck', neck, channels)
    if neck is None or (isinstance(neck, dict) and neck.get('type') == 'GlobalAveragePooling'):
        for name in ('head', 'decode_head', 'auxiliary_head'):
            for key, head in _nodes(model.get(name), f'model.{name}'):
                if head.get('type') == 'LinearClsHead':
                    _check_in_channels(key, head, channels[-1])
                elif 'in_index' in head:
                    _check_in_channels(key, head, _select(channels, head['in_index'], key))


def _select(channels: Sequence[int], index: Any, key: str) -> Any:
    """Return the channels of the feature maps that a head of mmseg uses."""
    if isinstance(index, list | tuple):
        return [_select(channels, one, key) for one in index]
    check_type(f'{key}.in_index', index, int)
    check_range(f'{key}.in_index', index, -len(channels), len(channels) - 1)
    return channels[index]


def _check_in_channels(key: str, node: _Node, expected: Any) -> None:
    given = node.get('in_channels')
    if given is not None and (list(given) if isinstance(given, tuple) else given) != expected:
        raise UserError(f'{key}.in_channels {format_value(given)}: the backbone returns {expected} channels')


def constructor_parameters(component: Any) -> dict[str, Any]:
    """Return the parameters of a class with their types; {} if it also accepts names that are not listed.

    ``**kwargs`` are followed to the base classes. If the last constructor still has them, they are passed on
    to something else.
    """
    if not isinstance(component, type):
        return {}
    if issubclass(component, CheckpointHook):
        # Its other keys are passed to `save_checkpoint`, where an unknown one fails after the first epoch.
        return parameters_of(component)
    for base in component.__mro__:
        if '__init__' in vars(base):
            parameters = inspect.signature(vars(base)['__init__']).parameters.values()
            if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters):
                return parameters_of(component)
    return {}


def _accepts_text(annotation: Any) -> bool:
    """Return whether a string may be a value of a type. Only numeric types are certain to exclude it."""
    if annotation in (int, float, bool, NoneType):
        return False
    args = [arg for arg in get_args(annotation) if arg is not Ellipsis]
    is_container = get_origin(annotation) in (list, tuple, Sequence, Union, UnionType)
    return any(map(_accepts_text, args)) if args and is_container else True


def _check_optim_wrapper(wrapper: Any) -> None:
    if not isinstance(wrapper, dict):
        return
    if 'optimizer' not in wrapper:
        # Several optimizers, each with its own wrapper, built by a user-defined constructor.
        for key, node in walk_dicts(wrapper, 'optim_wrapper'):
            if isinstance(node.get('optimizer'), dict):
                _check_optimizer(f'{key}.optimizer', node['optimizer'])
        return
    check_component('optim_wrapper', wrapper, registries.OPTIM_WRAPPERS, _WRAPPER_KEYS, 'OptimWrapper')
    _check_counts('optim_wrapper', wrapper)
    precision = wrapper.get('dtype')
    if precision is not None and precision not in _PRECISIONS and not isinstance(precision, torch.dtype):
        raise UserError(f'optim_wrapper.dtype {precision!r}: choose one of {", ".join(_PRECISIONS)}')
    check_type('optim_wrapper.clip_grad', wrapper.get('clip_grad'), dict[str, Any] | None)
    for name in ('max_norm', 'clip_value'):
        if name in (wrapper.get('clip_grad') or {}):
            _check_number(f'optim_wrapper.clip_grad.{name}', wrapper['clip_grad'][name])
    constructor = wrapper.get('constructor')
    if isinstance(constructor, str):
        check_component(
            'optim_wrapper.constructor', {'type': constructor}, registries.OPTIM_WRAPPER_CONSTRUCTORS
        )
    _check_optimizer('optim_wrapper.optimizer', wrapper['optimizer'])


def _check_optimizer(key: str, optimizer: _Node) -> None:
    check_component(key, optimizer, registries.OPTIMIZERS)
    if 'betas' in optimizer:
        check_type(f'{key}.betas', optimizer['betas'], Sequence[float])
    for name in _NOT_NEGATIVE:
        if name in optimizer:
            _check_number(f'{key}.{name}', optimizer[name])


def _check_scheduler(key: str, scheduler: _Node) -> None:
    check_component(key, scheduler, registries.PARAM_SCHEDULERS, _SCHEDULER_KEYS)
    check_type(f'{key}.by_epoch', scheduler.get('by_epoch', True), bool)
    begin, end = scheduler.get('begin', 0), scheduler.get('end', math.inf)
    for name, value in (('begin', begin), ('end', end)):
        _check_number(f'{key}.{name}', value, math.inf)
    if end <= begin:
        raise UserError(f'{key}.end {end}: must be greater than begin, which is {begin}')


def _check_loops(cfg: Config) -> None:
    loop = cfg.get('train_cfg')
    if loop is not None:
        # MMEngine's deprecated way to select the loop.
        kind = 'EpochBasedTrainLoop' if loop.get('by_epoch', 'max_epochs' in loop) else 'IterBasedTrainLoop'
        _check_counts('train_cfg', loop)
        check_component('train_cfg', loop, registries.LOOPS, ('by_epoch',), kind)
    for name, kind in _LOOP_TYPES.items():
        if cfg.get(name) is not None:
            check_component(name, cfg[name], registries.LOOPS, (), kind)


def _check_hooks(cfg: Config) -> None:
    for name, hook in (cfg.get('default_hooks') or {}).items():
        if isinstance(hook, dict):
            _check_hook(f'default_hooks.{name}', hook)
    for key, hook in _nodes(cfg.get('custom_hooks'), 'custom_hooks'):
        _check_hook(key, hook)


def _check_hook(key: str, hook: _Node) -> None:
    check_component(key, hook, registries.HOOKS, ('priority',))
    interval = hook.get('interval')
    if interval is not None:
        check_type(f'{key}.interval', interval, int)
        # -1 disables a hook.
        if interval == 0 or interval < -1:
            raise UserError(f'{key}.interval {interval}: must be at least 1')


def _check_loader(name: str, loader: _Node) -> None:
    for part in ('sampler', 'batch_sampler'):
        if isinstance(loader.get(part), dict):
            check_component(f'{name}.{part}', loader[part], registries.DATA_SAMPLERS)
    for key, node in walk_dicts(loader.get('dataset'), f'{name}.dataset'):
        # Transforms may contain components of other libraries, such as albumentations.
        parent, _, last = key.rpartition('.')
        if parent.endswith('.pipeline') and last.isdigit():
            check_component(key, node, registries.TRANSFORMS)
        elif last == 'dataset' or parent.endswith('.datasets'):
            check_component(key, node, registries.DATASETS)


def _check_counts(owner: str, settings: _Node) -> None:
    for name in _COUNTS:
        if name in settings:
            check_type(name, settings[name], int, owner)
            check_range(f'{owner}.{name}', settings[name], 1, 2**40)


def _check_number(key: str, value: Any, limit: float = 1e30) -> None:
    check_type(key, value, float)
    if not 0 <= value <= limit:
        raise UserError(f'{key} {value}: must be a number, at least 0')


def _nodes(value: Any, key: str) -> Iterator[tuple[str, _Node]]:
    """Yield the dicts of a setting that is a dict with a type, a list of them, or a dict of either."""
    if isinstance(value, list | tuple):
        for i, node in enumerate(value):
            yield from _nodes(node, f'{key}.{i}')
    elif isinstance(value, dict):
        inner = {name: node for name, node in value.items() if isinstance(node, dict | list)}
        if 'type' in value or not inner or len(inner) < len(value):
            yield key, value
        else:
            for name, node in inner.items():
                yield from _nodes(node, f'{key}.{name}')


def _find(registry: Registry, kind: Any, scope: str | None = None) -> Any:
    if not isinstance(kind, str):
        return kind if callable(kind) else None
    with registry.switch_scope_and_registry(scope) as scoped:
        return scoped.get(kind)


def _names(registry: Registry) -> list[str]:
    """Return the types that a config may name without a scope."""
    names: set[str] = set()
    with registry.switch_scope_and_registry(None) as scoped:
        while scoped is not None:
            names |= scoped.module_dict.keys()
            scoped = scoped.parent
    own = registry._search_child('inline')
    return sorted(names | {f'inline.{name}' for name in (own.module_dict if own is not None else ())})


def _check_toolbox_subclass(
    component: type[torch.nn.Module], arguments: Mapping[str, Any], known: Mapping[str, Any]
) -> None:
    """Check the types of arguments of a toolbox's class, from its annotations or default values."""
    parameters = inspect.signature(component).parameters
    for name, value in arguments.items():
        default = type(parameters[name].default) if name in parameters else None
        expected = int if name in _SIZES else known[name] if known[name] in _PLAIN_TYPES else default
        if expected in _PLAIN_TYPES:
            check_type(name, value, expected, component.__name__)
        if name in _SIZES:
            check_range(name, value, 1, 2**20)


def _check_backbone(component: type[torch.nn.Module], arguments: Mapping[str, Any]) -> torch.nn.Module:
    """Build the backbone on the meta device, so that its constructor checks the arguments."""
    with torch.device('meta'):
        model = component(**arguments)
    size = sum(tensor.numel() * tensor.element_size() for tensor in model.parameters())
    memory = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
    if size > memory:
        raise UserError(
            f'arch {format_value(arguments.get("arch"))} of {component.__name__} has {size / 2**30:,.0f} GiB '
            f'of parameters: this machine has {memory / 2**30:,.0f}'
        )
    return model


@cache
def resolve_inline_type(name: str) -> Any:
    """Return the class or function of a ``type='inline.…'``: a registered name or a full import path."""
    if '.' in name.removeprefix(_SCOPE):
        found = get_object_from_string(name)
        if found is None:
            raise UserError(f'unknown type {name!r}: the package has nothing with this name')
        return found
    own = [
        one for one in vars(inline_registries).values() if isinstance(one, Registry) and one.scope == 'inline'
    ]
    for registry in own:
        found = registry.get(name.removeprefix(_SCOPE))
        if found is not None:
            return found
    names = {key for registry in own for key in registry.module_dict} | inline_registries.LAZY_MODULES.keys()
    known = sorted(f'{_SCOPE}{key}' for key in names)
    raise UserError(f'unknown type {name!r}: choose one of {", ".join(known)}{hint(name, known)}')
