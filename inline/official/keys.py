"""The authors' weights under our keys.

A family's table says what becomes of each of their keys: rules are tried in order, the first that
matches the whole key counts. Several keys that become one are concatenated in the order they come in,
which is how their separate projections of queries and of keys and values, or the two branches of their
stripes, become one layer. Nothing passes unnoticed: what no rule matches, what does not fit, and what
is missing are all errors.
"""

import re
from collections import defaultdict
from collections.abc import Mapping

import torch
from torch import Tensor

from inline.errors import UserError


class MisfitError(UserError):
    """The weights are not those of the model; ``problems`` has a line for each key that does not fit."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__('the weights do not fit the model:\n  ' + '\n  '.join(problems))
        self.problems = problems


# What the authors' code stores though it can be computed: not weights.
DERIVED = re.compile(r'.*\.(relative_position_index|attn_mask)')

_BLOCK = [
    (r'attn\.(?:q|kv|qkv)\.(.*)', r'mixer.qkv.\1'),
    (r'qkv\.(.*)', r'mixer.qkv.\1'),
    (r'attn\.proj\.(.*)', r'mixer.proj.\1'),
    (r'proj\.(.*)', r'mixer.proj.\1'),
    (r'attn\.sr\.(.*)', r'mixer.reduction.proj.\1'),
    (r'attn\.norm\.(.*)', r'mixer.reduction.norm.\1'),
    (r'attn\.relative_position_bias_table', 'mixer.position.weight'),
    (r'attns\.\d\.get_v\.(.*)', r'mixer.lepe.conv.\1'),
    (r'attns?(?:\.\d)?\.residual\.0\.(.*)', r'mixer.residual.fc1.\1'),
    (r'attns?(?:\.\d)?\.residual\.2\.(.*)', r'mixer.residual.fc2.\1'),
    (r'((?:norm1|norm2|mlp)\..*)', r'\1'),
]

# Where blocks stand: a pattern for the stage and the block, and whether stages are counted from 1.
_BLOCK_PATHS = {
    'deit': (r'()blocks\.(\d+)\.(.*)', 0),
    'pvt': (r'block(\d)\.(\d+)\.(.*)', 1),
    'swin': (r'layers\.(\d)\.blocks\.(\d+)\.(.*)', 0),
    'cswin': (r'stage(\d)\.(\d+)\.(.*)', 1),
}

# The other keys, with the number that is taken from the stage they name, if they name one.
_OTHERS: dict[str, list[tuple[str, str, int]]] = {
    'deit': [
        (r'cls_token', 'class_token.weight', 0),
        (r'pos_embed', 'position.weight', 0),
        (r'patch_embed\.(proj\..*)', r'patch_embed.\1', 0),
        (r'(norm\..*)', r'\1', 0),
    ],
    'pvt': [
        (r'pos_embed(\d)', 'stages.{stage}.position.weight', 1),
        (r'patch_embed(\d)\.(.*)', r'stages.{stage}.downsample.\2', 1),
    ],
    'swin': [
        (r'patch_embed\.(.*)', r'stages.0.downsample.\1', 0),
        (r'layers\.(\d)\.downsample\.(.*)', r'stages.{stage}.downsample.\2', -1),
        (r'norm\.(.*)', r'out_norms.3.\1', 0),
    ],
    'cswin': [
        (r'stage1_conv_embed\.0\.(.*)', r'stages.0.downsample.proj.\1', 0),
        (r'stage1_conv_embed\.2\.(.*)', r'stages.0.downsample.norm.\1', 0),
        (r'merge(\d)\.conv\.(.*)', r'stages.{stage}.downsample.proj.\2', 0),
        (r'merge(\d)\.norm\.(.*)', r'stages.{stage}.downsample.norm.\2', 0),
        (r'norm\.(.*)', r'out_norms.3.\1', 0),
    ],
}

# What tells a family.
_MARKS = {
    'deit': 'cls_token',
    'pvt': 'pos_embed1',
    'swin': 'layers.0.blocks.0.norm1.weight',
    'cswin': 'stage1_conv_embed.0.weight',
}


def is_official(weights: Mapping[str, Tensor]) -> bool:
    """Whether weights have the authors' names."""
    return any(mark in weights for mark in _MARKS.values())


def tell_family(theirs: Mapping[str, Tensor]) -> str:
    """deit, pvt, swin or cswin."""
    for family, mark in _MARKS.items():
        if mark in theirs:
            return family
    some = ', '.join(list(theirs)[:3])
    raise UserError(f'these are not weights of an InLine model of the authors: the keys begin with {some}')


def rename(theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The authors' backbone weights under the keys, and in the shapes, of our backbone's state dict.

    Their classifier's ``head`` is left out. Raises a :class:`MisfitError` if a key is unknown, missing or
    of another shape.
    """
    family = tell_family(theirs)
    found: dict[str, list[Tensor]] = defaultdict(list)
    problems = []
    for key, value in theirs.items():
        if DERIVED.fullmatch(key) or key.startswith('head.'):
            continue
        own = _own_key(family, key)
        if own is None or own not in ours:
            problems.append(f'unknown: {key}')
        elif family == 'deit' and key == 'pos_embed':
            found['class_token.position'].append(value[:, :1])
            found[own].append(value[:, 1:])
        else:
            found[own].append(value)
    renamed = {}
    for key, own_value in ours.items():
        if key not in found:
            problems.append(f'missing: {key}')
            continue
        value = _to_map(torch.cat(found[key]), own_value) if _is_table(key) else torch.cat(found[key])
        if value.shape != own_value.shape:
            problems.append(f'{key}: {tuple(value.shape)} instead of {tuple(own_value.shape)}')
        renamed[key] = value
    if problems:
        raise MisfitError(problems)
    return renamed


def _own_key(family: str, key: str) -> str | None:
    path, first = _BLOCK_PATHS[family]
    match = re.fullmatch(path, key)
    if match:
        stage, block, rest = match.groups()
        place = f'blocks.{block}' if not stage else f'stages.{int(stage) - first}.blocks.{block}'
        for pattern, replacement in _BLOCK:
            if re.fullmatch(pattern, rest):
                return f'{place}.{re.sub(pattern, replacement, rest)}'
        return None
    for pattern, replacement, first in _OTHERS[family]:
        match = re.fullmatch(pattern, key)
        if match:
            number = match.group(1) if '{stage}' in replacement else '0'
            return match.expand(replacement.replace('{stage}', str(int(number) - first)))
    return None


def _is_table(key: str) -> bool:
    return key.endswith('position.weight')


def _to_map(table: Tensor, own: Tensor) -> Tensor:
    """Positions, absolute (1, places, channels) or relative (offsets, heads), as a map if they fit it."""
    table = table.unsqueeze(0) if table.dim() == 2 else table
    if table.numel() != own.numel() or table.shape[-1] != own.shape[1]:
        return table
    return table.transpose(1, 2).reshape(own.shape)
