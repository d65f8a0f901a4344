"""From a checkpoint of training to what others need of it: weights, classes, config, and a model card."""

import ast
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from inline.cards import count_attention
from inline.engine.model_card import find_entry, render_card
from inline.engine.safe_loading import load_safely
from inline.errors import UserError
from inline.hub import InLineBackbone, create_backbone
from inline.official.catalogue import FAMILIES
from inline.official.keys import is_official
from inline.safetensors_files import SUFFIX, write_checkpoint
from inline.weights import compare, read_state_dict

FORMATS = {'safetensors': SUFFIX, 'pth': '.pth'}
KEPT = ('cfg', 'dataset_meta', 'epoch', 'iter', 'model', 'img_size', 'mmengine_version')
# Settings that speak of the machine and the run, not of the model.
PRIVATE = ('work_dir', 'load_from', 'resume', 'launcher')
AVERAGE = 'the moving average (EMA) of training'
LAST_STEP = 'those of the last step'
# What the toolbox's layer takes beyond the plain backbone, and what is the same in every classifier.
_NOT_OF_THE_MODEL = ('type', 'init_cfg', 'frozen_stages', 'autocast', 'out_indices', 'out_type')
# What a config that is not of one of our backbones comes to when it is read as if it were.
_NOT_OURS = (KeyError, TypeError, AttributeError, ValueError, SyntaxError)


@dataclass(frozen=True)
class Published:
    """What was written, and which of a checkpoint's weights."""

    file: Path
    card: Path
    weights: str


def publish(
    checkpoint: Path,
    out: Path | None = None,
    kind: str = 'safetensors',
    config: str | None = None,
    overwrite: bool = False,
    license_id: str | None = None,
) -> Published:
    """Write the weights of a checkpoint, named by their hash, and a model card into a folder.

    Args:
        checkpoint: A file of training, or a converted one.
        out: The folder; published/NAME if None.
        kind: One of FORMATS.
        config: The name of the config that it was trained with, without suffix; told from the checkpoint
            if None.
        overwrite: Whether files of an earlier time are replaced.
        license_id: Of the weights, for the card; None says nothing.
    """
    content = load_safely(str(checkpoint))
    weights, which = choose_weights(content, checkpoint)
    meta = clean_meta(content.get('meta') or {})
    name = config or _config_name(content.get('meta') or {}) or checkpoint.stem
    folder = out or Path('published') / name
    card = folder / 'README.md'
    if card.exists() and not overwrite:
        raise UserError(f'{str(card)!r} is there already: choose another --out, or --overwrite it')
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f'{name}.part{FORMATS[kind]}'
        _write(part, weights, meta)
        digest = hashlib.sha256(part.read_bytes()).hexdigest()
        file = part.replace(folder / f'{name}-{digest[:8]}{FORMATS[kind]}')
        plain = plain_config(meta, weights)
        if plain is not None:
            (folder / 'config.json').write_text(json.dumps(plain, indent=2) + '\n')
        else:
            (folder / 'config.json').unlink(missing_ok=True)
        card.write_text(
            render_card(
                name=name,
                file=file.name,
                digest=digest,
                parameters=sum(value.numel() for value in weights.values()),
                weights=which,
                meta=meta,
                entry=find_entry(name),
                plain=plain is not None,
                attention=_attention(meta),
                license_id=license_id,
            )
        )
        _remove_earlier(folder, name, file)
    except OSError as error:
        raise UserError(f'cannot write into {str(folder)!r}: {error.strerror or error}') from error
    return Published(file, card, which)


def choose_weights(content: Any, checkpoint: Path) -> tuple[dict[str, Tensor], str]:
    """The weights to publish, the moving average where there is one, and in words which they are."""
    nested = content.get('state_dict') if isinstance(content, Mapping) else None
    if not (isinstance(nested, Mapping) and nested and all(isinstance(v, Tensor) for v in nested.values())):
        raise UserError(f'checkpoint {str(checkpoint)!r} holds no weights: expected tensors under state_dict')
    weights = {
        str(name).removeprefix('module.'): value.contiguous().clone() for name, value in nested.items()
    }
    if is_official(weights):
        raise UserError(f"{str(checkpoint)!r} has the authors' names: run tools/convert_checkpoint.py first")
    for name, value in weights.items():
        if value.is_floating_point() and not value.isfinite().all():
            raise UserError(f'checkpoint {str(checkpoint)!r} is not fit to publish: {name} is not finite')
    # MMEngine saves the average under state_dict, and what the optimizer works on under ema_state_dict.
    return weights, AVERAGE if 'ema_state_dict' in content else LAST_STEP


def clean_meta(meta: Mapping[str, Any]) -> dict[str, Any]:
    """What users need of a checkpoint's meta, as plain data."""
    kept = {key: meta[key] for key in KEPT if key in meta}
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


def plain_config(meta: Mapping[str, Any], weights: Mapping[str, Tensor]) -> dict[str, Any] | None:
    """The arguments of the :class:`InLineBackbone` that the weights are all of; None if they are of more."""
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
            'options': {key: value for key, value in backbone.items() if key not in _NOT_OF_THE_MODEL},
        }
        with torch.device('meta'):
            fit = compare(InLineBackbone(**arguments), weights)
    except _NOT_OURS:
        return None
    return arguments if fit.whole and not fit.unused else None


def _attention(meta: Mapping[str, Any]) -> Mapping[str, int]:
    """How many blocks have which attention, by the config, or by the name of a released model."""
    try:
        with torch.device('meta'):
            if 'cfg' not in meta:
                return count_attention(create_backbone(str(meta.get('model'))))
            model = read_setting(str(meta['cfg']), 'model')
            options = {key: value for key, value in model['backbone'].items() if key not in _NOT_OF_THE_MODEL}
            return count_attention(FAMILIES[_family(model)](**options))
    except _NOT_OURS:
        return {}


def _family(model: Mapping[str, Any]) -> str:
    kinds = {kind.__name__: name for name, kind in FAMILIES.items()}
    return kinds[model['backbone']['type'].split('.')[-1]]


def read_setting(text: str, name: str) -> Any:
    """One setting of a config's text, as data: the text comes out of a file and is not run."""
    for statement in ast.parse(text).body:
        if _assigned(statement) == name:
            return _literal(statement.value)  # type: ignore[attr-defined]  # it is an assignment
    raise KeyError(name)


def _literal(node: ast.expr) -> Any:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == 'dict':
        return {str(keyword.arg): _literal(keyword.value) for keyword in node.keywords}
    if isinstance(node, ast.Dict):
        return {
            _literal(key): _literal(value) for key, value in zip(node.keys, node.values, strict=True) if key
        }
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal(element) for element in node.elts]
    return ast.literal_eval(node)


def _drop_private(text: str) -> str:
    try:
        statements = ast.parse(text).body
    except SyntaxError as error:
        raise UserError(f'the config inside the checkpoint is damaged: line {error.lineno}') from error
    lines = text.splitlines()
    for statement in reversed(statements):
        if _assigned(statement) in PRIVATE:
            del lines[statement.lineno - 1 : statement.end_lineno]
    return '\n'.join(lines)


def _assigned(statement: ast.stmt) -> str | None:
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id
    return None


def _config_name(meta: Mapping[str, Any]) -> str | None:
    """MMEngine names a run after its config and the time; a converted file has the model's name."""
    name = re.sub(r'_\d{8}_\d{6}$', '', str(meta.get('experiment_name') or meta.get('model') or ''))
    return name if re.fullmatch(r'\w[\w.+-]*', name) else None


def _as_plain(value: Any) -> Any:
    if hasattr(value, 'tolist'):
        return value.tolist()
    raise UserError(f"the checkpoint's meta holds a {type(value).__name__}, which is not plain data")


def _remove_earlier(folder: Path, name: str, kept: Path) -> None:
    """Remove weights of this name that an earlier call wrote: whoever loads the folder would take those."""
    for path in folder.iterdir():
        is_ours = re.fullmatch(rf'{re.escape(name)}-[0-9a-f]{{8}}', path.stem) is not None
        if is_ours and path.suffix in FORMATS.values() and path.name != kept.name:
            path.unlink()


def _write(path: Path, weights: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Write, read back and compare: what is published was seen to load."""
    write_checkpoint({'meta': dict(meta), 'state_dict': dict(weights)}, path)
    written = read_state_dict(path)
    if written.keys() != weights.keys() or not all(torch.equal(written[k], weights[k]) for k in weights):
        raise UserError(f'{str(path)!r} does not read back as it was written')
