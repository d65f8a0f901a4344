"""Phases of a training step, in short runs that spend a known time in one of them."""

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

from inline.benchmark.steps import StepTimer, format_phases, profile_steps
from tests.engine.distributed.ranks import launcher, run_ranks
from tests.engine.short_runs import short_run

CONFIG = 'inline-pvt-nano_digits'
PAUSE = 0.3


@HOOKS.register_module()
class SleepingHook(Hook):
    """Sleeps before and after each step."""

    def before_train_iter(self, *_: Any, **__: Any) -> None:
        time.sleep(PAUSE / 2)

    def after_train_iter(self, *_: Any, **__: Any) -> None:
        time.sleep(PAUSE / 2)


def profile(cfg: Config, steps: int) -> dict[str, float]:
    cfg.launcher = launcher()
    cfg.train_dataloader.batch_size = 2
    return profile_steps(cfg, steps)


original_backward = OptimWrapper.backward


def slow_backward(self: OptimWrapper, loss: Tensor, **options: Any) -> None:
    time.sleep(PAUSE)
    original_backward(self, loss, **options)


def test_communication_is_the_additional_time_of_synchronized_steps() -> None:
    timer = StepTimer(steps=4, warm_up=0)
    timer.seconds.update(
        {'forward': [3.0, 3.0], 'backward': [5.0, 5.0], 'backward without communication': [4.0, 4.0]}
    )
    phases = timer.medians()
    assert (phases['backward'], phases['communication']) == (4, 1)
    table = format_phases(phases).splitlines()
    assert ['communication', '1000.0', '12.5%'] in [line.split() for line in table]
    assert table[-1].split() == ['step', '8000.0', '100.0%']


@pytest.mark.slow
@pytest.mark.parametrize('priority', ['VERY_HIGH', 'LOWEST'])
def test_time_of_hooks_does_not_count_as_data(priority: str, digit_scenes: Path, tmp_path: Path) -> None:
    hooks = [{'type': 'SleepingHook', 'priority': priority}]
    cfg = short_run(CONFIG, digit_scenes, tmp_path / 'run', custom_hooks=hooks)
    (phases,) = run_ranks(1, lambda: profile(cfg, steps=2), tmp_path / 'ranks')
    assert phases['hooks'] >= PAUSE
    assert phases['data'] < phases['hooks']


@pytest.mark.slow
def test_waiting_for_the_gradients_of_another_rank_is_communication(
    digit_scenes: Path, tmp_path: Path
) -> None:
    """Rank 1 has a slow backward pass, for which rank 0 waits."""
    cfg = short_run(CONFIG, digit_scenes, tmp_path / 'run')

    def work() -> dict[str, float]:
        if os.environ['RANK'] == '1':
            OptimWrapper.backward = slow_backward
        return profile(cfg, steps=6)

    first, second = run_ranks(2, work, tmp_path / 'ranks')
    assert first['communication'] > PAUSE / 2
    assert second['backward'] >= PAUSE
