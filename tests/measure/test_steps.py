"""The parts of a training step, in short trainings of which it is known where their time goes."""

import os
import time
from pathlib import Path
from typing import Any

import pytest
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.optim import OptimWrapper
from mmengine.registry import HOOKS
from torch import Tensor

from inline.measure.steps import StepTimer, describe_parts, profile_steps
from tests.engine.ranks import launcher, run_ranks
from tests.engine.short_runs import short_run

CONFIG = 'inline-pvt-nano_digits'
PAUSE = 0.4


@HOOKS.register_module()
class SleepingHook(Hook):
    """Takes its time before and after each step."""

    def before_train_iter(self, *_: Any, **__: Any) -> None:
        time.sleep(PAUSE / 2)

    def after_train_iter(self, *_: Any, **__: Any) -> None:
        time.sleep(PAUSE / 2)


def profile(cfg: Config, steps: int) -> dict[str, float]:
    cfg.launcher = launcher()
    cfg.train_dataloader.batch_size = 2
    return profile_steps(cfg, steps)


own_backward = OptimWrapper.backward


def slow_backward(self: OptimWrapper, loss: Tensor, **options: Any) -> None:
    time.sleep(PAUSE)
    own_backward(self, loss, **options)


def test_communication_is_what_exchanging_gradients_adds() -> None:
    timer = StepTimer(steps=4, warm_up=0)
    timer.seconds.update({'forward': [3.0, 3.0], 'backward': [5.0, 5.0], 'backward alone': [4.0, 4.0]})
    parts = timer.parts()
    assert (parts['backward'], parts['communication']) == (4, 1)
    assert 'communication     1000.0   12.5%' in describe_parts(parts)


@pytest.mark.slow
@pytest.mark.parametrize('priority', ['VERY_HIGH', 'LOWEST'])
def test_what_hooks_take_is_no_part_of_the_data(priority: str, digit_scenes: Path, tmp_path: Path) -> None:
    hooks = [{'type': 'SleepingHook', 'priority': priority}]
    cfg = short_run(CONFIG, digit_scenes, tmp_path / 'run', custom_hooks=hooks)
    (parts,) = run_ranks(1, lambda: profile(cfg, steps=3), tmp_path / 'ranks')
    assert parts['hooks'] >= PAUSE
    assert parts['data'] < parts['hooks']


@pytest.mark.slow
def test_two_processes_wait_for_each_others_gradients(digit_scenes: Path, tmp_path: Path) -> None:
    """The second one takes longer for its backward pass: to the first that is communication."""
    cfg = short_run(CONFIG, digit_scenes, tmp_path / 'run')

    def work() -> dict[str, float]:
        if os.environ['RANK'] == '1':
            OptimWrapper.backward = slow_backward
        return profile(cfg, steps=6)

    first, second = run_ranks(2, work, tmp_path / 'ranks')
    assert first['communication'] > PAUSE / 2
    assert second['backward'] >= PAUSE
