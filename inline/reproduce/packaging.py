"""Packaged weights: a small file and a model card from a training checkpoint."""

import hashlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config

from inline.apis.export.verification import evaluate
from inline.apis.loading import build_model
from inline.checkpoints import Checkpoint, compare_state_dict, read_checkpoint
from inline.checkpoints.config_text import read_dict
from inline.checkpoints.model_card import PublishedModelCard, count_attention
from inline.checkpoints.pretrained_cfg import META_KEY
from inline.checkpoints.safetensors_format import write_checkpoint
from inline.checkpoints.sources import PACKAGED_FOLDER
from inline.checkpoints.state_dict import StateDict
from inline.engine.config import backbone_config, set_data_root
from inline.hub.backbones import create_backbone
from inline.hub.publish import EMA, LAST_STEP, check_finite, clean_meta
from inline.utils.atomic import atomic_file
from inline.utils.environment import describe_environment
from inline.utils.errors import UserError

# Half precision is kept if no metric falls by more than this, in percentage points.
TOLERANCE = 0.05
TERMS = (
    'data: Tiny-ImageNet, 100,000 training photographs of 64×64 pixels in 200 classes of ImageNet. The terms '
    'of ImageNet apply to it: research and education, not for commercial use'
)


@dataclass(frozen=True)
class PackagingOptions:
    """Settings that cannot be read from the checkpoint.

    Args:
        name: Name of the model, for example inline_pvt_micro. It is the name of the files.
        config: Path of the training config in the repository, for the card.
        data_root: The validation data; None for that of the config.
        commit: Commit used for training; None for the current one.
        hours: Duration of training; None to sum the step times logged in the checkpoint.
        after: Path, for the card, and config of the runs before it, the last one first: each started from the
            result of the next.
        folder: Where the files are written.
    """

    name: str
    config: str
    data_root: Path | None = None
    commit: str | None = None
    hours: float | None = None
    after: tuple[tuple[str, Config], ...] = ()
    folder: Path = PACKAGED_FOLDER


def package(source: str | Path, cfg: Config, options: PackagingOptions) -> Iterator[str]:
    """Write NAME.safetensors and NAME.md, and yield progress messages.

    The weights are stored in half precision if that does not lower the config's metrics, else in single
    precision. The card states the result of the file that is written.
    """
    checkpoint = read_checkpoint(source)
    check_finite(checkpoint)
    training = _describe_training(checkpoint, options)
    model = _check_weights(options.name, checkpoint)
    meta = _packaged_meta(options.name, checkpoint)
    if options.data_root is not None:
        set_data_root(cfg, options.data_root)
    # Training may use bfloat16; the card states the accuracy in float32.
    backbone_config(cfg).pop('autocast', None)
    weights = checkpoint.state_dict
    full = _evaluate(cfg, weights, meta)
    yield f'single precision: {_describe(full)}'
    half = {name: value.half() for name, value in weights.items()}
    measured, precision = _evaluate(cfg, half, meta), 'half'
    yield f'half precision: {_describe(measured)}'
    if any(measured[key] < full[key] - TOLERANCE for key in full):
        measured, precision = full, 'single'
    file = options.folder / f'{options.name}.safetensors'
    options.folder.mkdir(parents=True, exist_ok=True)
    write_checkpoint({'state_dict': half if precision == 'half' else weights, 'meta': meta}, file)
    card = PublishedModelCard(
        name=options.name,
        config=options.config,
        file=file.name,
        digest=hashlib.sha256(file.read_bytes()).hexdigest(),
        parameters=sum(value.numel() for value in half.values()),
        weights=f'{EMA if checkpoint.is_ema else LAST_STEP}, stored in {precision} precision',
        meta=meta,
        metafile_entry=None,
        is_backbone=False,
        attention=count_attention(model),
        license_id='other',
        training=training,
        measured={key: f'{value:.2f}' for key, value in measured.items()},
        packaged=True,
    )
    with atomic_file(file.with_suffix('.md')) as temporary:
        Path(temporary).write_text(card.render())
    yield f'wrote {file} ({file.stat().st_size / 1e6:.2f} MB) and {file.with_suffix(".md")}'


def _check_weights(name: str, checkpoint: Checkpoint) -> torch.nn.Module:
    """Build the model on the meta device; raise if the weights are not exactly its own."""
    bias = checkpoint.state_dict.get('head.fc.bias')
    if bias is None:
        raise UserError(f'checkpoint {checkpoint.source!r} has no classifier (head.fc)')
    with torch.device('meta'):
        model = create_backbone(name, num_classes=len(bias))
    report = compare_state_dict(model, checkpoint.state_dict)
    if not report.exact:
        raise UserError(f'checkpoint {checkpoint.source!r} is not a {name}: {report.describe()}')
    return model


def _packaged_meta(name: str, checkpoint: Checkpoint) -> dict[str, Any]:
    """Return classes, mean and std, and the length of training; not the config, which contains paths."""
    stated = checkpoint.pretrained_cfg
    if stated is None or not stated.classes:
        raise UserError(f'checkpoint {checkpoint.source!r} does not state mean, std and classes')
    with torch.device('meta'):
        model = create_backbone(name)
    sizes = {
        key: model.pretrained_cfg[key] for key in ('input_size', 'crop_pct', 'crop_mode', 'interpolation')
    }
    cfg = replace(stated, **sizes)
    kept: dict[str, Any] = {key: checkpoint.meta[key] for key in ('epoch', 'iter') if key in checkpoint.meta}
    return clean_meta(
        {**kept, 'model': name, 'dataset_meta': {'classes': cfg.classes}, META_KEY: cfg.to_dict()}
    )


def _evaluate(cfg: Config, weights: StateDict, meta: Mapping[str, Any]) -> dict[str, float]:
    """Write the weights to a temporary file and evaluate what is read from it."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / 'weights.safetensors'
        write_checkpoint({'state_dict': weights, 'meta': meta}, file)
        model, _ = build_model(cfg, file)
    return evaluate(cfg, model)


def _describe_training(checkpoint: Checkpoint, options: PackagingOptions) -> list[str]:
    environment = describe_environment()
    hours = _hours(checkpoint) if options.hours is None else options.hours
    took = 'of unknown duration' if hours is None else f'{hours:.1f} hours'
    recipes = [f'recipe: `{options.config}`; {_recipe(str(checkpoint.meta.get("cfg", "")))}']
    for path, cfg in options.after:
        recipes.append(f'it starts from the result of `{path}`; {_recipe(cfg.pretty_text)}')
    return [
        TERMS,
        *recipes,
        f'training: {took} on {environment["hardware"]}',
        f'code: commit {options.commit or environment["commit"]}; {environment["versions"]}',
    ]


def _recipe(text: str) -> str:
    """Summarise optimizer, batch size, length and augmentation from the text of a config."""
    optimizer = read_dict(text, 'optim_wrapper').get('optimizer') or {}
    loader, length = read_dict(text, 'train_dataloader'), read_dict(text, 'train_cfg')
    pipeline = [
        str(step.get('type')).split('.')[-1] for step in (loader.get('dataset') or {}).get('pipeline', [])
    ]
    augmentation = [step for step in pipeline if step not in ('LoadImage', 'CacheImages', 'PackInputs')]
    settings = ', '.join(
        f'{key} {value}' for key, value in optimizer.items() if key in ('lr', 'weight_decay')
    )
    steps = next((f'{v} {k.removeprefix("max_")}' for k, v in length.items() if k.startswith('max_')), '?')
    return (
        f'{optimizer.get("type", "unknown optimizer")} ({settings}), '
        f'batch size {loader.get("batch_size", "?")}, {steps}, '
        f'augmentation {", ".join(augmentation) or "none"}{_distillation(text)}'
    )


def _distillation(text: str) -> str:
    """Summarise the losses of a distillation, and name the teacher."""
    model = read_dict(text, 'model')
    if model.get('type') != 'inline.Distiller':
        return ''
    losses = ', '.join(
        f'{str(loss.get("type")).removeprefix("inline.")} '
        f'({", ".join(f"{key} {value}" for key, value in loss.items() if key != "type")})'
        for loss in model['losses']
    )
    teacher = str(model['teacher'].get('type'))
    stored = ''
    if teacher == 'inline.StoredLogits':
        stored = ' of EfficientNet-Lite0 with ImageNet weights under Apache-2.0 (tools/store_logits.py)'
    return (
        f'; distilled from {teacher.removeprefix("inline.")}{stored} with {losses}, '
        f'weight of the labels {model.get("label_weight", 1.0)}'
    )


def _hours(checkpoint: Checkpoint) -> float | None:
    """Add up the seconds of all steps in the log of the checkpoint; None if it has none."""
    hub = checkpoint.content.get('message_hub')
    scalars = (hub.get('log_scalars') if isinstance(hub, Mapping) else None) or {}
    history = getattr(scalars.get('train/time'), '_log_history', None)
    return None if history is None or not len(history) else float(history.sum()) / 3600


def _describe(metrics: Mapping[str, float]) -> str:
    return ', '.join(f'{key} {value:.2f}' for key, value in metrics.items())
