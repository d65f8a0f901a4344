"""From a config and the command line's flags to a run, the same way for all three toolboxes."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path

import torch
from mmengine.config import Config, ConfigDict
from mmengine.model import BaseTTAModel
from mmengine.registry import RUNNERS
from mmengine.runner import Runner
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from inline.engine.bad_data import guard_data
from inline.engine.check_config import check_config, check_phases
from inline.engine.config import (
    check_checkpoint,
    check_paths,
    check_resumable,
    load_config,
    set_data_root,
    walk_dicts,
)
from inline.engine.distributed import adapt_to_hardware
from inline.engine.finetune import fit_to_own_data
from inline.engine.full_disk import watch_for_full_disk
from inline.engine.loggers import add_loggers
from inline.engine.nonfinite import NonFiniteLossHook
from inline.engine.preemption import PreemptionHook, choose_start
from inline.engine.pretrained import check_whole
from inline.engine.resume import make_resumable
from inline.engine.safe_loading import install as install_safe_loading
from inline.engine.safe_loading import trusting
from inline.errors import UserError
from inline.whole_files import make_folder


def read_config(args: argparse.Namespace) -> Config:
    """The config with the common flags applied."""
    os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    install_safe_loading()
    cfg = load_config(args.config, args.cfg_options)
    cfg.launcher = args.launcher
    if args.data_root:
        set_data_root(cfg, args.data_root)
    check_config(cfg)
    fit_to_own_data(cfg)
    if args.work_dir is not None:
        cfg.work_dir = args.work_dir
    elif cfg.get('work_dir') is None:
        cfg.work_dir = str(Path('work_dirs') / Path(args.config).stem)
    add_loggers(cfg)
    return cfg


def train(args: argparse.Namespace) -> None:
    with trusting(args.trust_checkpoint):
        _train(args)


def _train(args: argparse.Namespace) -> None:
    cfg = read_config(args)
    if args.no_validate:
        cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None
    check_phases(cfg, 'train')
    if args.pretrained is not None:
        cfg.model.backbone.init_cfg = ConfigDict(
            type='Pretrained', checkpoint=args.pretrained, prefix='backbone.'
        )
        cfg.load_from = None
    if args.amp:
        use_amp(cfg)
    if args.auto_scale_lr:
        scale_lr(cfg)
    resume = args.resume or (cfg.get('resume') and (cfg.get('load_from') or 'auto')) or None
    if resume is not None and resume != 'auto':
        check_resumable(resume)
        cfg.load_from = resume
    check_paths(cfg, ('train_dataloader', 'val_dataloader'))
    guard_data(cfg, ('train_dataloader', 'val_dataloader'))
    make_resumable(cfg)
    watch = NonFiniteLossHook(cfg.get('skip_nonfinite', 0))
    with watch_for_full_disk(cfg.work_dir) as disk:
        runner = build_runner(cfg, lambda cfg: choose_start(cfg, resume))
        disk.spare(runner.visualizer)
        runner.register_hook(watch)
        runner.register_hook(PreemptionHook(), priority='LOWEST')
        runner.train()


def test(args: argparse.Namespace) -> None:
    with trusting(args.trust_checkpoint):
        _test(args)


def _test(args: argparse.Namespace) -> None:
    cfg = read_config(args)
    check_phases(cfg, 'test')
    check_checkpoint(args.checkpoint)
    cfg.load_from = args.checkpoint
    # The checkpoint holds all weights: those to start training from need not be here.
    drop_pretrained(cfg.model)
    if args.tta:
        use_tta(cfg)
    if args.out is not None:
        keep_predictions(cfg, args.out)
    if args.show_dir is not None:
        draw_predictions(cfg, args.show_dir)
    check_paths(cfg, ('test_dataloader',))
    guard_data(cfg, ('test_dataloader',))
    runner = build_runner(cfg)
    check_whole(_unwrap(runner.model), args.checkpoint)
    runner.test()


def build_runner(cfg: Config, choose: Callable[[Config], None] | None = None) -> Runner:
    """The run of a config. `choose` sets what it goes on from, when folder and processes are there."""
    make_folder('--work-dir', Path(cfg.work_dir))
    adapt_to_hardware(cfg)
    if choose is not None:
        choose(cfg)
    if cfg.get('compile') and cfg.default_scope == 'mmpretrain':
        leave_mixing_uncompiled()
    return RUNNERS.build(cfg) if 'runner_type' in cfg else Runner.from_cfg(cfg)


def leave_mixing_uncompiled() -> None:
    """Let Mixup and CutMix run as they are: torch's compiler fails on the random order that they draw."""
    from mmpretrain.models.utils.batch_augments import RandomBatchAugment

    RandomBatchAugment.__call__ = torch.compiler.disable(RandomBatchAugment.__call__)


def _unwrap(model: nn.Module) -> nn.Module:
    """The model inside the wrappers for several processes and for several versions of an image."""
    while isinstance(model, DistributedDataParallel | BaseTTAModel):
        model = model.module
    return model


def use_amp(cfg: Config) -> None:
    """Mixed precision: MMEngine's on a GPU, bfloat16 inside the backbone on a CPU."""
    if torch.cuda.is_available():
        cfg.optim_wrapper.type = 'AmpOptimWrapper'
        cfg.optim_wrapper.setdefault('loss_scale', 'dynamic')
        return
    backbone = cfg.model.backbone
    if not str(backbone.type).startswith('inline.'):
        raise UserError(f'--amp without a GPU needs one of our backbones: the config has {backbone.type!r}')
    backbone.autocast = 'bfloat16'


def scale_lr(cfg: Config) -> None:
    """Learning rate in proportion to the batch, from the batch size that the config was written for."""
    if not (cfg.get('auto_scale_lr') or {}).get('base_batch_size'):
        raise UserError('--auto-scale-lr needs auto_scale_lr.base_batch_size in the config')
    cfg.auto_scale_lr.enable = True


def drop_pretrained(model: ConfigDict) -> None:
    """Forget the weights that training would start from, wherever the model names them."""
    for _, part in walk_dicts(model):
        init_cfg = part.get('init_cfg')
        if isinstance(init_cfg, dict) and init_cfg.get('type') == 'Pretrained':
            part['init_cfg'] = None


def use_tta(cfg: Config) -> None:
    """Let the toolbox's wrapper merge the predictions for several versions of each image."""
    if cfg.get('tta_pipeline') is None or cfg.get('tta_model') is None:
        raise UserError('--tta needs tta_pipeline and tta_model in the config: those for ADE20K have them')
    cfg.test_dataloader.dataset.pipeline = cfg.tta_pipeline
    cfg.model = ConfigDict(**cfg.tta_model, module=cfg.model)


def keep_predictions(cfg: Config, path: str) -> None:
    """Let testing write all predictions to a file."""
    if Path(path).suffix not in ('.pkl', '.pickle'):
        raise UserError(f'--out {path!r}: predictions are written as a pickle, to a name that ends in .pkl')
    # mmdet's own version stores masks run-length encoded, not as dense tensors.
    kind = 'DumpDetResults' if cfg.default_scope == 'mmdet' else 'DumpResults'
    evaluator = cfg.test_evaluator
    cfg.test_evaluator = [
        *(evaluator if isinstance(evaluator, list) else [evaluator]),
        ConfigDict(type=kind, out_file_path=path),
    ]


def draw_predictions(cfg: Config, folder: str) -> None:
    """Switch on the toolbox's own hook that draws each tested image with its prediction."""
    # mmdet would put a relative folder below the work directory.
    folder = str(Path(folder).resolve())
    hook = cfg.default_hooks.setdefault('visualization', ConfigDict(type='VisualizationHook'))
    if cfg.default_scope == 'mmpretrain':
        hook.update(enable=True, interval=1, out_dir=folder)
        return
    hook.update(draw=True, interval=1)
    if cfg.default_scope == 'mmdet':
        hook.update(test_out_dir=folder)
    else:
        cfg.visualizer.save_dir = folder
