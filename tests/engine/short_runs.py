"""Short trainings on the digit scenes, run like tools/train.py, for tests that compare them."""

from pathlib import Path
from typing import Any
from unittest import mock

import torch
from mmengine.config import Config
from mmengine.dist import is_distributed
from mmengine.hooks import EMAHook, Hook
from mmengine.runner import Runner
from torch import Tensor

from inline.engine.config import load_config, set_data_root, use_inline_components
from inline.engine.launch import build_runner
from inline.openmmlab.patches import write_files_atomically
from tests.conftest import ROOT
from tests.engine.distributed.ranks import launcher, world_size


class RecordLosses(Hook):
    """Records the losses of this rank."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []

    def after_train_iter(
        self,
        runner: Runner,  # noqa: ARG002 (MMEngine's)
        batch_idx: int,  # noqa: ARG002 (MMEngine's)
        data_batch: Any = None,  # noqa: ARG002 (MMEngine's)
        outputs: dict[str, Tensor] | None = None,
    ) -> None:
        assert outputs is not None
        self.steps.append({name: value.item() for name, value in outputs.items() if 'loss' in name})


def short_run(name: str, digit_scenes: Path, work_dir: Path, **options: Any) -> Config:
    """Return a config of digits_quick with ten steps and without validation, checkpoints and plots.

    Call it once, before processes are forked: reading a config takes as long as the ten steps.

    Augmentation stays on, because the random numbers of a sample do not depend on the number of ranks.
    Those of a step do, so stochastic depth is off.
    """
    cfg = load_config(ROOT / 'configs' / 'digits_quick' / f'{name}.py')
    set_data_root(cfg, digit_scenes.parent)
    cfg.merge_from_dict(
        {
            'work_dir': str(work_dir),
            'train_cfg.max_iters': 10,
            'train_dataloader.num_workers': 0,
            'train_dataloader.persistent_workers': False,
            'model.backbone.drop_path_rate': 0.0,
            'default_hooks.checkpoint.save_last': False,
            'visualizer.vis_backends': [],
            **options,
        }
    )
    cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None
    cfg.test_cfg = cfg.test_dataloader = cfg.test_evaluator = None
    use_inline_components(cfg)
    write_files_atomically()
    return cfg


def train(cfg: Config, total_batch: int) -> tuple[Runner, list[dict[str, float]]]:
    """Train and return the runner with the losses of every step, averaged over all ranks."""
    cfg.launcher = launcher()
    cfg.train_dataloader.batch_size = total_batch // world_size()
    # Formatting the config for the log would take as long as the training.
    with mock.patch.object(Config, 'pretty_text', ''):
        runner = build_runner(cfg)
        losses = RecordLosses()
        runner.register_hook(losses)
        runner.train()
    return runner, [_mean(step) for step in losses.steps]


def weights(runner: Runner) -> dict[str, Tensor]:
    """Return all parameters and their moving averages, with names that do not depend on the wrapper."""
    models = {'model': runner.model}
    for hook in runner.hooks:
        if isinstance(hook, EMAHook):
            models['average'] = hook.ema_model.module
    return {
        f'{kind}.{name.removeprefix("module.")}': parameter.detach().clone()
        for kind, model in models.items()
        for name, parameter in model.named_parameters()
    }


def _mean(step: dict[str, float]) -> dict[str, float]:
    values = torch.tensor(list(step.values()), dtype=torch.float64)
    if is_distributed():
        torch.distributed.all_reduce(values)
    return dict(zip(step, (values / world_size()).tolist(), strict=True))
