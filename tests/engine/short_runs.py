"""Short trainings on the digit scenes, in the way that the tool trains, for tests that compare them."""

from pathlib import Path
from typing import Any
from unittest import mock

import torch
from mmengine.config import Config
from mmengine.dist import is_distributed
from mmengine.hooks import EMAHook, Hook
from mmengine.runner import Runner
from torch import Tensor

from inline.engine.config import load_config, set_data_root
from inline.engine.launch import build_runner
from inline.engine.resume import make_resumable
from tests.conftest import ROOT
from tests.engine.ranks import launcher, world_size


class Losses(Hook):
    """Keeps every loss of this process."""

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
    """A config of digits_quick for ten steps without validation, checkpoints and pictures.

    Read it before processes are forked, and once: that takes as long as the ten steps.

    Augmentation is kept: a sample's random numbers are its own. Those of a step are a process's, so that
    stochastic depth cannot be the same in one and in several.
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
    make_resumable(cfg)
    return cfg


def train(cfg: Config, total_batch: int) -> tuple[Runner, list[dict[str, float]]]:
    """The runner after training, and the losses of every step as the mean over processes."""
    cfg.launcher = launcher()
    cfg.train_dataloader.batch_size = total_batch // world_size()
    # Formatting the config for the log takes as long again.
    with mock.patch.object(Config, 'pretty_text', ''):
        runner = build_runner(cfg)
        losses = Losses()
        runner.register_hook(losses)
        runner.train()
    return runner, [_mean(step) for step in losses.steps]


def weights(runner: Runner) -> dict[str, Tensor]:
    """All that was learned, and its moving average if there is one, by names without a wrapper's."""
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
