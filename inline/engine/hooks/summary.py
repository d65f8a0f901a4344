"""Summary of a run: model, data and settings before the first step, results after the last."""

import os
import shlex
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from mmengine.dist import get_world_size, is_main_process
from mmengine.hooks import CheckpointHook, Hook
from mmengine.optim import AmpOptimWrapper
from mmengine.runner import EpochBasedTrainLoop, Runner

from inline.datasets.validation.checks import FOLDER
from inline.datasets.validation.skip_unreadable import read_skipped
from inline.engine.hooks.data_validation import built_datasets
from inline.engine.terminal import FILE_ONLY, METRIC_INFO
from inline.openmmlab.backbones import LOAD_REPORTS
from inline.registry import HOOKS
from inline.utils.resources import ROOT

# The metric to report if the config does not choose one with `save_best`: the first of these that exists.
_METRICS = ('accuracy/top1', 'coco/bbox_mAP', 'mIoU')
_LOWER_IS_BETTER = ('loss', 'error')
_MAX_NAMES = 8


@HOOKS.register_module()
class SummaryHook(Hook):
    """Print model, data and settings before the first step; results and next commands after the last."""

    # After the metrics are recorded, before they are logged and before a missed validation is repeated.
    priority = 'HIGH'

    def before_train(self, runner: Runner) -> None:
        self._started = time.monotonic()
        self._first_step = runner.iter
        self._update_metric(runner, {})
        _print(runner, [f'training {_run_name(runner)}', *_rows(describe_training(runner))])

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        self._update_metric(runner, metrics or {})

    def after_run(self, runner: Runner) -> None:
        if hasattr(self, '_started'):
            seconds = timedelta(seconds=int(time.monotonic() - self._started))
            title = f'finished {_count(runner.iter - self._first_step, "step")} in {seconds}'
            commands = [f'  {line}' for line in next_commands(runner)]
            _print(runner, [title, *_rows(describe_results(runner)), 'next', *commands])

    def before_test(self, runner: Runner) -> None:
        data = _describe_dataset(runner.test_dataloader.dataset, 'test')
        rows = {'data': data, 'device': _describe_device(runner), 'log': shorten_path(_log_file(runner))}
        _print(runner, [f'testing {_run_name(runner)}', *_rows(rows)])

    def _update_metric(self, runner: Runner, metrics: dict[str, float]) -> None:
        found = read_metric(runner, metrics)
        text = '' if found is None else f'{found[0]}: {found[1]:.4g} (best {found[2]:.4g})'
        # Not with `update_info`, which would list the key in checkpoints: it is computed from the history.
        runner.message_hub.runtime_info[METRIC_INFO] = text


def describe_training(runner: Runner) -> dict[str, str]:
    """Describe model, data, starting weights, device, schedule and log, each in one line."""
    model = getattr(runner.model, 'module', runner.model)
    backbone = getattr(model, 'backbone', None)
    count = sum(parameter.numel() for parameter in model.parameters())
    parts = [type(model).__name__, *([] if backbone is None else [type(backbone).__name__])]
    data = _describe_dataset(runner.train_dataloader.dataset, 'training')
    if runner.val_loop is not None:
        images = sum(len(one) for one in built_datasets(runner.val_loop.dataloader.dataset))
        data += f', {images:,} validation images'
    config = Path(runner.work_dir, _config_name(runner))
    return {
        'model': f'{" with ".join(parts)}, {count / 1e6:,.2f} M parameters',
        'data': data,
        'weights': _describe_weights(runner),
        'device': _describe_device(runner),
        'schedule': _describe_schedule(runner),
        'config': shorten_path(config),
        'log': shorten_path(_log_file(runner)),
        'stop': 'Ctrl-C saves a checkpoint; --resume continues from it',
    }


def describe_results(runner: Runner) -> dict[str, str]:
    """Describe the best and the last checkpoint with their metrics, and the skipped images."""
    rows: dict[str, str] = {}
    metric, best = read_metric(runner, {}), _best_checkpoint(runner)
    if metric is not None:
        name, last, highest = metric
        where = (
            'not saved, set default_hooks.checkpoint.save_best=auto' if best is None else shorten_path(best)
        )
        rows['best'] = f'{name} {highest:.4g}: {where}'
        rows['last'] = f'{name} {last:.4g}'
    saved = runner.message_hub.runtime_info.get('last_ckpt')
    if saved is not None:
        rows['last'] = ': '.join(filter(None, [rows.get('last'), shorten_path(saved)]))
    folder = Path(runner.work_dir, FOLDER)
    skipped = read_skipped(folder)
    rows['skipped'] = (
        f'{_count(len(skipped), "image")}, listed in {shorten_path(folder)}' if skipped else 'no images'
    )
    return rows


def next_commands(runner: Runner) -> list[str]:
    """Return the commands that test, use and export the best checkpoint, or the last one."""
    checkpoint = _best_checkpoint(runner) or runner.message_hub.runtime_info.get('last_ckpt')
    if checkpoint is None or not os.path.isfile(checkpoint):
        return ['no checkpoint was saved']
    paths = [shorten_path(Path(runner.work_dir, _config_name(runner))), shorten_path(checkpoint)]
    out = shorten_path(Path(runner.work_dir, 'predictions'))
    return [
        format_command('test.py', *paths),
        format_command('predict.py', *paths, _example_image(runner) or 'IMAGE_OR_FOLDER', '--out', out),
        format_command('export.py', *paths),
    ]


def resume_command(argv: Sequence[str]) -> str:
    """Return the command that resumes the run started with `argv`, or what to change in it."""
    if '--launcher' in argv:
        return 'the same command with --resume'
    words = list(argv)
    if '--resume' in words:
        start = words.index('--resume')
        has_value = start + 1 < len(words) and not words[start + 1].startswith('-')
        del words[start : start + 1 + has_value]
    return shlex.join([*_program(words[0]), *words[1:], '--resume'])


def format_command(tool: str, *arguments: str) -> str:
    """Return a command for a shell in the current directory, in the form of the one that is running.

    Args:
        tool: File of ``tools/``, whose name is also that of a subcommand of ``inline``.
        arguments: Arguments of the tool.
    """
    if sys.argv[0].startswith('inline '):
        return shlex.join(['inline', tool.removesuffix('.py'), *arguments])
    # The folder as the user wrote it, in `python tools/train.py`.
    folder = Path(sys.argv[0]).parent
    if not (folder / tool).is_file():
        folder = ROOT / 'tools'
    return shlex.join(['python', shorten_path(folder / tool), *arguments])


def _program(word: str) -> list[str]:
    """Return the words that start the program of ``sys.argv[0]``: ``inline train`` or a Python script."""
    return word.split() if word.startswith('inline ') else ['python', word]


def shorten_path(path: str | Path) -> str:
    """Return a path relative to the current directory if it is below it, else the absolute path."""
    relative = os.path.relpath(path)
    return os.path.abspath(path) if relative.startswith('..') else relative


def read_metric(runner: Runner, metrics: dict[str, float]) -> tuple[str, float, float] | None:
    """Return name, last value and best value of the metric to report, None before the first validation.

    Args:
        runner: Its message hub has the metrics of all validations, including those before a resume.
        metrics: Metrics of the last validation, which the hub already contains; empty if unknown.
    """
    history = {
        key.removeprefix('val/'): buffer.data[0]
        for key, buffer in runner.message_hub.log_scalars.items()
        if key.startswith('val/') and len(buffer.data[0])
    }
    chosen = [key for hook in runner.hooks if isinstance(hook, CheckpointHook) for key in _indicators(hook)]
    names = [name for name in (*chosen, *_METRICS, *metrics) if name in history]
    if not names:
        return None
    values = [float(value) for value in history[names[0]]]
    best = min if any(word in names[0] for word in _LOWER_IS_BETTER) else max
    return names[0], values[-1], best(values)


def _indicators(hook: CheckpointHook) -> Sequence[str]:
    return getattr(hook, 'key_indicators', None) or () if hook.save_best else ()


def _best_checkpoint(runner: Runner) -> str | None:
    infos = runner.message_hub.runtime_info
    paths = [value for key, value in infos.items() if key.startswith('best_ckpt') and value]
    return next((path for path in paths if os.path.isfile(path)), None)


def _describe_dataset(dataset: Any, use: str) -> str:
    images = sum(len(one) for one in built_datasets(dataset))
    classes = tuple((getattr(dataset, 'metainfo', None) or {}).get('classes') or ())
    kinds = {type(one).__name__ for one in built_datasets(dataset)} or {type(dataset).__name__}
    text = f'{" and ".join(sorted(kinds))}: {images:,} {use} images'
    if classes:
        names = ', '.join(map(str, classes[:_MAX_NAMES])) + (', …' if len(classes) > _MAX_NAMES else '')
        text = f'{text}, {len(classes):,} classes ({names})'
    return text


def _describe_weights(runner: Runner) -> str:
    if runner._resume:
        return f'resumed from {shorten_path(runner._load_from)} after step {runner.iter:,}'
    reports = runner.message_hub.runtime_info.get(LOAD_REPORTS)
    return '; '.join(reports) if reports else 'random initialisation'


def _describe_device(runner: Runner) -> str:
    device = next(runner.model.parameters()).device
    name = torch.cuda.get_device_name(device) if device.type == 'cuda' else str(device)
    processes = get_world_size()
    parts = [name, '1 process' if processes == 1 else f'{processes} processes']
    model = getattr(runner.model, 'module', runner.model)
    autocast = getattr(getattr(model, 'backbone', None), 'autocast', None)
    if isinstance(runner.optim_wrapper, AmpOptimWrapper):
        parts.append('mixed precision')
    else:
        parts.append('float32' if autocast is None else f'{autocast} in the backbone')
    return ', '.join(parts)


def _describe_schedule(runner: Runner) -> str:
    loop, loader, cfg = runner.train_loop, runner.train_dataloader, runner.cfg
    length = _count(loop.max_iters, 'step')
    by_epoch = isinstance(loop, EpochBasedTrainLoop)
    if by_epoch:
        length = f'{_count(loop.max_epochs, "epoch")}, {length}'
    # A custom batch sampler hides the batch size of the loader.
    batch = (cfg.get('train_dataloader') or {}).get('batch_size') or loader.batch_size or 1
    total = f' ({batch * get_world_size()} in total)' if get_world_size() > 1 else ''
    parts = [f'{length} of {batch} images{total}', _count(loader.num_workers, 'data worker')]
    optimizer = getattr(runner.optim_wrapper, 'optimizer', None)
    if optimizer is not None:
        rate = max(group.get('initial_lr', group['lr']) for group in optimizer.param_groups)
        parts.append(f'{type(optimizer).__name__} with learning rate {rate:.3g}')
    if runner.val_loop is not None:
        unit = 'epoch' if by_epoch else 'step'
        every = unit if loop.val_interval == 1 else _count(loop.val_interval, unit)
        parts.append(f'validation every {every}')
    return ', '.join([*parts, f'seed {runner.seed}'])


def _example_image(runner: Runner) -> str | None:
    """Return the first image of the validation data, if it is a file."""
    loader = None if runner.val_loop is None else runner.val_loop.dataloader
    for dataset in built_datasets(getattr(loader, 'dataset', None)):
        path = dataset.get_data_info(0).get('img_path')
        if path is not None and os.path.isfile(path):
            return shorten_path(path)
    return None


def _run_name(runner: Runner) -> str:
    return Path(_config_name(runner)).stem


def _config_name(runner: Runner) -> str:
    """Return the name under which MMEngine saves the config in the work directory."""
    return os.path.basename(runner.cfg.filename) if runner.cfg.filename else f'{runner.timestamp}.py'


def _log_file(runner: Runner) -> Path:
    return Path(runner.log_dir, f'{runner.timestamp}.log')


def _count(number: int, noun: str) -> str:
    return f'{number:,} {noun}{"s" * (number != 1)}'


def _rows(rows: dict[str, str]) -> list[str]:
    return [f'  {name:<9} {text}' for name, text in rows.items()]


def _print(runner: Runner, lines: Sequence[str]) -> None:
    """Print lines without time and logger, and write them to the log file."""
    runner.logger.info('\n'.join(lines), extra=FILE_ONLY)
    if is_main_process():
        print(*lines, sep='\n', flush=True)
