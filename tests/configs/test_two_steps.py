"""Two training steps of one config per family and task, on small images."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope

from inline.engine.config import load_config, set_data_root
from inline.engine.launch import build_runner, drop_pretrained
from inline.utils.nested import walk_dicts
from tests.conftest import ROOT, run_tool

LEAVES = [
    'inline_deit/inline-deit-tiny_8xb512_in1k',
    'inline_pvt/inline-pvt-tiny_8xb128_in1k',
    'inline_swin/inline-swin-tiny_8xb128_in1k',
    'inline_cswin/inline-cswin-tiny_8xb128_in1k',
    'mask_rcnn/mask-rcnn_inline-deit-tiny_1x_coco',
    'mask_rcnn/mask-rcnn_inline-pvt-tiny_fpn_1x_coco',
    'mask_rcnn/mask-rcnn_inline-cswin-tiny_fpn_1x_coco',
    'retinanet/retinanet_inline-pvt-tiny_fpn_1x_coco',
    'cascade_mask_rcnn/cascade-mask-rcnn_inline-swin-tiny_fpn_ms-crop-3x_coco',
    'semantic_fpn/semantic-fpn_inline-pvt-tiny_8xb4-40k_ade20k-512x512',
    'upernet/upernet_inline-deit-tiny_8xb2-160k_ade20k-512x512',
    'upernet/upernet_inline-swin-tiny_8xb2-160k_ade20k-512x512',
    'upernet/upernet_inline-cswin-tiny_8xb2-160k_ade20k-512x512',
]
# One config per task remains in `make test`.
FREQUENT = ('inline_deit/', 'inline_pvt/', 'mask_rcnn/mask-rcnn_inline-pvt', 'retinanet/', 'semantic_fpn/')
# Arguments of transforms that make the images small.
SMALL: dict[str, dict[str, Any]] = {
    'RandomResizedCrop': {'scale': 64},
    'Resize': {'scale': (160, 128)},
    'RandomChoiceResize': {'scales': [(128, 160)]},
    'RandomResize': {'scale': (160, 128), 'ratio_range': (1.0, 1.0)},
}


def shrink(cfg: Config, root: Path, work_dir: Path) -> None:
    """Change a config to two steps with two small images each, from random weights, without validation."""
    drop_pretrained(cfg.model)
    # Stochastic depth may skip a block in both steps.
    cfg.model.backbone.drop_path_rate = 0.0
    set_data_root(cfg, root)
    # Whether the coarsest level gets a gradient depends on the sampled anchors.
    cfg.randomness = {'seed': 1}
    cfg.work_dir = str(work_dir)
    cfg.launcher = 'none'
    for _, step in walk_dicts(cfg.train_dataloader.dataset.pipeline):
        step.update(SMALL.get(step.get('type'), {}))
        if step.get('type') == 'RandomCrop':
            step['crop_size'] = (96, 96)
    if cfg.default_scope == 'mmseg':
        cfg.model.data_preprocessor.size = (96, 96)
    for _, sampler in walk_dicts(cfg.model.get('train_cfg')):
        if 'num' in sampler:
            sampler['num'] = 64
    cfg.train_dataloader.update(
        batch_size=2, num_workers=0, persistent_workers=False, sampler={'type': 'InfiniteSampler'}
    )
    cfg.train_dataloader.pop('batch_sampler', None)
    cfg.train_cfg = {'type': 'IterBasedTrainLoop', 'max_iters': 2, 'val_interval': 100}
    cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None
    cfg.test_cfg = cfg.test_dataloader = cfg.test_evaluator = None
    cfg.param_scheduler = []
    cfg.custom_hooks = []
    # With some seeds the coarsest level of a detector gets no sample, and its blocks get no gradient.
    cfg.randomness = {'seed': 1}
    cfg.default_hooks.logger = {'type': 'LoggerHook', 'interval': 1, 'log_metric_by_epoch': False}
    cfg.default_hooks.checkpoint = {
        'type': 'CheckpointHook',
        'by_epoch': False,
        'interval': 100,
        'save_last': False,
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    'leaf',
    [
        pytest.param(
            leaf, id=Path(leaf).name, marks=() if leaf.startswith(FREQUENT) else pytest.mark.exhaustive
        )
        for leaf in LEAVES
    ],
)
def test_two_steps_of_training(leaf: str, tiny_datasets: Path, tmp_path: Path) -> None:
    cfg = load_config(ROOT / 'configs' / f'{leaf}.py')
    shrink(cfg, tiny_datasets, tmp_path)
    runner = build_runner(cfg)
    before = {name: p.detach().clone() for name, p in runner.model.named_parameters()}
    runner.train()
    losses = runner.message_hub.get_scalar('train/loss')
    assert len(losses.data[0]) == 2
    assert all(math.isfinite(loss) for loss in losses.data[0])
    unchanged = [
        name for name, p in runner.model.named_parameters() if p.requires_grad and (p == before[name]).all()
    ]
    # Layers for boxes or masks may have no samples. The local residual of the last block is not used if only
    # the class token is read. The other weights of the backbone must change.
    resting = 'blocks.11.mixer.residual' if cfg.model.backbone.get('out_type') == 'cls_token' else None
    idle = [name for name in unchanged if name.startswith('backbone.') and not (resting and resting in name)]
    assert not idle


def test_test_time_augmentation(tiny_datasets: Path, tmp_path: Path) -> None:
    config = ROOT / 'configs' / 'semantic_fpn' / 'semantic-fpn_inline-pvt-tiny_8xb4-40k_ade20k-512x512.py'
    cfg = load_config(config)
    drop_pretrained(cfg.model)
    init_default_scope('mmseg')
    torch.save({'state_dict': MODELS.build(cfg.model).state_dict()}, tmp_path / 'model.pth')
    done = run_tool(
        'tools/test.py',
        config,
        tmp_path / 'model.pth',
        '--tta',
        '--data-root',
        tiny_datasets,
        '--work-dir',
        tmp_path,
        '--cfg-options',
        'test_dataloader.num_workers=0',
        'test_dataloader.persistent_workers=False',
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert 'mIoU' in done.stdout + done.stderr
    assert 'unexpected key' not in done.stdout + done.stderr


def test_test_time_augmentation_needs_settings_in_the_config(tmp_path: Path) -> None:
    torch.save({'state_dict': {}}, tmp_path / 'model.pth')
    done = run_tool('tools/test.py', f'configs/{LEAVES[0]}.py', tmp_path / 'model.pth', '--tta')
    assert done.returncode == 2
    assert done.stderr.startswith('error: --tta needs tta_pipeline')
