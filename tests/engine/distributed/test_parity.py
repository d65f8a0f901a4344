"""Parity: several ranks, or accumulated gradients, train like one process with the same total batch."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from mmdet.models.dense_heads import RetinaHead as MMDetRetinaHead
from mmengine.config import ConfigDict
from mmengine.registry import DefaultScope
from mmengine.structures import InstanceData
from mmseg.models.losses import CrossEntropyLoss as MMSegCrossEntropyLoss
from torch import Tensor

from inline.openmmlab.detection import RetinaHead
from inline.openmmlab.segmentation import CrossEntropyLoss
from tests.engine.distributed.ranks import run_ranks
from tests.engine.short_runs import short_run, train, weights

Trained = tuple[list[dict[str, float]], dict[str, Tensor]]

# A config of each toolbox, with settings that could depend on the number of ranks.
TASKS: dict[str, dict[str, Any]] = {
    'inline-pvt-nano_digits': {
        'auto_scale_lr': {'enable': True, 'base_batch_size': 8},
        'custom_hooks': [{'type': 'EMAHook', 'momentum': 0.1}],
    },
    'retinanet_inline-pvt-nano_digits': {},
    'semantic-fpn_inline-pvt-nano_digits': {},
}


def assert_same_training(found: Trained, expected: Trained) -> None:
    """Compare losses to 1e-5, and weights less strictly: AdamW magnifies rounding of tiny gradients."""
    assert len(found[0]) == len(expected[0])
    for step, (one, other) in enumerate(zip(found[0], expected[0], strict=True)):
        assert one == pytest.approx(other, abs=1e-5), f'step {step}'
    assert found[1].keys() == expected[1].keys()
    for name, tensor in found[1].items():
        torch.testing.assert_close(tensor, expected[1][name], rtol=0, atol=2e-4, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize('name', TASKS)
def test_ranks_train_like_one_process(name: str, digit_scenes: Path, tmp_path: Path) -> None:
    """Covers data order, averaging of losses and gradients, clipping, learning rate and EMA."""
    cfg = short_run(name, digit_scenes, tmp_path / 'run', **TASKS[name])

    def work() -> Trained:
        runner, losses = train(cfg, total_batch=4)
        return losses, weights(runner)

    single = run_ranks(1, work, tmp_path / 'one')[0]
    assert abs(single[0][0]['loss'] - single[0][-1]['loss']) > 1e-3, 'the loss does not change'
    for count in (2, 4):
        for found in run_ranks(count, work, tmp_path / str(count)):
            assert_same_training(found, single)


@pytest.mark.slow
def test_accumulated_gradients_train_like_a_larger_batch(digit_scenes: Path, tmp_path: Path) -> None:
    # The last feature map is one token: the gradients of queries and keys are rounding errors, which AdamW
    # would magnify.
    options = {'optim_wrapper.optimizer.eps': 1e-5}
    cfg = short_run('inline-pvt-nano_digits', digit_scenes, tmp_path / 'run', **options)
    # Schedules count the small steps, so the comparison goes without.
    cfg.param_scheduler = None

    def work(total_batch: int, steps: int, accumulated: int) -> Trained:
        cfg.merge_from_dict({'train_cfg.max_iters': steps, 'optim_wrapper.accumulative_counts': accumulated})
        runner, losses = train(cfg, total_batch)
        groups = [losses[i : i + accumulated] for i in range(0, steps, accumulated)]
        means = [{'loss': sum(step['loss'] for step in group) / accumulated} for group in groups]
        return means, weights(runner)

    large = run_ranks(1, lambda: work(8, 5, 1), tmp_path / 'large')[0]
    assert_same_training(run_ranks(1, lambda: work(2, 20, 4), tmp_path / 'one')[0], large)
    assert_same_training(run_ranks(2, lambda: work(4, 10, 2), tmp_path / 'two')[0], large)


@pytest.fixture
def mmdet_scope() -> Iterator[None]:
    """Resolve module names in mmdet, whatever scope an earlier test has set."""
    with DefaultScope.overwrite_default_scope('mmdet'):
        yield


@pytest.mark.usefixtures('mmdet_scope')
def test_losses_of_one_process_equal_those_of_the_toolboxes() -> None:
    torch.manual_seed(0)
    scores, labels = torch.randn(2, 3, 5, 4), torch.randint(0, 3, (2, 5, 4))
    labels[0, :2] = 255
    for options in ({}, {'class_weight': [0.2, 1.0, 3.0]}, {'avg_non_ignore': True}):
        expected = MMSegCrossEntropyLoss(**options)(scores, labels, ignore_index=255)
        found = CrossEntropyLoss(**options)(scores, labels, ignore_index=255)
        assert found.item() == pytest.approx(expected.item())

    objects = InstanceData(bboxes=torch.tensor([[2.0, 3.0, 30.0, 25.0]]), labels=torch.tensor([1]))
    image = {'img_shape': (64, 64), 'pad_shape': (64, 64)}
    features = [torch.randn(1, 8, size, size) for size in (8, 4, 2, 1, 1)]
    losses = []
    for kind in (MMDetRetinaHead, RetinaHead):
        torch.manual_seed(0)
        assigner = {'type': 'MaxIoUAssigner', 'pos_iou_thr': 0.5, 'neg_iou_thr': 0.4, 'min_pos_iou': 0}
        head = kind(
            num_classes=3,
            in_channels=8,
            feat_channels=8,
            stacked_convs=1,
            train_cfg=ConfigDict(
                assigner=assigner, sampler={'type': 'PseudoSampler'}, allowed_border=-1, pos_weight=-1
            ),
        )
        losses.append(head.loss_by_feat(*head(features), [objects], [image]))
    for name, parts in losses[0].items():
        torch.testing.assert_close(losses[1][name], parts, rtol=0, atol=0)


def test_labelled_pixels_are_averaged_over_ranks(tmp_path: Path) -> None:
    """Rank 0 has one labelled pixel and rank 1 three; all four have the same weight."""
    scores = torch.tensor([[2.0, 0.0], [0.0, 0.0], [1.0, 0.0], [0.0, 3.0]]).T[None, :, None]
    labels = torch.tensor([[[0, 1, 1, 0]]])
    shares = (torch.tensor([[[0, 255, 255, 255]]]), torch.tensor([[[255, 1, 1, 0]]]))
    whole = CrossEntropyLoss(avg_non_ignore=True)(scores, labels, ignore_index=255)

    def work() -> float:
        from inline.engine.distributed.setup import start_gloo

        start_gloo('pytorch')
        share = shares[torch.distributed.get_rank()]
        return float(CrossEntropyLoss(avg_non_ignore=True)(scores, share, ignore_index=255))

    losses = run_ranks(2, work, tmp_path / 'ranks')
    assert sum(losses) / 2 == pytest.approx(whole.item(), abs=1e-6)
