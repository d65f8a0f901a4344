"""Checks of the training state in a checkpoint before a run is resumed from it.

torch and MMEngine load it unchecked. Optimizer kernels then read and write memory according to the shape of
the parameter, not of the state, and a wrong type fails many steps later.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from mmengine.optim import OptimWrapperDict
from mmengine.runner import Runner
from torch import Tensor
from torch.optim import Optimizer

from inline.utils.arguments import format_value
from inline.utils.errors import UserError

_HUB_KEYS = ('log_scalars', 'runtime_info', 'resumed_keys')


def check_progress(meta: Mapping[str, Any], path: str) -> None:
    """Raise a :class:`UserError` if epoch, iteration or seed in a checkpoint's meta is not a number."""
    for name in ('epoch', 'iter', 'seed'):
        value = meta.get(name)
        is_count = type(value) is int and 0 <= value < 2**63
        if not is_count and not (name == 'seed' and value is None):
            raise UserError(
                f'checkpoint {path!r} cannot be resumed: its {name} is {format_value(value)}, '
                'must be a non-negative number'
            )


def check_training_state(runner: Runner, checkpoint: Mapping[str, Any]) -> None:
    """Raise a :class:`UserError` if the state in a checkpoint does not fit the optimizer and schedulers."""
    hub = checkpoint.get('message_hub')
    for key in _HUB_KEYS:
        part = hub.get(key) if isinstance(hub, dict) else None
        if not isinstance(part, dict) or not all(isinstance(name, str) for name in part):
            raise _mismatch('its message hub', hub, f'must be a dict with {", ".join(_HUB_KEYS)}')
    for name, value in checkpoint['message_hub']['runtime_info'].items():
        if name.startswith('best_score') and not _is_number(value):
            raise _mismatch(name, value, 'must be a number')
    for name, optimizer, state in _optimizers(runner.optim_wrapper, checkpoint.get('optimizer')):
        _check_optimizer(name, optimizer, state)
    schedulers, saved = runner.param_schedulers, checkpoint.get('param_schedulers')
    if isinstance(schedulers, list) and isinstance(saved, list):
        for scheduler, state in zip(schedulers, saved, strict=False):
            if not isinstance(state, dict):
                raise _mismatch('a scheduler', state, 'must be a dict')
            _check_kinds(type(scheduler).__name__, scheduler.state_dict(), state, type(scheduler))


def _optimizers(wrapper: Any, state: Any) -> Iterator[tuple[str, Optimizer, Any]]:
    """Yield every torch optimizer with its name in a wrapper of several ('' for one) and its saved state."""
    if not isinstance(wrapper, OptimWrapperDict):
        yield '', wrapper.optimizer, state
        return
    if not isinstance(state, dict) or state.keys() != dict(wrapper.items()).keys():
        raise _mismatch('its optimizer state', state, 'must have an entry for each optimizer')
    for name, one in wrapper.items():
        yield f' of {name}', one.optimizer, state[name]


def _check_optimizer(name: str, optimizer: Optimizer, saved: Any) -> None:
    label = f'the optimizer state{name}'
    groups, states = (
        saved.get(key) if isinstance(saved, dict) else None for key in ('param_groups', 'state')
    )
    if not isinstance(groups, list) or not isinstance(states, dict):
        raise _mismatch(label, saved, 'must be a dict with param_groups and state')
    sizes = [len(group['params']) for group in optimizer.param_groups]
    found = [
        len(group['params']) if isinstance(group, dict) and isinstance(group.get('params'), list) else -1
        for group in groups
    ]
    if found != sizes:
        raise UserError(
            f'the checkpoint cannot be resumed: {label} has parameter groups of sizes {format_value(found)}, '
            f'this run of sizes {format_value(sizes)}'
        )
    parameters = [parameter for group in optimizer.param_groups for parameter in group['params']]
    indices = [index for group in groups for index in group['params']]
    if not all(type(index) is int for index in indices) or len(set(indices)) != len(indices):
        raise _mismatch(f'{label}: params', indices, 'must be different numbers')
    for group, saved_group in zip(optimizer.param_groups, groups, strict=True):
        _check_kinds(label, group, {key: value for key, value in saved_group.items() if key != 'params'})
    group_of = [group for group in optimizer.param_groups for _ in group['params']]
    by_index = dict(zip(indices, zip(parameters, group_of, strict=True), strict=True))
    for index, entries in states.items():
        if index not in by_index or not isinstance(entries, dict):
            raise _mismatch(f'{label} of parameter', index, f'must be one of {len(indices)} parameters')
        parameter, group = by_index[index]
        shapes = _probe_state(type(optimizer), group, parameter.ndim)
        if shapes is not None and entries.keys() != shapes.keys():
            names = ', '.join(shapes)
            raise _mismatch(f'{label} of parameter {index}', sorted(map(str, entries)), f'must be {names}')
        for key, value in entries.items():
            shape = (shapes or {}).get(key, 'scalar' if key == 'step' else 'parameter')
            _check_state_entry(f'{label}: {format_value(key)} of parameter {index}', value, parameter, shape)


def _probe_state(cls: type[Optimizer], group: Mapping[str, Any], ndim: int) -> dict[str, str] | None:
    """Return the entries that an optimizer keeps for a parameter, and the shape of each.

    They are taken from one step of a new optimizer on a parameter with `ndim` dimensions. None for an
    optimizer that cannot be built from the settings of its group or that needs a closure.

    Returns:
        'scalar', 'parameter' (the shape of the parameter) or 'other' by entry.
    """
    accepted = inspect.signature(cls).parameters
    probe = torch.zeros((2,) * ndim, requires_grad=True)
    probe.grad = torch.zeros_like(probe)
    try:
        optimizer = cls(
            [probe], **{key: value for key, value in group.items() if key in accepted and key != 'params'}
        )
        optimizer.step()
    except Exception:  # Optimizers of other packages may need anything.
        return None
    shapes = {}
    for key, value in optimizer.state[probe].items():
        if not isinstance(value, Tensor) or value.ndim == 0 < ndim:
            shapes[key] = 'scalar'
        else:
            shapes[key] = 'parameter' if value.shape == probe.shape else 'other'
    return shapes


def _check_state_entry(label: str, value: Any, parameter: Tensor, shape: str) -> None:
    """Raise unless `value` is a number or tensor of the shape that :func:`_probe_state` found."""
    if value is None or (_is_number(value) and (shape == 'scalar' or parameter.ndim == 0)):
        return
    if not isinstance(value, Tensor):
        raise _mismatch(label, value, f'must be a {"number" if shape == "scalar" else "tensor"}')
    if shape == 'scalar' and value.numel() != 1:
        raise _mismatch(f'the shape of {label}', tuple(value.shape), 'must have one element')
    if shape == 'parameter' and value.shape != parameter.shape:
        raise _mismatch(
            f'the shape of {label}',
            tuple(value.shape),
            f'must be that of the parameter, {tuple(parameter.shape)}',
        )
    if value.is_complex() or (parameter.is_floating_point() and not value.is_floating_point()):
        raise _mismatch(label, value.dtype, f'the parameter is {parameter.dtype}')
    if value.device.type not in ('cpu', parameter.device.type):
        raise _mismatch(label, value.device, f'the parameter is on {parameter.device}')


def _check_kinds(label: str, own: Mapping[str, Any], saved: Mapping[str, Any], owner: type = object) -> None:
    """Raise if the type of a saved setting differs from this run's, or if it hides a method of `owner`."""
    for key, value in saved.items():
        if not isinstance(key, str) or callable(getattr(owner, key, None)):
            raise _mismatch(f'{label}: setting', key, 'is unknown')
        if key in own and not _is_same_kind(own[key], value):
            raise _mismatch(f'{label}: {key}', value, f'this run has {format_value(own[key])}')


def _is_same_kind(own: Any, saved: Any) -> bool:
    if own is None or saved is None or isinstance(own, bool | str):
        return saved is None or isinstance(saved, bool | int | float | str | Tensor)
    if _is_number(own):
        return _is_number(saved) or (isinstance(saved, Tensor) and saved.numel() == 1)
    if isinstance(own, Sequence):
        is_alike = isinstance(saved, Sequence) and len(own) == len(saved)
        return is_alike and all(_is_same_kind(a, b) for a, b in zip(own, saved, strict=True))
    return isinstance(saved, type(own)) or (isinstance(own, Mapping) and isinstance(saved, Mapping))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _mismatch(label: str, value: Any, expected: str) -> UserError:
    return UserError(f'the checkpoint cannot be resumed: {label} is {format_value(value)}, {expected}')
