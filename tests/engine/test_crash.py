"""A run that is killed at any moment and resumed ends bit for bit like an uninterrupted one."""

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
# Everything that has a state: EMA, loss scaler, two schedules, Mixup, drop path, best checkpoint.
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
BY_ITERATION = {**COMMON, 'train_cfg.max_iters': 30, 'train_cfg.val_interval': 12}
# 17 batches per epoch and a save after every third step: most are in the middle of an epoch.
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
    """Compare nested structures bit for bit."""
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


def assert_same_end(crashed: Runs, uninterrupted: Runs) -> None:
    state = uninterrupted.state()
    assert {'state_dict', 'ema_state_dict', 'optimizer', 'param_schedulers', 'message_hub'} == state.keys()
    assert state['optimizer']['loss_scaler']['scale'] > 2.0**8
    assert_equal(crashed.state(), state)
    for rank in range(uninterrupted.processes):
        assert crashed.trace(rank) == uninterrupted.trace(rank)
        assert all(len(lines) == 1 for lines in uninterrupted.trace(rank).values())


def crash_and_resume(runs: Runs, kills: int, seed: int) -> int:
    """Kill a number of attempts, then finish the run; return how many were killed inside a save."""
    draw = random.Random(seed)
    inside = 0
    for number in range(kills):
        if number % 4 == 3:
            plan = Attempt(seconds=draw.uniform(0, 0.08))
        else:
            # Only rank 0 saves, and writes the id of the run before; the kill points of another rank are its
            # steps.
            rank = draw.randrange(runs.processes)
            plan = Attempt(points=draw.randint(1, 4 if rank else 20), rank=rank)
        code, in_a_save = runs.attempt(plan)
        assert code == -9, runs.output()[-3000:]
        inside += in_a_save
    code, _ = runs.attempt(Attempt())
    assert code == 0, runs.output()[-3000:]
    return inside


@pytest.mark.slow
@pytest.mark.parametrize(
    ('options', 'processes', 'kills'),
    [
        pytest.param(BY_ITERATION, 1, 8, id='one process', marks=pytest.mark.exhaustive),
        pytest.param(BY_ITERATION, 2, 4, id='two processes'),
        pytest.param(BY_EPOCH, 1, 4, id='by epoch with workers', marks=pytest.mark.exhaustive),
    ],
)
def test_run_killed_at_random_moments_ends_like_an_uninterrupted_one(
    options: dict[str, Any], processes: int, kills: int, digit_scenes: Path, tmp_path: Path
) -> None:
    uninterrupted = Runs(tmp_path / 'uninterrupted', digit_scenes.parent, options, processes)
    assert uninterrupted.attempt(Attempt(), resume=None)[0] == 0, uninterrupted.output()[-3000:]
    crashed = Runs(tmp_path / 'crashed', digit_scenes.parent, options, processes)
    inside = crash_and_resume(crashed, kills, seed=processes)
    assert inside >= kills // 4
    assert_same_end(crashed, uninterrupted)
    assert not list(crashed.folder.glob('.*.part'))
    assert sorted(path.name for path in crashed.folder.glob('*.pth')) == sorted(
        path.name for path in uninterrupted.folder.glob('*.pth')
    )


def allow_small_files_only() -> None:
    """Set a quota that logs stay below and checkpoints exceed."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))


@pytest.mark.slow
def test_run_without_space_for_checkpoints_ends_with_an_error(digit_scenes: Path, tmp_path: Path) -> None:
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
    # With enough space the run continues from the old checkpoint.
    assert runs.attempt(Attempt())[0] == 0, runs.output()[-3000:]
    assert (runs.folder / 'last_checkpoint').read_text().endswith('iter_6.pth')
    assert all(len(lines) == 1 for lines in runs.trace().values())
