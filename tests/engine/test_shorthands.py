"""Common settings as flags of tools/train.py, mapped to the keys of configs of all tasks."""

from argparse import Namespace
from typing import Any

import pytest
from mmengine.config import Config

from inline.engine import schedule
from inline.engine.config import check_config, load_config
from inline.engine.schedule import set_epochs
from inline.engine.shorthands import apply_shorthands
from inline.utils.errors import UserError

IMAGES = 100
CLASSIFIER = 'inline-pvt-tiny_image-folder'
DETECTOR = 'mask-rcnn_inline-swin-tiny_fpn_ms-crop-3x_coco'
SEGMENTOR = 'semantic-fpn_inline-pvt-tiny_label-maps'


def sizes(cfg: Config, loader: str) -> dict[str, Any]:
    """Return the sizes of the transforms of a pipeline by type."""
    keys = ('scale', 'scales', 'crop_size')
    steps = cfg[loader].dataset.pipeline
    return {step.type: step[key] for step in steps for key in keys if key in step}


def apply(name: str, **flags: Any) -> Config:
    cfg = load_config(name)
    apply_shorthands(cfg, Namespace(**flags))
    check_config(cfg)
    return cfg


def with_epochs(name: str, epochs: int, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Config:
    """Return a config after --epochs, with a dataset of 100 images and 10 images per step."""
    monkeypatch.setattr(schedule, '_dataset_length', lambda _: IMAGES)
    cfg = load_config(name, {'train_dataloader.batch_size': 10, 'launcher': 'none', **options})
    set_epochs(cfg, epochs)
    check_config(cfg)
    return cfg


@pytest.mark.parametrize('name', [CLASSIFIER, DETECTOR, SEGMENTOR])
def test_settings_that_are_the_same_in_all_tasks(name: str) -> None:
    cfg = apply(name, batch_size=3, lr=0.25, workers=0, seed=7, epochs=None, config=name)
    assert cfg.train_dataloader.batch_size == 3
    assert cfg.optim_wrapper.optimizer.lr == 0.25
    assert cfg.randomness.seed == 7
    for loader in ('train_dataloader', 'val_dataloader', 'test_dataloader'):
        assert cfg[loader].num_workers == 0
        assert not cfg[loader].persistent_workers
    assert apply(name, workers=3).val_dataloader.persistent_workers


@pytest.mark.parametrize(
    ('name', 'train', 'test', 'backbone'),
    [
        (CLASSIFIER, {'RandomResizedCrop': 112}, {'ResizeEdge': 128, 'CenterCrop': 112}, 112),
        (
            'inline-deit-tiny_8xb512_in1k',
            {'RandomResizedCrop': 112},
            {'Resize': (128, 128), 'CenterCrop': 112},
            112,
        ),
        (
            SEGMENTOR,
            {'RandomResize': (448, 112), 'RandomCrop': (112, 112)},
            {'Resize': (448, 112)},
            None,
        ),
        ('retinanet_inline-pvt-tiny_coco-format', {'Resize': (187, 112)}, {'Resize': (187, 112)}, None),
    ],
)  # fmt: skip
def test_image_size_keeps_the_proportions(name: str, train: dict, test: dict, backbone: int | None) -> None:
    cfg = apply(name, img_size=112)
    assert sizes(cfg, 'train_dataloader') == train
    assert sizes(cfg, 'val_dataloader') == sizes(cfg, 'test_dataloader') == test
    assert cfg.model.backbone.get('img_size') == backbone
    if cfg.default_scope == 'mmseg':
        assert cfg.model.data_preprocessor.size == (112, 112)


def test_image_size_reaches_nested_transforms_datasets_and_the_sliding_window() -> None:
    cfg = apply(DETECTOR, img_size=400)
    (choice,) = [step for step in cfg.train_dataloader.dataset.pipeline if step.type == 'RandomChoice']
    assert choice.transforms[0][0].scales[0] == (240, 666)
    assert choice.transforms[1][1].crop_size == (192, 300)
    cfg = load_config(SEGMENTOR)
    inner = cfg.train_dataloader.dataset
    cfg.train_dataloader.dataset = {
        'type': 'ConcatDataset',
        'datasets': [{'type': 'RepeatDataset', 'times': 2, 'dataset': inner}, inner],
    }
    cfg.model.test_cfg = {'mode': 'slide', 'crop_size': (512, 512), 'stride': (341, 341)}
    apply_shorthands(cfg, Namespace(img_size=256))
    for dataset in cfg.train_dataloader.dataset.datasets:
        assert dataset.get('dataset', dataset).pipeline[3].crop_size == (256, 256)
    assert cfg.model.test_cfg == {'mode': 'slide', 'crop_size': (256, 256), 'stride': (170, 170)}


def test_epochs_of_a_loop_that_counts_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = with_epochs(SEGMENTOR, 40, monkeypatch)
    # 400 of 8000 iterations.
    assert (cfg.train_cfg.max_iters, cfg.train_cfg.val_interval) == (400, 40)
    assert cfg.default_hooks.checkpoint.interval == 40
    assert cfg.param_scheduler[0].end == 5
    assert 'end' not in cfg.param_scheduler[1]
    # At most one validation per epoch; no step is left for the warm-up.
    cfg = with_epochs(SEGMENTOR, 2, monkeypatch)
    assert (cfg.train_cfg.max_iters, cfg.train_cfg.val_interval) == (20, 10)
    assert [one.type for one in cfg.param_scheduler] == ['PolyLR']
    assert cfg.default_hooks.logger.interval == 2


def test_iterations_of_an_epoch_depend_on_the_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, 'get_world_size', lambda: 4)
    assert with_epochs(SEGMENTOR, 1, monkeypatch).train_cfg.max_iters == 3
    dropped = with_epochs(SEGMENTOR, 1, monkeypatch, **{'train_dataloader.drop_last': True})
    assert dropped.train_cfg.max_iters == 2


def test_epochs_of_a_loop_that_counts_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = with_epochs(DETECTOR, 12, monkeypatch)
    # A third of 36 epochs, milestones 27 and 33. Steps that are not whole would become iterations.
    assert (cfg.train_cfg.max_epochs, cfg.train_cfg.val_interval) == (12, 1)
    assert cfg.param_scheduler[1].milestones == [9, 11]
    assert cfg.param_scheduler[1].by_epoch
    # 1000 iterations were chosen for COCO: with 120 in total the warm-up ends after a third.
    assert cfg.param_scheduler[0].end == 40
    cfg = with_epochs(DETECTOR, 4, monkeypatch)
    assert dict(cfg.param_scheduler[1]) | {'type': ''} == {
        'type': '', 'by_epoch': False, 'begin': 0, 'end': 40, 'milestones': [30, 37], 'gamma': 0.1,
    }  # fmt: skip


def test_short_runs_keep_a_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    """One epoch: a warm-up of two of thirty epochs is less than one."""
    cfg = with_epochs('inline-swin-tiny_8xb128_in1k', 1, monkeypatch)
    warm_up, cosine = cfg.param_scheduler
    assert (warm_up.by_epoch, warm_up.end) == (False, 1)
    assert (cosine.by_epoch, cosine.begin, cosine.end) == (False, 1, 10)


@pytest.mark.parametrize(
    ('flags', 'options', 'message'),
    [
        ({'lr': -1.0}, {}, r'^--lr -1\.0: must be a number, at least 0$'),
        ({'lr': 1e-9}, {'param_scheduler.1.eta_min': 1e-6}, '^--lr 1e-09: is below the final rate'),
        ({'batch_size': 0}, {}, '^--batch-size 0: must be from 1 to'),
        ({'img_size': 8}, {}, '^--img-size 8: must be from 32 to'),
        (
            {'img_size': 64},
            {'train_dataloader.dataset.pipeline.1.type': 'MyCrop'},
            '^--img-size: scale of MyCrop in train_dataloader may be a size or not',
        ),
        ({'workers': -1}, {}, '^--workers -1: must be from 0 to'),
        ({'seed': -1}, {}, '^--seed -1: must be from 0 to'),
    ],
)
def test_what_cannot_be_mapped_is_refused(flags: dict, options: dict, message: str) -> None:
    cfg = load_config(CLASSIFIER, options)
    with pytest.raises(UserError, match=message):
        apply_shorthands(cfg, Namespace(**flags))


@pytest.mark.parametrize(
    ('epochs', 'options', 'message'),
    [
        (0, {}, '^--epochs 0: must be from 1 to'),
        (2, {'param_scheduler.0.type': 'ExponentialLR'}, "--epochs cannot scale the .* 'ExponentialLR'"),
        (2, {'train_cfg.max_epochs': None}, '^--epochs needs max_epochs or max_iters in train_cfg'),
    ],
)  # fmt: skip
def test_epochs_that_cannot_be_mapped_are_refused(
    epochs: int, options: dict, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=message):
        with_epochs(CLASSIFIER, epochs, monkeypatch, **options)


def test_learning_rate_of_several_optimizers_and_of_one_cycle() -> None:
    cfg = load_config(CLASSIFIER)
    cfg.optim_wrapper = {
        'constructor': 'Mine',
        'first': {'optimizer': {'type': 'SGD', 'lr': 0.1}},
        'second': {'optimizer': {'type': 'SGD', 'lr': 0.1}},
    }
    cfg.param_scheduler = [{'type': 'OneCycleLR', 'eta_max': 0.1}]
    apply_shorthands(cfg, Namespace(lr=0.5))
    assert cfg.optim_wrapper.first.optimizer.lr == cfg.optim_wrapper.second.optimizer.lr == 0.5
    assert cfg.param_scheduler[0].eta_max == 0.5
    cfg.optim_wrapper.second.optimizer.lr = 0.2
    with pytest.raises(UserError, match=r'^--lr: the config has 2 optimizers with different rates'):
        apply_shorthands(cfg, Namespace(lr=0.1))
