"""The config that a run saves can be used again as it is, and old names in configs keep working."""

import argparse
from pathlib import Path
from typing import Any

import pytest
from mmengine.config import Config

from inline.engine.config import KEY_ALIASES, TYPE_ALIASES, load_config, use_inline_components
from inline.engine.launch import read_config
from tests.conftest import ROOT, run_tool

CONFIGS = {
    'classification': 'digits_quick/inline-pvt-nano_digits.py',
    'detection': 'digits_quick/retinanet_inline-pvt-nano_digits.py',
    'segmentation': 'digits_quick/semantic-fpn_inline-pvt-nano_digits.py',
    'finetune': 'finetune/inline-pvt-micro_image-folder.py',
    # Pipelines, datasets and test-time augmentation that are inherited from the toolboxes.
    'coco': 'mask_rcnn/mask-rcnn_inline-pvt-tiny_fpn_1x_coco.py',
    'ade20k': 'upernet/upernet_inline-swin-tiny_8xb2-160k_ade20k-512x512.py',
}
# One config of each folder: the others have the same bases.
LEAVES = {path.parent: path for path in sorted((ROOT / 'configs').glob('[a-z]*/*.py'))}.values()
HOOKS = {
    'checkpoint': 'inline.AtomicCheckpointHook',
    'data_validation': 'inline.DataValidationHook',
    'nonfinite_loss': 'inline.NonFiniteLossHook',
    'preemption': 'inline.PreemptionHook',
}


def read(config: Path, data_root: Path, work_dir: Path) -> Config:
    return read_config(
        argparse.Namespace(
            config=str(config),
            cfg_options={},
            data_root=str(data_root),
            work_dir=str(work_dir),
            launcher='none',
            local_rank=0,
            trust_checkpoint=False,
        )
    )


def data_root_of(task: str, digit_scenes: Path) -> Path:
    return digit_scenes / 'classification' if task == 'finetune' else digit_scenes.parent


@pytest.mark.parametrize('task', CONFIGS)
def test_reading_a_saved_config_changes_nothing(task: str, digit_scenes: Path, tmp_path: Path) -> None:
    data_root = data_root_of(task, digit_scenes)
    cfg = read(ROOT / 'configs' / CONFIGS[task], data_root, tmp_path)
    cfg.dump(tmp_path / 'saved.py')
    again = read(tmp_path / 'saved.py', data_root, tmp_path)
    assert again.to_dict() == cfg.to_dict()


@pytest.mark.parametrize('task', CONFIGS)
def test_the_config_shows_what_runs(task: str, digit_scenes: Path, tmp_path: Path) -> None:
    cfg = read(ROOT / 'configs' / CONFIGS[task], data_root_of(task, digit_scenes), tmp_path)
    assert cfg.train_cfg.type in ('inline.ResumableIterTrainLoop', 'inline.ResumableEpochTrainLoop')
    assert {name: cfg.default_hooks[name].type for name in HOOKS} == HOOKS
    for loader in ('train_dataloader', 'val_dataloader', 'test_dataloader'):
        pipeline = [step.type for step in cfg[loader].dataset.pipeline]
        assert pipeline[0] == 'inline.LoadImage'
        assert ('inline.LoadLabelMap' in pipeline) == (cfg.default_scope == 'mmseg')
        assert not {'LoadImageFromFile', 'InLineCheckedDataset'} & {cfg[loader].dataset.type, *pipeline}


@pytest.mark.parametrize('path', LEAVES, ids=lambda path: path.parent.name)
def test_our_configs_name_our_loop_and_hooks_themselves(path: Path) -> None:
    cfg = load_config(path)
    before = cfg.to_dict()
    use_inline_components(cfg)
    for name in ('train_cfg', 'default_hooks', 'custom_hooks'):
        assert cfg.get(name) == before.get(name), name


@pytest.mark.slow
@pytest.mark.parametrize('task', ['detection', 'finetune'])
def test_a_saved_config_can_be_tested_resumed_and_trained_again(
    task: str, digit_scenes: Path, tmp_path: Path
) -> None:
    """The commands get nothing but the saved config, so that its paths and settings must be complete."""
    work_dir = tmp_path / 'run'
    config = Path(CONFIGS[task])
    length, unit = ('max_epochs', 'epoch') if task == 'finetune' else ('max_iters', 'iter')
    options = [
        f'train_cfg.{length}=1',
        'train_dataloader.batch_size=4',
        'default_hooks.checkpoint.interval=1',
        *(f'{name}_dataloader.num_workers=0' for name in ('train', 'val', 'test')),
        *(f'{name}_dataloader.persistent_workers=False' for name in ('train', 'val', 'test')),
    ]
    trained = run_tool(
        'tools/train.py',
        ROOT / 'configs' / config,
        *('--work-dir', work_dir, '--data-root', data_root_of(task, digit_scenes)),
        *('--cfg-options', *options),
    )
    assert trained.returncode == 0, trained.stderr[-2000:]
    saved, checkpoint = work_dir / config.name, work_dir / f'{unit}_1.pth'
    text = saved.read_text()

    tested = run_tool('tools/test.py', saved, checkpoint, '--work-dir', tmp_path / 'test')
    assert tested.returncode == 0, tested.stderr[-2000:]

    resumed = run_tool('tools/train.py', saved, '--resume', '--cfg-options', f'train_cfg.{length}=2')
    assert resumed.returncode == 0, resumed.stderr[-2000:]
    assert f'resume: from {checkpoint}' in resumed.stdout
    assert (work_dir / f'{unit}_2.pth').is_file()
    assert saved.read_text() == text.replace(f'{length}=1', f'{length}=2')

    again = run_tool('tools/train.py', saved, '--work-dir', tmp_path / 'again')
    assert again.returncode == 0, again.stderr[-2000:]
    assert 'resume: ' not in again.stdout
    assert (tmp_path / 'again' / f'{unit}_2.pth').is_file()
    assert again.stdout.count('NonFiniteLossHook') == resumed.stdout.count('NonFiniteLossHook')


def write(folder: Path, text: str) -> Path:
    path = folder / 'config.py'
    path.write_text("default_scope = 'mmpretrain'\n" + text)
    return path


@pytest.mark.parametrize(('old', 'new'), TYPE_ALIASES.items())
def test_old_types_are_replaced(old: str, new: str, tmp_path: Path) -> None:
    text = f"hooks = [dict(type='{old}', interval=3)]\nmodel = dict(type='M', head=dict(type='{old}'))\n"
    cfg = load_config(write(tmp_path, text))
    assert cfg.hooks[0] == {'type': new, 'interval': 3}
    assert cfg.model.head.type == new
    assert load_config(write(tmp_path, text), {'model.neck': {'type': old}}).model.neck.type == new


def test_old_keys_are_replaced_in_configs_and_options(tmp_path: Path) -> None:
    path = write(tmp_path, "bad_data = dict(max_skipped=3)\nown_data = 'image-folder'\n")
    cfg = load_config(path, {'bad_data.max_pixels': 5000})
    assert cfg.data_validation == {'max_skipped': 3, 'max_pixels': 5000}
    assert cfg.custom_data == 'image-folder'
    assert not KEY_ALIASES.keys() & cfg.keys()


def test_the_old_dataset_wrapper_and_hook_arguments_are_removed(tmp_path: Path) -> None:
    inner = "dict(type='CustomDataset', data_root='data')"
    wrapped = f"dict(type='InLineCheckedDataset', dataset={inner}, skipping=dict(limit=1))"
    cfg = load_config(
        write(
            tmp_path,
            f"train_dataloader = dict(dataset=dict(type='RepeatDataset', times=2, dataset={wrapped}))\n"
            f'val_dataloader = dict(dataset={wrapped})\n'
            "custom_hooks = [dict(type='inline.BadDataHook', folder='a', notes=[])]\n",
        )
    )
    expected = {'type': 'CustomDataset', 'data_root': 'data'}
    assert cfg.train_dataloader.dataset.dataset == cfg.val_dataloader.dataset == expected
    use_inline_components(cfg)
    assert cfg.custom_hooks == [{'type': 'inline.DataValidationHook'}]
    assert 'data_validation' not in cfg.default_hooks


def config(**settings: Any) -> Config:
    return Config({'default_scope': 'mmpretrain', **settings})


def test_components_of_mmengine_are_replaced_and_others_stay() -> None:
    hooks = [{'type': 'EMAHook'}, {'type': 'mmengine.CheckpointHook', 'interval': 3}]
    cfg = config(train_cfg={'by_epoch': True, 'max_epochs': 2}, custom_hooks=hooks)
    use_inline_components(cfg)
    assert cfg.train_cfg == {'type': 'inline.ResumableEpochTrainLoop', 'max_epochs': 2}
    assert cfg.default_hooks.checkpoint == {'type': 'inline.AtomicCheckpointHook', 'interval': 1}
    assert [hook.type for hook in cfg.custom_hooks] == ['EMAHook', 'inline.AtomicCheckpointHook']

    own = config(train_cfg={'type': 'MyLoop'}, default_hooks={'checkpoint': None})
    use_inline_components(own)
    assert own.train_cfg.type == 'MyLoop'
    assert own.default_hooks.checkpoint is None

    by_iteration = config(train_cfg={'type': 'IterBasedTrainLoop', 'max_iters': 2}, skip_nonfinite=4)
    use_inline_components(by_iteration)
    assert by_iteration.train_cfg.type == 'inline.ResumableIterTrainLoop'
    assert by_iteration.default_hooks.nonfinite_loss.skip == 4
