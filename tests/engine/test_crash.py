"""Killed at any moment, a run goes on and ends as if nothing had happened, to the bit."""

import random
import resource
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engine.crash_runs import Attempt, Runs

AUGMENTED = [
    {'type': 'LoadImageFromFile'},
    {'type': 'RandomResizedCrop', 'scale': 32},
    {'type': 'Noise'},
    {'type': 'PackInputs'},
]
# All that has a state: a moving average, a loss scaler, two schedules, Mixup, drop path, a best checkpoint.
COMMON: dict[str, Any] = {
    'custom_hooks': [{'type': 'EMAHook', 'momentum': 0.1}],
    'optim_wrapper.type': 'ScaledOptimWrapper',
    'model.train_cfg': {'augments': [{'type': 'Mixup', 'alpha': 0.8}]},
    'model.head.loss': {
        'type': 'LabelSmoothLoss',
        'label_smooth_val': 0.1,
        'mode': 'original',
        'use_sigmoid': False,
    },
    'model.backbone.drop_path_rate': 0.3,
    'train_dataloader.batch_size': 7,
    'train_dataloader.num_workers': 0,
    'train_dataloader.persistent_workers': False,
    'train_dataloader.dataset.pipeline': AUGMENTED,
    'val_dataloader.num_workers': 0,
    'val_dataloader.persistent_workers': False,
    'default_hooks.logger.interval': 1,
    'default_hooks.checkpoint.interval': 2,
    'default_hooks.checkpoint.save_best': 'auto',
    'param_scheduler.0.end': 8,
    'vis_backends': [{'type': 'LocalVisBackend'}],
    'visualizer.vis_backends': [{'type': 'LocalVisBackend'}],
}
BY_ITERATION = {**COMMON, 'train_cfg.max_iters': 50, 'train_cfg.val_interval': 12}
# 17 batches an epoch and a save after every second: most are in the middle of one.
BY_EPOCH = {
    **COMMON,
    'train_cfg': {'_delete_': True, 'by_epoch': True, 'max_epochs': 2, 'val_interval': 1},
    'train_dataloader.sampler': {'type': 'DefaultSampler', 'shuffle': True},
    'train_dataloader.num_workers': 2,
    'train_dataloader.persistent_workers': True,
    'default_hooks.checkpoint.interval': 3,
    'default_hooks.logger.log_metric_by_epoch': True,
}


def assert_equal(a: Any, b: Any, where: str = '') -> None:
    """The same to the bit, all the way down."""
    assert type(a) is type(b), where
    if isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            assert_equal(a[key], b[key], f'{where}.{key}')
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), where
        for i, (one, other) in enumerate(zip(a, b, strict=True)):
            assert_equal(one, other, f'{where}.{i}')
    elif isinstance(a, torch.Tensor):
        assert torch.equal(a, b), where
    else:
        assert a == b, where


def assert_same_end(crashed: Runs, whole: Runs) -> None:
    state = whole.state()
    assert {'state_dict', 'ema_state_dict', 'optimizer', 'param_schedulers', 'message_hub'} == state.keys()
    assert state['optimizer']['loss_scaler']['scale'] > 2.0**8
    assert_equal(crashed.state(), state)
    for rank in range(whole.processes):
        assert crashed.trace(rank) == whole.trace(rank)
        assert all(len(lines) == 1 for lines in whole.trace(rank).values())


def crash_and_resume(runs: Runs, kills: int, seed: int) -> int:
    """Kill so many attempts, then let one live; how many of the kills were inside a save."""
    draw = random.Random(seed)
    inside = 0
    for number in range(kills):
        if number % 4 == 3:
            plan = Attempt(seconds=draw.uniform(0, 0.08))
        else:
            # Only the first process saves; the points of another are its steps.
            rank = draw.randrange(runs.processes)
            plan = Attempt(points=draw.randint(1, 4 if rank else 16), rank=rank)
        code, in_a_save = runs.attempt(plan)
        assert code == -9, runs.output()[-3000:]
        inside += in_a_save
    code, _ = runs.attempt(Attempt())
    assert code == 0, runs.output()[-3000:]
    return inside


@pytest.mark.slow
@pytest.mark.parametrize(
    ('options', 'processes', 'kills'),
    [(BY_ITERATION, 1, 20), (BY_ITERATION, 2, 20), (BY_EPOCH, 1, 6)],
    ids=['one process', 'two processes', 'by epoch with workers'],
)
def test_killed_at_random_moments_a_run_ends_as_if_nothing_had_happened(
    options: dict[str, Any], processes: int, kills: int, digit_scenes: Path, tmp_path: Path
) -> None:
    whole = Runs(tmp_path / 'whole', digit_scenes.parent, options, processes)
    assert whole.attempt(Attempt(), resume=None)[0] == 0, whole.output()[-3000:]
    crashed = Runs(tmp_path / 'crashed', digit_scenes.parent, options, processes)
    inside = crash_and_resume(crashed, kills, seed=processes)
    assert inside >= kills // 4
    assert_same_end(crashed, whole)
    assert not list(crashed.folder.glob('.*.part'))
    assert sorted(path.name for path in crashed.folder.glob('*.pth')) == sorted(
        path.name for path in whole.folder.glob('*.pth')
    )


def allow_small_files_only() -> None:
    """As a quota that logs stay below and checkpoints do not."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))


@pytest.mark.slow
def test_without_room_for_checkpoints_a_run_trains_on_and_tells_at_the_end(
    digit_scenes: Path, tmp_path: Path
) -> None:
    options = {**COMMON, 'train_cfg.max_iters': 2, 'default_hooks.checkpoint.save_best': None}
    runs = Runs(tmp_path / 'run', digit_scenes.parent, options)
    assert runs.attempt(Attempt(), resume=None)[0] == 0, runs.output()[-3000:]
    assert (runs.folder / 'last_checkpoint').read_text().endswith('iter_2.pth')
    before = (runs.folder / 'iter_2.pth').read_bytes()
    runs.options = {**options, 'train_cfg.max_iters': 6}
    code, _ = runs.attempt(Attempt(patch=allow_small_files_only))
    output = runs.output()
    assert code == 2, output[-3000:]
    assert output.count('checkpoint not saved to') == 1
    assert output.splitlines()[-1].startswith('error: the last checkpoint could not be saved to ')
    assert 'File too large' in output.splitlines()[-1]
    assert sorted(runs.trace()) == list(range(6))
    assert [path.name for path in runs.folder.glob('*.pth')] == ['iter_2.pth']
    assert (runs.folder / 'iter_2.pth').read_bytes() == before
    assert not list(runs.folder.glob('.*.part'))
    # With room again, the run goes on from what it has.
    assert runs.attempt(Attempt())[0] == 0, runs.output()[-3000:]
    assert (runs.folder / 'last_checkpoint').read_text().endswith('iter_6.pth')
    assert all(len(lines) == 1 for lines in runs.trace().values())
