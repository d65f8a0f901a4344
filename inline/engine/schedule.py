"""``--epochs``: another length of training, for loops that count epochs or iterations.

Everything that is measured in epochs or iterations keeps its share of the run: warm-up, milestones and
the end of learning rate schedules, the intervals of validation and checkpoints, and hooks that begin or
switch at a step.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import Any

from mmengine.config import Config
from mmengine.dist import get_world_size
from mmengine.registry import DATASETS, DefaultScope

from inline.engine.distributed.setup import call_on_rank_zero
from inline.utils.arguments import check_range
from inline.utils.errors import UserError
from inline.utils.nested import walk_dicts

MAX_EPOCHS = 100_000
# Schedulers of MMEngine and the toolboxes that the keys below describe completely. Others depend on rates per
# step or on metrics.
_SCHEDULERS = (
    'ConstantLR', 'CosineAnnealingLR', 'CosineRestartLR', 'LinearLR', 'MultiStepLR', 'OneCycleLR', 'PolyLR',
    'PolyLRRatio', 'QuadraticWarmupLR', 'StepLR',
)  # fmt: skip
_RANGE_KEYS = ('begin', 'end')
_LENGTH_KEYS = ('T_max', 'step_size', 'total_steps')
_LIST_KEYS = ('milestones', 'periods')
# Arguments of hooks that are a step or an epoch.
_HOOK_KEYS = ('begin_epoch', 'begin_iter', 'switch_epoch', 'switch_iter', 'num_last_epochs')
# MMEngine's default of `end`.
_INFINITY = 10**9
_LOG_LINES = 10
_WARM_UPS = ('ConstantLR', 'LinearLR', 'QuadraticWarmupLR')
# A warm-up takes at most 1/3 of the run.
_WARM_UP_SHARE = 3


def set_epochs(cfg: Config, epochs: int) -> None:
    """Train for a number of epochs. Call it after the process group is joined and the data is checked.

    An epoch of a loop that counts iterations is one pass through the training dataset: its length divided by
    the batch size and by the number of processes.

    Args:
        cfg: The config, changed in place. Its loop still counts what it counted before.
        epochs: Length of the run.
    """
    check_range('--epochs', epochs, 1, MAX_EPOCHS)
    loop = cfg.train_cfg
    steps = cache(lambda: steps_per_epoch(cfg))
    if loop.get('max_epochs'):
        by_epoch, old, new = True, loop.max_epochs, epochs
    elif loop.get('max_iters'):
        by_epoch, old, new = False, loop.max_iters, epochs * steps()
    else:
        raise UserError('--epochs needs max_epochs or max_iters in train_cfg of the config')
    ratio = Fraction(new, old)
    loop['max_epochs' if by_epoch else 'max_iters'] = new
    cfg.param_scheduler = _scale_schedulers(cfg.get('param_scheduler'), ratio, steps)
    if by_epoch:
        _limit_warm_ups(cfg.param_scheduler, lambda: epochs * steps())

    def scale_interval(interval: Any, counts_epochs: bool) -> Any:
        if not isinstance(interval, int) or interval <= 0 or (counts_epochs and interval == 1):
            return interval
        # Not more often than once per epoch.
        return max(1 if counts_epochs else steps(), round(interval * ratio))

    if 'val_interval' in loop:
        loop.val_interval = scale_interval(loop.val_interval, by_epoch)
    if loop.get('val_begin', 1) > 1:
        loop.val_begin = max(1, round(loop.val_begin * ratio))
    if loop.get('dynamic_intervals'):
        loop.dynamic_intervals = [
            (round(milestone * ratio), scale_interval(interval, by_epoch))
            for milestone, interval in loop.dynamic_intervals
        ]
    for hook in [*(cfg.get('default_hooks') or {}).values(), *(cfg.get('custom_hooks') or ())]:
        if not isinstance(hook, dict):
            continue
        if str(hook.get('type')).endswith('CheckpointHook') and 'interval' in hook:
            hook['interval'] = scale_interval(hook['interval'], hook.get('by_epoch', True))
        if str(hook.get('type')).endswith('LoggerHook') and not by_epoch:
            hook['interval'] = max(1, min(hook.get('interval', 10), new // _LOG_LINES))
        for key in _HOOK_KEYS:
            if isinstance(hook.get(key), int):
                hook[key] = round(hook[key] * ratio)


def steps_per_epoch(cfg: Config) -> int:
    """Return the number of training iterations in one pass through the data, over all processes."""
    loader = cfg.train_dataloader
    if loader.get('num_batch_per_epoch'):
        return int(loader.num_batch_per_epoch)
    images = call_on_rank_zero(lambda: _dataset_length(cfg), cfg)
    batches = images / (loader.get('batch_size', 1) * get_world_size())
    return max(1, math.floor(batches) if loader.get('drop_last') else math.ceil(batches))


def _dataset_length(cfg: Config) -> int:
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        dataset = DATASETS.build(cfg.train_dataloader.dataset)
    if hasattr(dataset, 'full_init'):
        dataset.full_init()
    try:
        return len(dataset)
    except TypeError as error:
        raise UserError(
            f'--epochs: the training dataset {type(dataset).__name__} has no length; set train_cfg.max_iters'
        ) from error


def _scale_schedulers(schedulers: Any, ratio: Fraction, steps: Callable[[], int]) -> Any:
    """Scale one scheduler, a list of them, or a dict of both for several optimizers."""
    if isinstance(schedulers, list | tuple):
        return [one for one in schedulers if _scale_scheduler(one, ratio, steps)]
    if isinstance(schedulers, dict) and 'type' not in schedulers:
        return {name: _scale_schedulers(one, ratio, steps) for name, one in schedulers.items()}
    if schedulers is None or _scale_scheduler(schedulers, ratio, steps):
        return schedulers
    return None


def _scale_scheduler(scheduler: dict[str, Any], ratio: Fraction, steps: Callable[[], int]) -> bool:
    """Scale a scheduler in place; return False if it has no step left, as a warm-up of a few steps may.

    Values in epochs that are not whole after scaling become iterations.
    """
    name = str(scheduler.get('type')).rpartition('.')[2]
    if name.replace('Momentum', 'LR') not in _SCHEDULERS:
        raise UserError(
            f'--epochs cannot scale the scheduler {name!r} in param_scheduler: '
            'set the lengths with --cfg-options'
        )
    keys = [key for key in (*_RANGE_KEYS, *_LENGTH_KEYS, *_LIST_KEYS) if _is_scaled(scheduler.get(key))]
    values = [scheduler[key] for key in keys]
    numbers = [
        number for value in values for number in (value if isinstance(value, list | tuple) else [value])
    ]
    if scheduler.get('by_epoch', True) and any(
        (Fraction(number) * ratio).denominator > 1 for number in numbers
    ):
        scheduler['by_epoch'] = False
        scheduler.pop('convert_to_iter_based', None)
        ratio *= steps()
    for key in keys:
        if key in _LIST_KEYS:
            scheduler[key] = sorted({max(1, round(number * ratio)) for number in scheduler[key]})
        else:
            scheduler[key] = max(int(key in _LENGTH_KEYS), round(scheduler[key] * ratio))
    return bool(scheduler.get('end', _INFINITY) > scheduler.get('begin', 0))


def _limit_warm_ups(schedulers: Any, total: Callable[[], int]) -> None:
    """Limit warm-ups in iterations of a loop that counts epochs.

    Such a number was chosen for the epochs of another dataset: with a small one the warm-up would never end.
    """
    for _, scheduler in walk_dicts(schedulers):
        is_warm_up = str(scheduler.get('type')).endswith(_WARM_UPS) and _is_scaled(scheduler.get('end'))
        if is_warm_up and not scheduler.get('by_epoch', True):
            scheduler['end'] = min(scheduler['end'], max(1, total() // _WARM_UP_SHARE))


def _is_scaled(value: Any) -> bool:
    return value is not None and (not isinstance(value, int) or value < _INFINITY)
