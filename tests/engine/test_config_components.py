"""Typical mistakes in configs, each reported in one line before anything is built."""

from pathlib import Path
from typing import Any

import pytest
from mmengine.config import Config

from inline.engine.config import check_config, load_config
from inline.engine.config_components import check_components
from inline.utils.errors import UserError
from tests.conftest import ROOT

CLASSIFIER = ROOT / 'configs' / 'digits_quick' / 'inline-pvt-nano_digits.py'

MISTAKES: dict[str, Any] = {
    'optim_wrapper.optimizer.type=AdamWW': r"unknown optimizer 'AdamWW': choose .*did you mean 'AdamW'",
    'optim_wrapper.optimizer.lr=fast': r"optim_wrapper\.optimizer\.lr 'fast': must be a number$",
    'optim_wrapper.optimizer.lr=-1': r'lr -1: must be a number, at least 0$',
    'optim_wrapper.optimizer.lr=nan': 'lr nan: must be a number, at least 0$',
    'optim_wrapper.optimizer.weightdecay=0.1': r"unknown key 'weightdecay' .*did you mean 'weight_decay'",
    'optim_wrapper.optimizer.betas=0.9': r'betas 0\.9: must be a list of numbers$',
    'optim_wrapper.type=AmpOptimWraper': r"unknown optim_wrapper 'AmpOptimWraper'.*'AmpOptimWrapper'",
    'optim_wrapper.dtype=fp16': r"unknown key 'dtype' of OptimWrapper",
    'optim_wrapper.clip_grad=1.0': r'clip_grad 1\.0: must be a dict or None$',
    'optim_wrapper.clip_grad.max_norm=big': r"max_norm 'big': must be a number$",
    'optim_wrapper.accumulative_counts=0': r'accumulative_counts 0: must be from 1 to',
    'optim_wrapper.constructor=LayerDecay': r"unknown optimizer wrapper constructor 'LayerDecay'",
    'train_cfg.max_iter=5': r"unknown argument 'max_iter' .*did you mean 'max_iters'",
    'train_cfg.max_iters=0': r'train_cfg\.max_iters 0: must be from 1 to',
    'train_cfg.type=IterLoop': r"unknown loop 'IterLoop': choose one of .*inline\.ResumableIterTrainLoop",
    'val_cfg.fp_16=True': r"unknown key 'fp_16' of ValLoop in val_cfg: it takes fp16 \(did you mean 'fp16'",
    'default_hooks.logger._scope_=True': r'default_hooks.logger._scope_ True: must be ',
    'default_hooks.logger.type=LoggerHok': r"unknown hook 'LoggerHok': .*did you mean 'LoggerHook'",
    'default_hooks.logger.intervall=5': r"unknown key 'intervall' of LoggerHook .*did you mean 'interval'",
    'default_hooks.logger.interval=0': r'default_hooks\.logger\.interval 0: must be at least 1$',
    'default_hooks.checkpoint.intervall=5': r"unknown argument 'intervall' .*did you mean 'interval'",
    'param_scheduler.1.type=CosineAnealingLR': r"unknown parameter scheduler .*'CosineAnnealingLR'",
    'param_scheduler.1.T_maxx=5': r"unknown key 'T_maxx' of CosineAnnealingLR .*did you mean 'T_max'",
    'param_scheduler.0.end=0': r'param_scheduler\.0\.end 0: must be greater than begin, which is 0$',
    'param_scheduler.0.end=soon': r"end 'soon' of LinearLR in param_scheduler\.0: must be an integer$",
    'train_dataloader.batch_size=-2': r'train_dataloader\.batch_size -2: must be from 1',
    'train_dataloader.sampler.type=RandomSampler': r"unknown data sampler 'RandomSampler': .*DefaultSampler",
    'train_dataloader.sampler.shufle=True': r"unknown key 'shufle' of InfiniteSampler .*'shuffle'",
    'train_dataloader.sampler.shuffle=maybe': r"shuffle 'maybe' of InfiniteSampler .*must be True or False$",
    'train_dataloader.dataset.type=CustomDataSet': r"unknown dataset 'CustomDataSet'.*'CustomDataset'",
    'train_dataloader.dataset.piplines=3': r"unknown key 'piplines' of CustomDataset .*'pipeline'",
    'train_dataloader.dataset.pipeline.1.type=RandomResizeCrop': r"unknown transform .*'RandomResizedCrop'",
    'train_dataloader.dataset.pipeline.1.scal=3': r"unknown key 'scal' of RandomResizedCrop .*'scale'",
    'val_evaluator.type=Acuracy': r"unknown metric 'Acuracy': .*did you mean 'Accuracy'",
    'val_evaluator.topk=best': r"topk 'best' of Accuracy in val_evaluator: must be an integer or a list",
    'visualizer.vis_backends=tensorboard': r"vis_backends 'tensorboard': must be a list of dicts or None$",
    'runner_type=ShardRunner': r"unknown runner 'ShardRunner': .*did you mean 'inline.ShardedRunner'",
    'log_level=LOUD': r"log_level 'LOUD': must be one of DEBUG, INFO, WARNING, ERROR$",
}  # fmt: skip


@pytest.fixture(scope='module')
def classifier() -> Config:
    return load_config(CLASSIFIER)


def parse(value: str) -> Any:
    try:
        return float(value) if '.' in value or value == 'nan' else int(value)
    except ValueError:
        return value == 'True' or value


@pytest.mark.parametrize('mistake', MISTAKES)
def test_a_mistake_is_reported_in_one_line(mistake: str, classifier: Config) -> None:
    key, _, value = mistake.partition('=')
    cfg = Config(classifier._cfg_dict.to_dict())
    cfg.merge_from_dict({key: parse(value)})
    with pytest.raises(UserError, match=MISTAKES[mistake]) as raised:
        check_config(cfg)
    assert '\n' not in str(raised.value)


def test_precision_of_mixed_precision_is_checked(classifier: Config) -> None:
    cfg = Config(classifier._cfg_dict.to_dict())
    cfg.optim_wrapper.update(type='AmpOptimWrapper', dtype='bfloat16')
    check_components(cfg)
    cfg.optim_wrapper.dtype = 'fp16'
    with pytest.raises(UserError, match=r"^optim_wrapper\.dtype 'fp16': choose one of float16, bfloat16"):
        check_components(cfg)


@pytest.mark.parametrize(
    ('scope', 'path'),
    [
        ('mmdet', 'yolox/yolox_s_8xb8-300e_coco.py'),
        ('mmdet', 'lvis/mask-rcnn_r50_fpn_sample1e-3_ms-1x_lvis-v1.py'),
        ('mmpretrain', 'swin_transformer/swin-tiny_16xb64_in1k.py'),
        ('mmseg', 'deeplabv3plus/deeplabv3plus_r50-d8_4xb2-40k_cityscapes-512x1024.py'),
    ],
)
def test_configs_of_the_toolboxes_pass(scope: str, path: str) -> None:
    """Wrapped datasets, hooks with schedules, many transforms."""
    package = __import__(scope)
    cfg = Config.fromfile(Path(package.__file__).parent / '.mim' / 'configs' / path)
    check_components(cfg)
    loader = cfg.train_dataloader
    loader.sampler.shufle = True
    with pytest.raises(UserError, match="unknown key 'shufle'"):
        check_components(cfg)
