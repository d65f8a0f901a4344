"""Where the time of a training step goes: data, forward, backward, optimizer, communication, hooks."""

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

PARTS = ('data', 'forward', 'backward', 'optimizer', 'communication', 'hooks', 'rest')


class Enough(Exception):  # noqa: N818 (no error: it ends the training loop)
    """All steps were timed."""


class StepTimer(Hook):
    """Times the parts of each step, and ends the training after so many.

    It is the first of the hooks before and after a step; :class:`LastHook` tells it when the others are
    done. Waiting for the data is from then to the hooks before the next step. With several processes every
    second step keeps its gradients to itself: what the backward pass takes longer in the others is
    communication.
    """

    priority = 'HIGHEST'

    def __init__(self, steps: int, warm_up: int) -> None:
        self.steps = steps
        self.warm_up = warm_up
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self._ended: float | None = None
        self._hooks_began = 0.0
        self._spent: dict[str, float] = {}
        self._is_alone = False

    def before_train(self, runner: Runner) -> None:
        model, optimizer = runner.model, runner.optim_wrapper
        optimizer.update_params = self._timed('update', optimizer.update_params)
        optimizer.backward = self._timed('backward', optimizer.backward)
        optimizer.step = self._timed('step', optimizer.step)
        optimizer.zero_grad = self._timed('zero_grad', optimizer.zero_grad)
        model.train_step = self._timed('train_step', self._alone(model, model.train_step))

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:  # noqa: ARG002 (MMEngine's signature)
        self._spent = {}
        self._hooks_began = _now()
        if self._ended is not None:
            self._spent['data'] = self._hooks_began - self._ended

    def after_train_iter(
        self,
        runner: Runner,  # noqa: ARG002 (MMEngine's signature)
        batch_idx: int,  # noqa: ARG002
        data_batch: Any = None,  # noqa: ARG002
        outputs: Any = None,  # noqa: ARG002
    ) -> None:
        self._hooks_began = _now()

    def end_hooks(self) -> None:
        """All hooks before a step are done, or all after it."""
        self._spent['hooks'] = self._spent.get('hooks', 0.0) + _now() - self._hooks_began

    def end_step(self, runner: Runner) -> None:
        """Take down the step's parts."""
        self._ended = _now()
        spent = self._spent
        if runner.iter >= self.warm_up and 'data' in spent:
            optimizer = spent.get('step', 0.0) + spent.get('zero_grad', 0.0)
            apart = isinstance(runner.model, DistributedDataParallel) and self._is_alone
            kind = 'backward alone' if apart else 'backward'
            self.seconds['data'].append(spent['data'])
            self.seconds['hooks'].append(spent['hooks'])
            self.seconds['forward'].append(spent['train_step'] - spent['update'])
            self.seconds[kind].append(spent['backward'])
            self.seconds['optimizer'].append(optimizer)
            self.seconds['rest'].append(spent['update'] - spent['backward'] - optimizer)
        if runner.iter + 1 >= self.warm_up + self.steps:
            raise Enough

    def parts(self) -> dict[str, float]:
        """Median seconds of each part."""
        medians = {name: statistics.median(values) for name, values in self.seconds.items() if values}
        exchanged = medians.get('backward', 0.0)
        backward = min(medians.pop('backward alone', exchanged), exchanged)
        return {**medians, 'backward': backward, 'communication': exchanged - backward}

    def _alone(self, model: torch.nn.Module, train_step: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            self._is_alone = not self._is_alone
            if not (isinstance(model, DistributedDataParallel) and self._is_alone):
                return train_step(*args, **kwargs)
            with model.no_sync():
                return train_step(*args, **kwargs)

        return run

    def _timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            start = _now()
            result = call(*args, **kwargs)
            self._spent[name] = self._spent.get(name, 0.0) + _now() - start
            return result

        return run


class LastHook(Hook):
    """Tells the timer that all hooks before it are done."""

    priority = 'LOWEST'

    def __init__(self, timer: StepTimer) -> None:
        self.timer = timer

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:  # noqa: ARG002 (MMEngine's signature)
        self.timer.end_hooks()

    def after_train_iter(
        self,
        runner: Runner,
        batch_idx: int,  # noqa: ARG002 (MMEngine's signature)
        data_batch: Any = None,  # noqa: ARG002
        outputs: Any = None,  # noqa: ARG002
    ) -> None:
        self.timer.end_hooks()
        self.timer.end_step(runner)


def profile_steps(cfg: Config, steps: int, warm_up: int = 2) -> dict[str, float]:
    """Median seconds of each of PARTS over so many training steps."""
    cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None
    # Steps are timed from the beginning: nothing of an earlier run is gone on from, or removed.
    cfg.resume = False
    runner = build_runner(cfg)
    timer = StepTimer(steps, warm_up)
    runner.register_hook(timer)
    runner.register_hook(LastHook(timer))
    with suppress(Enough):
        runner.train()
    return timer.parts()


def describe_parts(parts: Mapping[str, float]) -> str:
    """A table: milliseconds and share of the step."""
    total = sum(parts.values())
    lines = [f'{"part":<14}{"ms":>10}{"share":>8}']
    for name in PARTS:
        seconds = parts.get(name, 0.0)
        lines.append(f'{name:<14}{seconds * 1e3:>10.1f}{seconds / total:>8.1%}')
    return '\n'.join([*lines, f'{"step":<14}{total * 1e3:>10.1f}{1:>8.0%}'])


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()
