"""Time of the phases of a training step: data, forward, backward, optimizer, communication, hooks."""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch.nn.parallel import DistributedDataParallel

from inline.engine.launch import build_runner
from inline.utils.tables import align

PHASES = ('data', 'forward', 'backward', 'optimizer', 'communication', 'hooks', 'rest')
WARM_UP = 2


class StopTraining(Exception):  # noqa: N818 (not an error: it leaves the training loop)
    """All steps have been timed."""


class StepTimer(Hook):
    """Time the phases of each step and stop training after a number of steps.

    This hook runs first, before and after a step; :class:`EndOfHooks` runs last. The time between is that of
    the other hooks. Between the last hook after a step and the first one before the next step, the loop waits
    for data. With several processes, every second step skips the gradient synchronisation: the difference in
    the backward pass is the communication time.

    Args:
        steps: Number of steps to time.
        warm_up: Number of steps before these.
    """

    priority = 'HIGHEST'

    def __init__(self, steps: int, warm_up: int) -> None:
        self.steps = steps
        self.warm_up = warm_up
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self._step_ended: float | None = None
        self._hooks_began = 0.0
        self._spent: dict[str, float] = defaultdict(float)
        self._is_unsynchronized = False

    def before_train(self, runner: Runner) -> None:
        model, optimizer = runner.model, runner.optim_wrapper
        for name in ('update_params', 'backward', 'step', 'zero_grad'):
            setattr(optimizer, name, self._timed(name, getattr(optimizer, name)))
        model.train_step = self._timed('train_step', self._alternating(model, model.train_step))

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:  # noqa: ARG002 (MMEngine's signature)
        self._spent.clear()
        self._hooks_began = _now()
        if self._step_ended is not None:
            self._spent['data'] = self._hooks_began - self._step_ended

    def after_train_iter(self, runner: Runner, batch_idx: int, **_: Any) -> None:  # noqa: ARG002
        self._hooks_began = _now()

    def end_hooks(self) -> None:
        """Add the time of the hooks before or after a step."""
        self._spent['hooks'] += _now() - self._hooks_began

    def end_step(self, runner: Runner) -> None:
        """Record the phases of the step."""
        self._step_ended = _now()
        spent = self._spent
        if runner.iter >= self.warm_up and 'data' in spent:
            unsynchronized = isinstance(runner.model, DistributedDataParallel) and self._is_unsynchronized
            optimizer = spent['step'] + spent['zero_grad']
            phases = {
                'data': spent['data'],
                'hooks': spent['hooks'],
                'forward': spent['train_step'] - spent['update_params'],
                'backward without communication' if unsynchronized else 'backward': spent['backward'],
                'optimizer': optimizer,
                'rest': spent['update_params'] - spent['backward'] - optimizer,
            }
            for name, seconds in phases.items():
                self.seconds[name].append(seconds)
        if runner.iter + 1 >= self.warm_up + self.steps:
            raise StopTraining

    def medians(self) -> dict[str, float]:
        """Return the median seconds of each phase."""
        medians = {name: statistics.median(values) for name, values in self.seconds.items() if values}
        synchronized = medians.get('backward', 0.0)
        backward = min(medians.pop('backward without communication', synchronized), synchronized)
        return {**medians, 'backward': backward, 'communication': synchronized - backward}

    def _alternating(self, model: torch.nn.Module, train_step: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `train_step` to skip the gradient synchronisation of DDP in every second step."""

        def run(*args: Any, **kwargs: Any) -> Any:
            self._is_unsynchronized = not self._is_unsynchronized
            if not (isinstance(model, DistributedDataParallel) and self._is_unsynchronized):
                return train_step(*args, **kwargs)
            with model.no_sync():
                return train_step(*args, **kwargs)

        return run

    def _timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            start = _now()
            result = call(*args, **kwargs)
            self._spent[name] += _now() - start
            return result

        return run


class EndOfHooks(Hook):
    """Notify the timer when all other hooks have run."""

    priority = 'LOWEST'

    def __init__(self, timer: StepTimer) -> None:
        self.timer = timer

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:  # noqa: ARG002 (MMEngine's signature)
        self.timer.end_hooks()

    def after_train_iter(self, runner: Runner, batch_idx: int, **_: Any) -> None:  # noqa: ARG002
        self.timer.end_hooks()
        self.timer.end_step(runner)


def profile_steps(cfg: Config, steps: int) -> dict[str, float]:
    """Return the median seconds of each of PHASES over a number of training steps."""
    cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None
    # Start from scratch: do not resume an earlier run, and do not delete its files.
    cfg.resume = False
    runner = build_runner(cfg)
    timer = StepTimer(steps, WARM_UP)
    runner.register_hook(timer)
    runner.register_hook(EndOfHooks(timer))
    with suppress(StopTraining):
        runner.train()
    return timer.medians()


def format_phases(phases: Mapping[str, float]) -> str:
    """Return a table of milliseconds and shares of the step."""
    total = sum(phases.values())
    seconds = {name: phases.get(name, 0.0) for name in PHASES} | {'step': total}
    rows = [[name, f'{value * 1e3:.1f}', f'{value / total:.1%}'] for name, value in seconds.items()]
    return '\n'.join(align([['phase', 'ms', 'share'], *rows], right=(1, 2)))


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()
