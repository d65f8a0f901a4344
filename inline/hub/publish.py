"""Publishing: weights, classes, config and a model card from a training checkpoint."""

import ast
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from inline.checkpoints import Checkpoint, compare_state_dict, read_checkpoint
from inline.checkpoints.config_text import assigned_name, read_setting
from inline.checkpoints.model_card import PublishedModelCard, count_attention
from inline.checkpoints.official import FAMILIES
from inline.checkpoints.pretrained_cfg import META_KEY as PRETRAINED_CFG
from inline.checkpoints.safetensors_format import SUFFIX, write_checkpoint
from inline.checkpoints.state_dict import StateDict, find_nonfinite
from inline.hub.backbones import MODEL_TYPE, InLineBackbone, create_backbone
from inline.utils.errors import UserError
from inline.utils.resources import CONFIGS

FORMATS = {'safetensors': SUFFIX, 'pth': '.pth'}
META_KEYS = ('cfg', 'dataset_meta', PRETRAINED_CFG, 'epoch', 'iter', 'model', 'img_size', 'mmengine_version')
# Top-level settings of a config that describe the machine and the run, not the model.
PRIVATE_SETTINGS = ('work_dir', 'load_from', 'resume', 'launcher')
EMA = 'exponential moving average (EMA) of the weights'
LAST_STEP = 'weights of the last step'
# Options of the toolboxes' backbones that the plain backbones lack, or that are fixed for a classifier.
_TOOLBOX_OPTIONS = ('type', 'init_cfg', 'frozen_stages', 'autocast', 'out_indices', 'out_type')
# Numbers of Pillow's filters.
_RESAMPLING = {'nearest': 0, 'lanczos': 1, 'bilinear': 2, 'bicubic': 3, 'box': 4, 'hamming': 5}
# Options of Resize, ResizeEdge and CenterCrop that transformers also has, or that only affect rounding.
_KNOWN_OPTIONS = {'type', 'scale', 'keep_ratio', 'edge', 'crop_size', 'interpolation', 'backend'}
# Raised while reading a config of another backbone.
_UNKNOWN_CONFIG = (KeyError, TypeError, AttributeError, ValueError, SyntaxError)


@dataclass(frozen=True)
class Published:
    """The files that were written, and which weights of the checkpoint they contain."""

    file: Path
    card: Path
    weights: str


def publish(
    source: str | Path,
    out: Path | None = None,
    file_format: str = 'safetensors',
    config: str | None = None,
    overwrite: bool = False,
    license_id: str | None = None,
) -> Published:
    """Write the weights of a checkpoint, with their hash in the file name, and a model card to a folder.

    Args:
        source: As in :func:`inline.checkpoints.read_checkpoint`.
        out: The folder; None for published/NAME.
        file_format: A key of FORMATS.
        config: Name of the training config, without suffix; None to take it from the checkpoint.
        overwrite: Whether to replace files of an earlier call.
        license_id: Licence of the weights for the card; None to state none.
    """
    checkpoint = read_checkpoint(source)
    check_finite(checkpoint)
    # Contiguous copies: a view would store its complete base tensor.
    weights = {name: value.contiguous().clone() for name, value in checkpoint.state_dict.items()}
    name = config or _config_name(checkpoint.meta) or Path(source).stem
    meta = {**published_meta(checkpoint), 'config': name}
    folder = out or Path('published') / name
    card = folder / 'README.md'
    if card.exists() and not overwrite:
        raise UserError(f'{str(card)!r} exists: choose another --out, or pass --overwrite')
    description = EMA if checkpoint.is_ema else LAST_STEP
    entry = find_metafile_entry(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f'{name}.part{FORMATS[file_format]}'
        _write(temporary, weights, meta)
        digest = hashlib.sha256(temporary.read_bytes()).hexdigest()
        file = temporary.replace(folder / f'{name}-{digest[:8]}{FORMATS[file_format]}')
        arguments = backbone_arguments(meta, weights)
        _write_json(folder / 'config.json', arguments and hub_config(arguments, meta, file))
        _write_json(folder / 'preprocessor_config.json', arguments and image_processor_settings(meta))
        content = PublishedModelCard(
            name=name,
            config=_config_path(name, entry),
            file=file.name,
            digest=digest,
            parameters=sum(value.numel() for value in weights.values()),
            weights=description,
            meta=meta,
            metafile_entry=entry,
            is_backbone=arguments is not None,
            attention=_attention(meta),
            license_id=license_id,
        )
        card.write_text(content.render())
        _remove_earlier(folder, name, file)
    except OSError as error:
        raise UserError(f'cannot write to {str(folder)!r}: {error.strerror or error}') from error
    return Published(file, card, description)


def check_finite(checkpoint: Checkpoint) -> None:
    """Raise a :class:`UserError` if a weight is infinite or NaN."""
    name = find_nonfinite(checkpoint.state_dict)
    if name is not None:
        raise UserError(f'checkpoint {checkpoint.source!r} cannot be published: {name} is not finite')


def published_meta(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the entries of a checkpoint's meta that users need, with mean, std and classes if known."""
    cfg = checkpoint.pretrained_cfg
    stated = {} if cfg is None else {PRETRAINED_CFG: cfg.to_dict()}
    return clean_meta({**checkpoint.meta, **stated})


def clean_meta(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a checkpoint's meta that users need, as plain data."""
    kept = {key: meta[key] for key in META_KEYS if key in meta}
    if 'cfg' in kept:
        kept['cfg'] = _drop_private(str(kept['cfg']))
    if isinstance(kept.get('dataset_meta'), Mapping):
        kept['dataset_meta'] = {
            str(key).lower(): value
            for key, value in kept['dataset_meta'].items()
            if str(key).lower() in ('classes', 'palette')
        }
    plain: dict[str, Any] = json.loads(json.dumps(kept, default=_as_plain))
    return plain


def backbone_arguments(meta: Mapping[str, Any], weights: StateDict) -> dict[str, Any] | None:
    """Return the arguments of the :class:`InLineBackbone` that has exactly these weights; None if unknown."""
    try:
        model = read_setting(str(meta.get('cfg', '')), 'model')
        backbone, family = dict(model['backbone']), _family(model)
        arguments = {
            'family': family,
            'arch': backbone.pop('arch', 'tiny'),
            'img_size': backbone.pop('img_size', None),
            'in_chans': backbone.pop('in_channels', 3),
            'num_classes': model['head']['num_classes'],
            'drop_path_rate': backbone.pop('drop_path_rate', 0.0),
            'mixers': backbone.pop('mixers', None),
            'options': {key: value for key, value in backbone.items() if key not in _TOOLBOX_OPTIONS},
            PRETRAINED_CFG: meta.get(PRETRAINED_CFG),
        }
        with torch.device('meta'):
            report = compare_state_dict(InLineBackbone(**arguments), weights)
    except _UNKNOWN_CONFIG:
        return None
    return arguments if report.exact else None


def hub_config(arguments: Mapping[str, Any], meta: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Return the content of config.json: arguments of InLineBackbone, and what transformers needs to know."""
    config = {'model_type': MODEL_TYPE, **arguments}
    if file.suffix == SUFFIX:
        config['transformers_weights'] = file.name
    classes = (meta.get('dataset_meta') or {}).get('classes') or ()
    if len(classes) == arguments['num_classes']:
        config['id2label'] = {str(i): str(name) for i, name in enumerate(classes)}
    return config


def image_processor_settings(meta: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the test pipeline as settings of transformers' BitImageProcessor; None if it has other steps."""
    try:
        text = str(meta.get('cfg', ''))
        pixels = read_setting(text, 'data_preprocessor')
        steps = read_setting(text, 'test_dataloader')['dataset']['pipeline']
        settings: dict[str, Any] = {
            'image_processor_type': 'BitImageProcessor',
            'image_mean': [value / 255 for value in pixels['mean']],
            'image_std': [value / 255 for value in pixels['std']],
            'do_resize': False,
            'do_center_crop': False,
        }
        for step in steps:
            settings |= _step_settings(step)
    except _UNKNOWN_CONFIG:
        return None
    return settings if pixels.get('to_rgb') else None


def _step_settings(step: Mapping[str, Any]) -> dict[str, Any]:
    """Return one step of a test pipeline in the terms of transformers. An unknown step raises a KeyError."""
    name = step['type'].split('.')[-1]
    if name in ('LoadImage', 'LoadImageFromFile', 'PackInputs'):
        return {}
    if not step.keys() <= _KNOWN_OPTIONS:
        raise KeyError(name)
    resample = _RESAMPLING[step.get('interpolation', 'bilinear')]
    if name == 'Resize' and not step.get('keep_ratio'):
        width, height = step['scale'] if isinstance(step['scale'], list) else [step['scale']] * 2
        return {'do_resize': True, 'size': {'height': height, 'width': width}, 'resample': resample}
    if name == 'ResizeEdge' and step.get('edge', 'short') == 'short':
        return {'do_resize': True, 'size': {'shortest_edge': step['scale']}, 'resample': resample}
    if name == 'CenterCrop':
        width, height = step['crop_size'] if isinstance(step['crop_size'], list) else [step['crop_size']] * 2
        return {'do_center_crop': True, 'crop_size': {'height': height, 'width': width}}
    raise KeyError(name)


def find_metafile_entry(name: str) -> dict[str, Any] | None:
    """Return the metafile entry of a config, given by its name or by that of a released model."""
    for path in sorted(CONFIGS.glob('*/metafile.yml')):
        for entry in yaml.safe_load(path.read_text())['Models']:
            if name in (entry['Name'], _released_name(entry['Name'])):
                return dict(entry)
    return None


def _attention(meta: Mapping[str, Any]) -> Mapping[str, int]:
    """Count the blocks per attention from the config, or from the name of a released model."""
    try:
        with torch.device('meta'):
            if 'cfg' not in meta:
                return count_attention(create_backbone(str(meta.get('model'))))
            model = read_setting(str(meta['cfg']), 'model')
            options = {key: value for key, value in model['backbone'].items() if key not in _TOOLBOX_OPTIONS}
            return count_attention(FAMILIES[_family(model)](**options))
    except _UNKNOWN_CONFIG:
        return {}


def _family(model: Mapping[str, Any]) -> str:
    families = {backbone.__name__: name for name, backbone in FAMILIES.items()}
    return families[model['backbone']['type'].split('.')[-1]]


def _drop_private(text: str) -> str:
    try:
        statements = ast.parse(text).body
    except SyntaxError as error:
        raise UserError(f'the config in the checkpoint is damaged: line {error.lineno}') from error
    lines = text.splitlines()
    for statement in reversed(statements):
        if assigned_name(statement) in PRIVATE_SETTINGS:
            del lines[statement.lineno - 1 : statement.end_lineno]
    return '\n'.join(lines)


def _config_name(meta: Mapping[str, Any]) -> str | None:
    """Return the config's name without the time that MMEngine appends, or the name of a converted model."""
    name = re.sub(r'_\d{8}_\d{6}$', '', str(meta.get('experiment_name') or meta.get('model') or ''))
    return name if re.fullmatch(r'\w[\w.+-]*', name) else None


def _config_path(name: str, entry: Mapping[str, Any] | None) -> str:
    if entry is not None:
        return str(entry['Config'])
    found = sorted(CONFIGS.rglob(f'{name}.py'))
    return str(found[0].relative_to(CONFIGS.parent)) if found else f'{name}.py'


def _released_name(config: str) -> str | None:
    """Return inline-swin-base-384 for inline-swin-base_8xb64_in1k-384px, None if it is not for ImageNet."""
    if '_in1k' not in config:
        return None
    return config.split('_')[0] + ('-384' if config.endswith('-384px') else '')


def _as_plain(value: Any) -> Any:
    if hasattr(value, 'tolist'):
        return value.tolist()
    raise UserError(f"the checkpoint's meta contains a {type(value).__name__}, which is not plain data")


def _remove_earlier(folder: Path, name: str, kept: Path) -> None:
    """Delete the weights of an earlier call: with two weight files, loading the folder would be ambiguous."""
    for path in folder.iterdir():
        is_ours = re.fullmatch(rf'{re.escape(name)}-[0-9a-f]{{8}}', path.stem) is not None
        if is_ours and path.suffix in FORMATS.values() and path.name != kept.name:
            path.unlink()


def _write_json(path: Path, content: Mapping[str, Any] | None) -> None:
    """Write a file, or remove that of an earlier call if there is no content."""
    path.unlink(missing_ok=True)
    if content is not None:
        path.write_text(json.dumps(content, indent=2) + '\n')


def _write(path: Path, weights: StateDict, meta: Mapping[str, Any]) -> None:
    """Write the file, read it back and compare."""
    write_checkpoint({'meta': dict(meta), 'state_dict': dict(weights)}, path)
    written = read_checkpoint(path).state_dict
    if written.keys() != weights.keys() or not all(torch.equal(written[k], weights[k]) for k in weights):
        raise UserError(f'{str(path)!r} is not the same after reading it back')
