"""Training and testing: from the flags of the command line to MMEngine's runner.

A training run passes through these files, in this order, before the first image is loaded:

1. ``tools/train.py``, or the command ``inline``, calls
2. ``commands/main.py``, which selects the subcommand.
3. ``commands/train.py`` parses the flags and applies the patches of third-party packages.
4. ``engine/launch.py``, this file: :func:`train` calls the steps below.
5. ``engine/config.py`` reads and checks the config, and replaces inherited loops, hooks and image loaders.
6. ``engine/distributed/setup.py`` adapts it to the hardware and joins the process group.
7. ``datasets/validation/checks.py`` checks the paths and annotations.
8. ``engine/resume.py`` chooses the checkpoint to start from.

MMEngine's runner then builds what the config names: our loops are in ``engine/loops.py``, our hooks in
``engine/hooks/``. A config with ``custom_data`` is completed by ``datasets/custom/``. Flags such as
``--img-size`` and ``--epochs`` are mapped to keys by ``engine/shorthands.py`` and ``engine/schedule.py``.
Three files only act when something goes wrong: ``engine/work_dir_lock.py`` refuses a second run in the work
directory, ``datasets/read_watch.py`` reports a read that hangs, and ``engine/hooks/full_disk.py`` handles a
full disk.
"""

import argparse
import gc
import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config, ConfigDict
from mmengine.model import BaseModel, BaseTTAModel, revert_sync_batchnorm
from mmengine.registry import MODELS, RUNNERS, DefaultScope
from mmengine.runner import Runner
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from inline.checkpoints import (
    Checkpoint,
    check_checkpoint,
    check_num_heads,
    load_complete_state_dict,
    read_checkpoint,
    trust_checkpoints,
)
from inline.datasets.custom import fit_to_custom_data
from inline.datasets.custom.layouts import other_classes_error
from inline.datasets.read_watch import watch_reads
from inline.datasets.validation.checks import CheckCache, check_paths, validate_datasets
from inline.engine.config import (
    backbone_config,
    check_config,
    check_phases,
    load_config,
    set_data_root,
    use_inline_components,
    use_student,
)
from inline.engine.distributed.setup import adapt_to_hardware, join_process_group, leave_process_group
from inline.engine.hooks.full_disk import handle_full_disk
from inline.engine.resume import check_resumable, choose_start
from inline.engine.schedule import set_epochs
from inline.engine.shorthands import apply_shorthands
from inline.engine.terminal import FILE_ONLY, terminal_log
from inline.engine.work_dir_lock import lock_work_dir
from inline.openmmlab.patches import (
    apply_training_patches,
    provide_wandb_join,
    silence_pycocotools,
)
from inline.utils.arguments import check_names
from inline.utils.atomic import check_links, make_folder
from inline.utils.errors import UserError
from inline.utils.nested import walk_dicts
from inline.utils.processes import keep_freed_memory

# MMEngine's visualization backends, by the package that each needs.
LOGGERS = {'wandb': 'WandbVisBackend', 'mlflow': 'MLflowVisBackend'}
# Arguments of torch.compile that the key compile may set.
COMPILE_OPTIONS = ('fullgraph', 'dynamic', 'backend', 'mode', 'options', 'disable')
# Short enough for MLflow's limit on parameters. The complete config is logged as text as well.
_MLFLOW_KEYS = ('optim_wrapper', 'train_cfg', 'randomness')


def train(args: argparse.Namespace) -> None:
    """Train the model of ``args.config``, from the beginning or from a checkpoint."""
    with trust_checkpoints(args.trust_checkpoint):
        cfg = read_config(args)
        resume = apply_training_flags(cfg, args)
        check_phases(cfg, 'train')
        check_paths(cfg, ('train_dataloader', 'val_dataloader'))
        with handle_full_disk(cfg.work_dir) as disk:
            prepare_run(cfg)
            with lock_work_dir(cfg), watch_reads(cfg):
                notes = validate_datasets(cfg, ('train_dataloader', 'val_dataloader'))
                if args.epochs is not None:
                    set_epochs(cfg, args.epochs)
                checkpoint = choose_start(cfg, resume)
                exclude_imports_from_garbage()
                if not torch.cuda.is_available():
                    keep_freed_memory()
                with terminal_log(args.verbose):
                    runner = create_runner(cfg)
                disk.protect(runner.visualizer)
                for note in notes:
                    runner.logger.warning(note, extra=FILE_ONLY)
                # Set here, not in the config: the saved config describes the run, not the checkpoint it was
                # resumed from.
                if checkpoint is not None:
                    runner._load_from, runner._resume = checkpoint, True
                runner.train()
                leave_process_group()


def test(args: argparse.Namespace) -> None:
    """Evaluate ``args.checkpoint`` with the test data and evaluators of ``args.config``."""
    with trust_checkpoints(args.trust_checkpoint):
        read = cache(lambda: read_checkpoint(args.checkpoint))
        cfg = read_config(args, lambda: read().dataset_meta.get('classes') or ())
        check_phases(cfg, 'test')
        check_checkpoint(args.checkpoint)
        # The checkpoint is loaded below, and must have all weights.
        cfg.load_from, cfg.resume = None, False
        use_student(cfg)
        drop_pretrained(cfg.model)
        if args.tta:
            use_tta(cfg)
        if args.out is not None:
            save_predictions(cfg, args.out)
        if args.show_dir is not None:
            draw_predictions(cfg, args.show_dir)
        check_paths(cfg, ('test_dataloader',))
        prepare_run(cfg)
        validate_datasets(cfg, ('test_dataloader',))
        exclude_imports_from_garbage()
        with terminal_log(args.verbose, with_tables=True):
            runner = create_runner(cfg)
        checkpoint = read()
        if not args.allow_other_classes:
            check_classes(checkpoint, runner.test_loop.dataloader.dataset.metainfo)
        model = _unwrap(runner.model)
        check_num_heads(model, checkpoint.meta, checkpoint.source)
        load_complete_state_dict(model, checkpoint.state_dict, checkpoint.source)
        with watch_reads(cfg):
            runner.test()
        leave_process_group()


def exclude_imports_from_garbage() -> None:
    """Exclude the objects of imported modules from garbage collection, once per process.

    There are more than a million. MMEngine collects garbage whenever it builds a dataset, and data workers
    copy every memory page that is visited.
    """
    if gc.get_freeze_count() == 0:
        gc.freeze()


def read_config(args: argparse.Namespace, model_classes: Callable[[], Sequence[str]] | None = None) -> Config:
    """Read the config, apply the flags that training and testing share, and check it.

    Args:
        args: Flags of the tool.
        model_classes: Returns the class names of the checkpoint to test; None to train.
    """
    os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    apply_training_patches()
    cfg = load_config(args.config, args.cfg_options)
    cfg.launcher = args.launcher
    if cfg.default_scope == 'mmdet':
        silence_pycocotools()
    if args.data_root:
        set_data_root(cfg, args.data_root)
    apply_custom_data_flags(cfg, args)
    apply_shorthands(cfg, args)
    check_config(cfg)
    if args.work_dir is not None:
        cfg.work_dir = args.work_dir
    elif cfg.get('work_dir') is None:
        cfg.work_dir = str(Path('work_dirs') / Path(cfg.filename).stem)
    if 'custom_data' in cfg:
        fit_to_custom_data(
            cfg,
            CheckCache.of_run(cfg),
            phase='train' if model_classes is None else 'test',
            needs_val=not getattr(args, 'no_validate', False),
            model_classes=model_classes() if model_classes is not None else (),
            allow_other_classes=getattr(args, 'allow_other_classes', False),
        )
    add_loggers(cfg)
    use_inline_components(cfg)
    return cfg


def apply_custom_data_flags(cfg: Config, args: argparse.Namespace) -> None:
    """Apply ``--val-split`` and ``--ignore-label``."""
    labels = getattr(args, 'ignore_label', None)
    if labels is not None:
        labels = [int(label) if label.isdecimal() else label for label in labels]
    for key, flag, value in (
        ('val_split', '--val-split', getattr(args, 'val_split', None)),
        ('ignore_label', '--ignore-label', labels),
    ):
        if value is not None:
            if 'custom_data' not in cfg:
                raise UserError(f'{flag} is for your own data: the config must have custom_data')
            cfg[key] = value


def check_classes(checkpoint: Checkpoint, metainfo: Mapping[str, Any]) -> None:
    """Raise a :class:`UserError` if a checkpoint was trained on other classes than those of a dataset."""
    trained, found = (
        tuple(str(name) for name in meta.get('classes') or ()) for meta in (checkpoint.dataset_meta, metainfo)
    )
    if trained and found and trained != found:
        raise other_classes_error(trained, found)


def apply_training_flags(cfg: Config, args: argparse.Namespace) -> str | None:
    """Apply the flags of tools/train.py; return the checkpoint to resume from, 'auto', or None."""
    if args.no_validate:
        cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None
    if args.amp:
        use_amp(cfg)
    if args.auto_scale_lr:
        scale_lr(cfg)
    resume: str | None = args.resume
    if cfg.get('resume'):
        # In MMEngine, `load_from` is then the checkpoint to resume from.
        resume = resume or cfg.get('load_from') or 'auto'
        cfg.load_from, cfg.resume = None, False
    if resume is not None and resume != 'auto':
        check_resumable(resume)
    if args.pretrained == 'none':
        drop_pretrained(cfg.model)
        cfg.load_from = None
    elif args.pretrained is not None:
        backbone_config(cfg).init_cfg = ConfigDict(
            type='Pretrained', checkpoint=args.pretrained, prefix='backbone.'
        )
        cfg.load_from = None
    return resume


def prepare_run(cfg: Config) -> None:
    """Create the work directory, adapt the config to the hardware, and join the process group, if any."""
    check_links(make_folder('--work-dir', Path(cfg.work_dir)))
    adapt_to_hardware(cfg)
    join_process_group(cfg)


def create_runner(cfg: Config) -> Runner:
    """Create the runner of a config after :func:`prepare_run`. It saves the config in the work directory."""
    compile_backbone(cfg)
    return RUNNERS.build(cfg) if 'runner_type' in cfg else Runner.from_cfg(cfg)


def compile_backbone(cfg: Config) -> None:
    """Replace the key ``compile`` by :class:`CompileBackboneHook`: only the backbone is compiled.

    Necks, heads and losses of detectors have shapes that depend on the data, and inductor fails on Mixup.
    The images of detectors differ in size from batch to batch, so their sizes are dynamic by default.
    """
    options = cfg.pop('compile', None)
    if not options:
        return
    options = {} if options is True else dict(options)
    check_names(options, COMPILE_OPTIONS, 'option', 'compile')
    dynamic = True if cfg.get('default_scope') == 'mmdet' else None
    hook = ConfigDict(type='inline.CompileBackboneHook', **{'dynamic': dynamic, **options})
    cfg.custom_hooks = [*(cfg.get('custom_hooks') or ()), hook]


def build_runner(cfg: Config) -> Runner:
    """Call :func:`prepare_run` and :func:`create_runner`."""
    prepare_run(cfg)
    return create_runner(cfg)


def use_amp(cfg: Config) -> None:
    """Enable mixed precision in bfloat16, or in float16 on a GPU that does not support bfloat16.

    Only the backbone uses bfloat16 on a CPU and in detectors: operators of mmcv such as RoIAlign have no
    kernels for it. Elsewhere on a GPU it is MMEngine's mixed precision.
    """
    backbone, has_gpu = backbone_config(cfg), torch.cuda.is_available()
    is_ours = str(backbone.type).startswith('inline.')
    if not has_gpu and not is_ours:
        raise UserError(f'--amp without a GPU needs one of our backbones: the config has {backbone.type!r}')
    in_bfloat16 = not has_gpu or torch.cuda.is_bf16_supported(including_emulation=False)
    is_detector = cfg.get('default_scope') == 'mmdet'
    if in_bfloat16 and is_ours and (is_detector or not has_gpu):
        backbone.autocast = 'bfloat16'
        return
    wrapper = cfg.optim_wrapper
    wrapper.type = 'AmpOptimWrapper'
    wrapper.setdefault('dtype', 'bfloat16' if in_bfloat16 and not is_detector else 'float16')
    # bfloat16 has the range of float32, so gradients need no scaling. The scaler still skips infinite ones.
    wrapper.setdefault('loss_scale', 1.0 if wrapper.dtype == 'bfloat16' else 'dynamic')


def scale_lr(cfg: Config) -> None:
    """Scale the learning rate with the total batch size, relative to ``auto_scale_lr.base_batch_size``."""
    if not (cfg.get('auto_scale_lr') or {}).get('base_batch_size'):
        raise UserError('--auto-scale-lr needs auto_scale_lr.base_batch_size in the config')
    cfg.auto_scale_lr.enable = True


def drop_pretrained(model: ConfigDict) -> None:
    """Remove pretrained weights from every ``init_cfg`` of a model config, in place; not from a teacher's."""
    for _, node in walk_dicts(model.get('student', model)):
        init_cfg = node.get('init_cfg')
        if isinstance(init_cfg, dict) and init_cfg.get('type') == 'Pretrained':
            node['init_cfg'] = None
        elif isinstance(init_cfg, list | tuple):
            node['init_cfg'] = [item for item in init_cfg if item.get('type') != 'Pretrained']


def build_untrained_model(cfg: Config) -> BaseModel:
    """Build the model of a config in one process, with initial weights and without reading a file."""
    drop_pretrained(cfg.model)
    cfg.model.pop('pretrained', None)
    if cfg.get('data_preprocessor') is not None:
        cfg.model.setdefault('data_preprocessor', cfg.data_preprocessor)
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        # Synchronized batch norm needs a process group.
        return revert_sync_batchnorm(MODELS.build(cfg.model))


def use_tta(cfg: Config) -> None:
    """Test every image at several scales and flipped, with the toolbox's wrapper of the model."""
    if cfg.get('tta_pipeline') is None or cfg.get('tta_model') is None:
        raise UserError('--tta needs tta_pipeline and tta_model in the config: those for ADE20K have them')
    cfg.test_dataloader.dataset.pipeline = cfg.tta_pipeline
    cfg.model = ConfigDict(**cfg.tta_model, module=cfg.model)


def save_predictions(cfg: Config, path: str) -> None:
    """Let testing write all predictions to a pickle file."""
    if Path(path).suffix not in ('.pkl', '.pickle'):
        raise UserError(f'--out {path!r}: predictions are written as a pickle, the name must end in .pkl')
    # mmdet's metric stores masks run-length encoded instead of as dense tensors.
    metric = 'DumpDetResults' if cfg.default_scope == 'mmdet' else 'DumpResults'
    evaluator = cfg.test_evaluator
    cfg.test_evaluator = [
        *(evaluator if isinstance(evaluator, list) else [evaluator]),
        ConfigDict(type=metric, out_file_path=path),
    ]


def draw_predictions(cfg: Config, folder: str) -> None:
    """Enable the toolbox's hook that draws the prediction of every test image."""
    # mmdet would create a relative folder in the work directory.
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


def add_loggers(cfg: Config) -> None:
    """Add the backends in ``loggers``, such as ``loggers = ['wandb', 'mlflow']``, to the visualizer.

    Raises:
        UserError: A logger is unknown, or its package is not installed.
    """
    names = cfg.get('loggers') or []
    names = [names] if isinstance(names, str) else list(names)
    backends = (cfg.get('visualizer') or {}).get('vis_backends') or []
    for name in names:
        if name not in LOGGERS:
            raise UserError(f'unknown logger {name!r}: choose one of {", ".join(LOGGERS)}')
        if LOGGERS[name] not in [backend.get('type') for backend in backends]:
            backends = [*backends, {'type': LOGGERS[name], **_logger_options(name, cfg)}]
    for package, backend in LOGGERS.items():
        if backend in [one.get('type') for one in backends]:
            _import_logger(package)
    if names:
        cfg.visualizer.vis_backends = backends


def _logger_options(name: str, cfg: Config) -> dict[str, Any]:
    run = Path(cfg.work_dir).name
    if name == 'wandb':
        return {'init_kwargs': {'project': 'inline', 'name': run}}
    keys = [key for key in _MLFLOW_KEYS if key in cfg]
    options = {'exp_name': 'inline', 'run_name': run, 'tracked_config_keys': keys}
    # MMEngine ignores the environment variable and writes to the work directory by default.
    address = os.environ.get('MLFLOW_TRACKING_URI')
    return {**options, 'tracking_uri': address} if address else options


def _import_logger(package: str) -> None:
    try:
        importlib.import_module(package)
    except ImportError as error:
        raise UserError(
            f'logger {package!r} needs the package {package}: pip install {package}, '
            'or remove it from the config'
        ) from error
    if package == 'wandb':
        provide_wandb_join()


def _unwrap(model: nn.Module) -> nn.Module:
    """Return the model inside the wrappers for several processes and for test-time augmentation."""
    while isinstance(model, DistributedDataParallel | BaseTTAModel):
        model = model.module
    return model
