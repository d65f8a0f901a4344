"""Every config loads and builds, has the settings of its recipe, and its pipelines run on small data."""

import copy
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, init_default_scope
from torch import nn

from inline.engine.config import load_config, set_data_root
from inline.engine.launch import drop_pretrained
from tests.conftest import ROOT

CONFIGS = sorted(path for path in (ROOT / 'configs').rglob('*.py') if '_base_' not in path.parts)
IMAGENET = [path for path in CONFIGS if '_in1k' in path.stem]
COCO = [path for path in CONFIGS if path.stem.endswith('_coco')]
ADE20K = [path for path in CONFIGS if '_ade20k-' in path.stem]
TINY_IMAGENET = [path for path in CONFIGS if path.parent == ROOT / 'configs' / 'tiny_imagenet']
BASELINES = [path for path in (*IMAGENET, *COCO, *ADE20K) if 'inline-' not in path.stem]
DATASETS = {'mmpretrain': 1000, 'mmdet': 80, 'mmseg': 150}


@cache
def read(path: Path) -> Config:
    """Read a config once. Do not change the result."""
    return load_config(path)


def every(paths: list[Path]) -> Any:
    return pytest.mark.parametrize('path', paths, ids=[path.stem for path in paths])


def inline_config_of(baseline: Path) -> Path:
    """Return the InLine config that a softmax baseline is compared with."""
    name = re.sub(r'(deit|pvt|cswin|(?<!c)swin)-', r'inline-\1-', baseline.name, count=1)
    return baseline.with_name(name)


def build(cfg: Config) -> nn.Module:
    """Build the model of a config on the meta device."""
    init_default_scope(cfg.default_scope)
    model = copy.deepcopy(cfg.model)
    drop_pretrained(model)
    with torch.device('meta'):
        return MODELS.build(model)


@every(list({path.parent: path for path in CONFIGS}.values()))
def test_tensorboard_is_on_by_default(path: Path) -> None:
    backends = [backend.type for backend in read(path).visualizer.vis_backends]
    assert backends == ['LocalVisBackend', 'TensorboardVisBackend']


def test_only_the_runtime_bases_configure_loggers() -> None:
    """So that one config of a folder stands for all."""
    others = [path for path in (ROOT / 'configs').rglob('*.py') if path.parent.name != 'runtime']
    assert [path for path in others if re.search('vis_backends|visualizer', path.read_text())] == []


def test_all_documented_configs_exist() -> None:
    assert len([path for path in IMAGENET if 'inline-' in path.stem]) == 15
    names = {path.stem for path in CONFIGS}
    for size in ('tiny', 'small', 'medium', 'large'):
        assert f'mask-rcnn_inline-pvt-{size}_fpn_1x_coco' in names
        assert f'retinanet_inline-pvt-{size}_fpn_1x_coco' in names
        assert f'semantic-fpn_inline-pvt-{size}_8xb4-40k_ade20k-512x512' in names
    for size in ('tiny', 'small'):
        assert f'mask-rcnn_inline-swin-{size}_fpn_1x_coco' in names
        assert f'mask-rcnn_inline-swin-{size}_fpn_ms-crop-3x_coco' in names
    for size in ('tiny', 'small', 'base'):
        for schedule in ('1x', '3x'):
            assert f'cascade-mask-rcnn_inline-swin-{size}_fpn_ms-crop-{schedule}_coco' in names
        assert f'upernet_inline-swin-{size}_8xb2-160k_ade20k-512x512' in names
    # Every softmax baseline has an InLine config that differs in the mixer only.
    for path in BASELINES:
        assert inline_config_of(path).stem in names, path.stem


@every(CONFIGS)
def test_configs_are_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 24


# One baseline per folder: another test compares the others with their InLine configs.
@pytest.mark.slow
@every(
    [path for path in (*IMAGENET, *COCO, *ADE20K) if path not in BASELINES or 'tiny' in path.stem]
    + TINY_IMAGENET
)
def test_the_model_builds(path: Path, tmp_path: Path) -> None:
    """Check the channels of backbone, neck and heads, the number of classes, and the weight decay."""
    cfg = copy.deepcopy(read(path))
    if cfg.model.type == 'inline.Distiller':
        cfg.model.teacher.file = str(tmp_path / 'logits.npy')
        np.save(cfg.model.teacher.file, np.zeros((2, 1, 200), np.float16))
        model = build(cfg).student
        cfg.model = cfg.model.student
    else:
        model = build(cfg)
    check_heads(cfg, model, 200 if path in TINY_IMAGENET else DATASETS[cfg.default_scope])
    check_weight_decay(cfg, model)


def check_heads(cfg: Config, model: nn.Module, classes: int) -> None:
    backbone = model.backbone
    widths = [backbone.dims[i] for i in backbone.out_indices]
    if cfg.default_scope == 'mmpretrain':
        assert model.head.fc.in_features == widths[-1]
        assert model.head.fc.out_features == classes == cfg.data_preprocessor.num_classes
        return
    neck = cfg.model.get('neck')
    if neck is not None and 'in_channels' in neck:
        assert list(neck.in_channels) == widths
    if cfg.default_scope == 'mmseg':
        assert model.decode_head.num_classes == classes
        assert len(cfg.model.decode_head.in_channels) == 4
        if neck is None:
            assert list(cfg.model.decode_head.in_channels) == widths
            assert cfg.model.auxiliary_head.in_channels == widths[2]
        return
    heads = cfg.model.get('roi_head', {}).get('bbox_head', cfg.model.get('bbox_head'))
    for head in heads if isinstance(heads, list) else [heads]:
        assert head.num_classes == classes
    if cfg.model.type == 'RetinaNet':
        assert backbone.out_indices == (1, 2, 3)
        assert neck.start_level == 0
        assert neck.num_outs == (4 if classes == 200 else 5)
        assert cfg.model.bbox_head.anchor_generator.strides == [8, 16, 32, 64, 128][: neck.num_outs]


@every(BASELINES)
def test_a_baseline_differs_from_its_inline_config_in_the_mixer_only(path: Path) -> None:
    own, other = read(path).to_dict(), read(inline_config_of(path)).to_dict()
    assert own['model']['backbone'].pop('mixers') == {'type': 'Softmax'}
    for config in (own, other):
        config['model']['backbone'].pop('init_cfg', None)
    assert own == other


@every(IMAGENET)
def test_imagenet_recipe(path: Path) -> None:
    cfg = read(path)
    gpus, images = (int(number) for number in re.search(r'_(\d+)xb(\d+)_', path.stem).groups())
    batch = gpus * images
    assert cfg.train_dataloader.batch_size == images
    assert cfg.auto_scale_lr.base_batch_size == batch
    size = int((re.search(r'-(\d+)px', path.stem) or [None, 224])[1])
    assert cfg.train_dataloader.dataset.pipeline[1].scale == size
    assert cfg.test_dataloader.dataset.pipeline == cfg.val_dataloader.dataset.pipeline
    family = cfg.model.backbone.type.removeprefix('inline.InLine')
    assert (
        cfg.model.backbone.get(
            'img_size',
            {'tiny': 224, 'small': 288, 'base': 448}.get(cfg.model.backbone.arch)
            if family == 'DeiT'
            else 224,
        )
        == size
    )
    if size == 384:
        assert cfg.train_cfg.max_epochs in (20, 30)
        assert cfg.optim_wrapper.optimizer.weight_decay == 1e-8
        return
    # 5e-4 per 512 images.
    assert cfg.optim_wrapper.optimizer.lr == pytest.approx(5e-4 * batch / 512)
    warm_up, cosine = cfg.param_scheduler
    assert (warm_up.type, cosine.type) == ('LinearLR', 'CosineAnnealingLR')
    assert warm_up.end == cosine.begin == (5 if family == 'PVT' else 20)
    timm = family in ('PVT', 'CSwin')
    assert warm_up.start_factor == (2e-3 if timm else 1e-3)
    assert cosine.eta_min_ratio == (2e-2 if timm else 1e-2)
    assert (cosine.end, cfg.train_cfg.max_epochs) == (300, 310 if timm else 300)
    clip = cfg.optim_wrapper.clip_grad
    assert (clip and clip.max_norm) == {
        'DeiT': 5.0, 'Swin': 5.0, 'CSwin': None,
        'PVT': 1.0 if cfg.model.backbone.arch in ('medium', 'large') else None,
    }[family]  # fmt: skip


def check_weight_decay(cfg: Config, model: nn.Module) -> None:
    """Check that norms, biases and position embeddings have no weight decay in the recipes that say so."""
    wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    decay = {id(group['params'][0]): group['weight_decay'] for group in wrapper.optimizer.param_groups}
    on_tiny_imagenet = Path(cfg.filename) in TINY_IMAGENET
    if len(wrapper.optimizer.param_groups) == 1:
        # PVT on COCO and ADE20K, and detectors on Tiny-ImageNet: the same weight decay for all.
        assert cfg.model.backbone.type == 'inline.InLinePVT'
        assert wrapper.optimizer.param_groups[0]['weight_decay'] == (0.05 if on_tiny_imagenet else 1e-4)
        return
    base = cfg.optim_wrapper.optimizer.weight_decay
    norms = {name for name, module in model.named_modules() if isinstance(module, nn.LayerNorm)}
    for name, parameter in model.backbone.named_parameters():
        exempt = (
            f'backbone.{name.rsplit(".", 1)[0]}' in norms
            # The configs for Tiny-ImageNet exempt parameters by their shape only.
            or ('position' in name and not on_tiny_imagenet)
            or (
                cfg.default_scope == 'mmpretrain'
                and (parameter.ndim == 1 or ('class_token' in name and not on_tiny_imagenet))
            )
        )
        assert decay[id(parameter)] == (0 if exempt else base), name


def distinct_pipelines(paths: list[Path]) -> list[Path]:
    """Return one config per distinct set of pipelines."""
    kept: dict[str, Path] = {}
    for path in paths:
        cfg = read(path)
        kept.setdefault(str([cfg[f'{split}_dataloader'].dataset for split in ('train', 'val', 'test')]), path)
    return list(kept.values())


@pytest.mark.slow
@every(distinct_pipelines([*IMAGENET, *COCO, *ADE20K]))
@pytest.mark.parametrize('split', ['train', 'val', 'test'])
def test_pipelines_run(path: Path, split: str, tiny_datasets: Path) -> None:
    from mmengine.registry import DATASETS as REGISTRY

    cfg = copy.deepcopy(read(path))
    init_default_scope(cfg.default_scope)
    set_data_root(cfg, tiny_datasets)
    dataset = REGISTRY.build(cfg[f'{split}_dataloader'].dataset)
    sample = dataset[0]
    assert sample['inputs'].shape[0] == 3
    if cfg.default_scope == 'mmpretrain':
        size = int((re.search(r'-(\d+)px', path.stem) or [None, 224])[1])
        assert sample['inputs'].shape[1:] == (size, size)
    elif cfg.default_scope == 'mmdet':
        boxes = sample['data_samples'].gt_instances.bboxes
        assert len(boxes) == 1
        assert min(sample['inputs'].shape[1:]) >= 384
    else:
        assert (
            sample['data_samples'].gt_sem_seg.data.max() < 150
            or 255 in sample['data_samples'].gt_sem_seg.data
        )
        if split == 'train':
            assert sample['inputs'].shape[1:] == sample['data_samples'].gt_sem_seg.data.shape[1:]
            assert max(sample['inputs'].shape[1:]) <= 512
