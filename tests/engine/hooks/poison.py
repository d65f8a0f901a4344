"""A loss that becomes NaN, and a hook that records the model, for tests of non-finite losses."""

import os
from typing import Any

import torch
from mmengine.hooks import Hook
from mmengine.registry import HOOKS, MODELS
from mmengine.runner import Runner
from torch import Tensor, nn


@MODELS.register_module()
class PoisonedLoss(nn.Module):
    """Loss that is NaN in the calls number `at`, on one rank or all; with `once`, only in the first of them.

    The counter is a buffer, which is restored when a step is skipped.
    """

    loss_name = 'loss_poisoned'

    def __init__(
        self, inner: dict[str, Any], at: tuple[int, ...], rank: int | None = None, once: bool = False
    ) -> None:
        super().__init__()
        self.inner = MODELS.build(inner)
        self.at = at
        self.rank = rank
        self.once = once
        self.was_nan = False
        self.count: Tensor
        self.register_buffer('count', torch.zeros((), dtype=torch.long))

    def forward(self, *args: Any, **options: Any) -> Tensor:
        self.count += 1
        loss = self.inner(*args, **options)
        is_affected = self.rank is None or os.environ.get('RANK') == str(self.rank)
        if not is_affected or int(self.count) not in self.at or (self.once and self.was_nan):
            return loss
        self.was_nan = True
        return loss * float('nan')


@HOOKS.register_module()
class RecordStates(Hook):
    """Records the state of the model after every step, in a list that outlives the runner."""

    states: list[dict[str, Tensor]] = []  # noqa: RUF012 (shared on purpose)

    def after_train_iter(self, runner: Runner, *_: Any, **__: Any) -> None:
        model = getattr(runner.model, 'module', runner.model)
        self.states.append({name: value.clone() for name, value in model.state_dict().items()})


@HOOKS.register_module()
class PoisonWeight(Hook):
    """Sets one value of a weight to infinity before the first step."""

    def __init__(self, name: str) -> None:
        self.name = name

    def before_train(self, runner: Runner) -> None:
        with torch.no_grad():
            runner.model.get_parameter(self.name).view(-1)[0] = float('inf')
