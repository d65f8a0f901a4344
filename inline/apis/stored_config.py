"""Configs from the metadata of weights, for models that are loaded without a config."""

import json
import logging
import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from mmengine.config import Config

from inline.checkpoints import Checkpoint, compare_state_dict
from inline.checkpoints.official import FAMILIES
from inline.checkpoints.pretrained_cfg import PretrainedCfg, parse_pretrained_cfg
from inline.checkpoints.sources import locate_checkpoint
from inline.engine.config import load_config
from inline.hub.backbones import NAMES, InLineBackbone, check_sizes, plain_settings, usual_pool
from inline.hub.publish import backbone_arguments
from inline.utils.arguments import check_arguments, parameters_of
from inline.utils.errors import UserError

# A name of a file in configs/, not a path.
_CONFIG_NAME = re.compile(r'\w[\w+-]*')
# Arguments of InLineBackbone that are named differently in a config, or mean something else.
_OTHER_NAMES = {'in_chans': 'in_channels'}
_NOT_OF_THE_BACKBONE = (
    'family',
    'features_only',
    'out_indices',
    'num_classes',
    'options',
    'global_pool',
    'pretrained_cfg',
)
_logger = logging.getLogger('inline')


def config_of_checkpoint(checkpoint: Checkpoint | None) -> Config:
    """Return a config for a checkpoint: of a classifier from its metadata, of others by the config's name.

    No code in the checkpoint is executed: a config that it contains is read as data, and a name is looked up
    in the configs of this project.
    """
    if checkpoint is None:
        raise UserError('a model needs a config, a checkpoint, or both')
    arguments = _classifier_arguments(checkpoint)
    if arguments is not None:
        return _classifier_config(arguments, _input_of(checkpoint, arguments))
    stated = str(checkpoint.meta.get('config') or checkpoint.meta.get('experiment_name') or '')
    name = re.sub(r'_\d{8}_\d{6}$', '', stated)
    if not _CONFIG_NAME.fullmatch(name):
        raise UserError(f'checkpoint {checkpoint.source!r} does not identify its model: pass a config')
    try:
        return load_config(name)
    except UserError as error:
        raise UserError(f'checkpoint {checkpoint.source!r} needs a config: {error}') from error


def use_normalization(cfg: Config, checkpoint: Checkpoint) -> None:
    """Set mean and std of a config to those of the weights, with a warning if they differ."""
    stated = checkpoint.pretrained_cfg
    node = cfg.model.get('data_preprocessor') or cfg.get('data_preprocessor')
    if stated is None or node is None or node.get('mean') is None or node.get('std') is None:
        return
    flag = 'to_rgb' if cfg.default_scope == 'mmpretrain' else 'bgr_to_rgb'
    wanted = {'mean': [255 * x for x in stated.mean], 'std': [255 * x for x in stated.std]}
    if any(len(wanted[key]) != len(node[key]) for key in wanted):
        return
    same = all(
        math.isclose(x, y, abs_tol=1e-3)
        for key in wanted
        for x, y in zip(wanted[key], node[key], strict=True)
    )
    if not (same and (node.get('to_rgb') or node.get('bgr_to_rgb'))):
        _logger.warning(
            'weights %r were trained with mean %s and std %s, which replace those of the config',
            checkpoint.source,
            *([round(x, 3) for x in numbers] for numbers in wanted.values()),
        )
        node.update({**wanted, flag: True})


def _classifier_arguments(checkpoint: Checkpoint) -> dict[str, Any] | None:
    """Return the arguments of the InLineBackbone with exactly these weights; None if they are unknown."""
    if 'head.fc.weight' not in checkpoint.state_dict:
        return None
    if (arguments := backbone_arguments(checkpoint.meta, checkpoint.state_dict)) is not None:
        return arguments
    spec = NAMES.get(str(checkpoint.meta.get('model', '')).replace('-', '_'))
    listed = _read_config_json(checkpoint)
    if spec is not None:
        classes = len(checkpoint.state_dict['head.fc.weight'])
        listed = {'family': spec.family, 'arch': spec.arch, 'img_size': spec.img_size, 'num_classes': classes}
    if listed is None:
        return None
    # mmpretrain's classifier pools in the family's own way.
    if listed.get('global_pool') not in (None, usual_pool(listed['family'])):
        return None
    try:
        check_arguments(listed, parameters_of(InLineBackbone), 'config.json')
        check_sizes(listed)
        with torch.device('meta'):
            report = compare_state_dict(InLineBackbone(**listed), checkpoint.state_dict)
    except (UserError, TypeError):
        return None
    return listed if report.exact else None


def _read_config_json(checkpoint: Checkpoint) -> dict[str, Any] | None:
    """Return the arguments that ``save_pretrained`` wrote next to the weights, if there are any."""
    path = locate_checkpoint(checkpoint.source).parent / 'config.json'
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return None
    is_ours = isinstance(content, dict) and content.get('family') in FAMILIES and 'arch' in content
    return plain_settings(content) if is_ours else None


def _input_of(checkpoint: Checkpoint, arguments: Mapping[str, Any]) -> PretrainedCfg:
    stated = checkpoint.pretrained_cfg
    if stated is None and arguments.get('pretrained_cfg'):
        stated = parse_pretrained_cfg(arguments['pretrained_cfg'], 'config.json')
    if stated is None:
        raise UserError(f'checkpoint {checkpoint.source!r} does not contain mean and std: pass a config')
    return stated


def _classifier_config(arguments: Mapping[str, Any], stated: PretrainedCfg) -> Config:
    """Return the config of mmpretrain's classifier with a linear head, and the test pipeline of its input."""
    family = arguments['family']
    own = {
        _OTHER_NAMES.get(key, key): value
        for key, value in arguments.items()
        if key not in _NOT_OF_THE_BACKBONE and value is not None
    }
    outputs = {'out_type': 'cls_token'} if family == 'deit' else {'out_indices': (-1,)}
    with torch.device('meta'):
        width = InLineBackbone(**arguments).num_features
    return Config(
        {
            'default_scope': 'mmpretrain',
            'model': {
                'type': 'ImageClassifier',
                'backbone': {
                    'type': f'inline.{FAMILIES[family].__name__}',
                    **own,
                    **(arguments.get('options') or {}),
                    **outputs,
                },
                'neck': None if family == 'deit' else {'type': 'GlobalAveragePooling'},
                'head': {
                    'type': 'LinearClsHead',
                    'num_classes': arguments['num_classes'],
                    'in_channels': width,
                },
            },
            'data_preprocessor': {
                'num_classes': arguments['num_classes'],
                'mean': [255 * x for x in stated.mean],
                'std': [255 * x for x in stated.std],
                'to_rgb': True,
            },
            'test_dataloader': {'dataset': {'type': 'CustomDataset', 'pipeline': _test_pipeline(stated)}},
        }
    )


def _test_pipeline(stated: PretrainedCfg) -> list[dict[str, Any]]:
    """Return the steps that resize and crop images as the weights expect."""
    height, width = stated.input_size[1:]
    resized = [round(side / stated.crop_pct) for side in (width, height)]
    options: dict[str, Any] = {'backend': 'pillow', 'interpolation': stated.interpolation}
    if stated.crop_mode == 'squash':
        resize = {'type': 'Resize', 'scale': tuple(resized), **options}
    else:
        resize = {'type': 'ResizeEdge', 'scale': min(resized), 'edge': 'short', **options}
    crop = {'type': 'CenterCrop', 'crop_size': (height, width)}
    return [{'type': 'inline.LoadImage'}, resize, crop, {'type': 'PackInputs'}]
