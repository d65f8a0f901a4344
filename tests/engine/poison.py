"""What brings numbers that are not finite into a training, and what watches it."""

import os
from typing import Any

import torch
from mmengine.hooks import Hook
from mmengine.registry import HOOKS, MODELS
from mmengine.runner import Runner
from torch import Tensor, nn


@MODELS.register_module()
class PoisonedLoss(nn.Module):
    """A loss that is NaN at its calls number `at`, on one rank or on all; `once` only at the first of them.

    It counts in a buffer, which goes back with a step that is left out; whether it struck, it keeps apart.
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
        self.struck = False
        self.count: Tensor
        self.register_buffer('count', torch.zeros((), dtype=torch.long))

    def forward(self, *args: Any, **options: Any) -> Tensor:
        self.count += 1
        loss = self.inner(*args, **options)
        mine = self.rank is None or os.environ.get('RANK') == str(self.rank)
        if not mine or int(self.count) not in self.at or (self.once and self.struck):
            return loss
        self.struck = True
        return loss * float('nan')


@HOOKS.register_module()
class KeepStates(Hook):
    """Keeps the model's state after every step, in a list that outlives the runner."""

    states: list[dict[str, Tensor]] = []  # noqa: RUF012 (shared on purpose)

    def after_train_iter(self, runner: Runner, *_: Any, **__: Any) -> None:
        model = getattr(runner.model, 'module', runner.model)
        self.states.append({name: value.clone() for name, value in model.state_dict().items()})
