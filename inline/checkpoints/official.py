"""The fifteen models that the authors released, and the conversion of their weights to our names.

For each family a table maps their names to ours: the rules are tried in order, and the first one that matches
the whole name applies. Several tensors that map to one name are concatenated: their separate query and
key-value projections, and the two branches of their stripes, are one layer here. A tensor without a rule,
with a wrong shape, or missing is an error. The official repositories of DeiT, PVT, Swin and CSwin have the
same names, so :mod:`inline.checkpoints.softmax_models` uses the same tables.
"""

import csv
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from inline.checkpoints.pretrained_cfg import PretrainedCfg
from inline.models import InLineCSwin, InLineDeiT, InLinePVT, InLineSwin
from inline.utils.errors import UserError

Backbone = InLineDeiT | InLinePVT | InLineSwin | InLineCSwin
FAMILIES: dict[str, type[Backbone]] = {
    'deit': InLineDeiT,
    'pvt': InLinePVT,
    'swin': InLineSwin,
    'cswin': InLineCSwin,
}


@dataclass(frozen=True)
class ModelSpec:
    """A named model: family, size, and the image size and number of classes of its training."""

    family: str
    arch: str
    img_size: int
    num_classes: int = 1000
    crop_pct: float = 0.875

    @property
    def name(self) -> str:
        """For example inline-swin-tiny, or inline-swin-base-384 if there is also a model for 224."""
        suffix = '-384' if self.img_size == 384 else ''
        return f'inline-{self.family}-{self.arch}{suffix}'

    @property
    def pretrained_cfg(self) -> PretrainedCfg:
        """ImageNet normalisation, and a resize that does not keep the aspect ratio."""
        size = (3, self.img_size, self.img_size)
        return PretrainedCfg(size, crop_pct=self.crop_pct, num_classes=self.num_classes)

    def build(self) -> Backbone:
        """Build the backbone with the outputs that a classifier needs."""
        if self.family == 'deit':
            return InLineDeiT(self.arch, out_type='cls_token')
        return FAMILIES[self.family](self.arch, img_size=self.img_size, out_indices=(3,))


@dataclass(frozen=True)
class OfficialModel(ModelSpec):
    """A model that the authors released."""

    @property
    def title(self) -> str:
        """The name in the paper's tables, for example InLine-Swin-T."""
        family = {'deit': 'DeiT', 'pvt': 'PVT', 'swin': 'Swin', 'cswin': 'CSwin'}[self.family]
        return f'InLine-{family}-{self.arch[0].upper()}'


OFFICIAL = {
    model.name: model
    for model in (
        OfficialModel('deit', 'tiny', 224),
        OfficialModel('deit', 'small', 288),
        OfficialModel('deit', 'base', 448),
        OfficialModel('pvt', 'tiny', 224),
        OfficialModel('pvt', 'small', 224),
        OfficialModel('pvt', 'medium', 224),
        OfficialModel('pvt', 'large', 224),
        OfficialModel('swin', 'tiny', 224),
        OfficialModel('swin', 'small', 224),
        OfficialModel('swin', 'base', 224),
        OfficialModel('swin', 'base', 384, crop_pct=1.0),
        OfficialModel('cswin', 'tiny', 224),
        OfficialModel('cswin', 'small', 224),
        OfficialModel('cswin', 'base', 224),
        OfficialModel('cswin', 'base', 384),
    )
}


def find_official(name: str) -> OfficialModel:
    """Return a released model by its name."""
    if name not in OFFICIAL:
        raise UserError(
            f'{name!r} is neither a file nor a released model: choose one of {", ".join(OFFICIAL)}'
        )
    return OFFICIAL[name]


def find_link(model: OfficialModel, table: Path) -> str:
    """Return the URL of a model's weights from a CSV file with the columns model, resolution and url."""
    with table.open(newline='') as file:
        for row in csv.DictReader(file):
            if row['model'] == model.title and row['resolution'] == str(model.img_size):
                return row['url']
    raise UserError(f'the authors published no weights of {model.name}')


class KeyMismatchError(UserError):
    """The weights do not match the model; ``problems`` has one line per tensor."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__('the weights do not match the model:\n  ' + '\n  '.join(problems))
        self.problems = problems


# Buffers of the authors' code that are computed from the sizes and are not weights.
DERIVED = re.compile(r'.*\.(relative_position_index|attn_mask)')

_BLOCK_RULES = [
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

# Per family the pattern of a block's tensors (stage, block, rest) and the number of the first stage.
BLOCK_PATHS = {
    'deit': (r'()blocks\.(\d+)\.(.*)', 0),
    'pvt': (r'block(\d)\.(\d+)\.(.*)', 1),
    'swin': (r'layers\.(\d)\.blocks\.(\d+)\.(.*)', 0),
    'cswin': (r'stage(\d)\.(\d+)\.(.*)', 1),
}

# The other tensors, and the number to subtract from the stage in their name.
_OTHER_RULES: dict[str, list[tuple[str, str, int]]] = {
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
        (r'norm(\d)\.(.*)', r'out_norms.{stage}.\2', 0),
    ],
    'cswin': [
        (r'stage1_conv_embed\.0\.(.*)', r'stages.0.downsample.proj.\1', 0),
        (r'stage1_conv_embed\.2\.(.*)', r'stages.0.downsample.norm.\1', 0),
        (r'merge(\d)\.conv\.(.*)', r'stages.{stage}.downsample.proj.\2', 0),
        (r'merge(\d)\.norm\.(.*)', r'stages.{stage}.downsample.norm.\2', 0),
        (r'norm\.(.*)', r'out_norms.3.\1', 0),
        (r'norm(\d)\.(.*)', r'out_norms.{stage}.\2', 1),
    ],
}
# Tensors that come last when a layer is concatenated: keys and values, the second branch of stripes.
_LATER_PARTS = re.compile(r'.*\.(?:attn\.kv|attns\.1)\..*')

# A tensor that only this family has.
_FAMILY_KEYS = {
    'deit': 'cls_token',
    'pvt': 'pos_embed1',
    'swin': 'layers.0.blocks.0.norm1.weight',
    'cswin': 'stage1_conv_embed.0.weight',
}
# The local residual of InLine attention, which the plain DeiT, PVT, Swin and CSwin do not have.
_INLINE_KEY = re.compile(r'.*\.attns?(\.\d)?\.residual\.\d\.\w+')


def is_official(weights: Mapping[str, Tensor]) -> bool:
    """Return whether weights have the names of the authors' InLine models."""
    has_family = any(key in weights for key in _FAMILY_KEYS.values())
    return has_family and any(_INLINE_KEY.fullmatch(name) for name in weights)


def find_family(theirs: Mapping[str, Tensor]) -> str:
    """Return deit, pvt, swin or cswin."""
    for family, key in _FAMILY_KEYS.items():
        if key in theirs:
            return family
    first = ', '.join(list(theirs)[:3])
    raise UserError(f'these are not weights of an InLine model of the authors: the names start with {first}')


def convert_official(theirs: Mapping[str, Tensor]) -> tuple[OfficialModel, dict[str, Tensor]]:
    """Return the released model that matches the weights, and the state dict of our classifier.

    CSwin-B has the same shapes for 224 and 384; it is reported as 224.
    """
    candidates = [model for model in OFFICIAL.values() if model.family == find_family(theirs)]
    errors = []
    for model in candidates:
        with torch.device('meta'):
            ours = model.build().state_dict()
        try:
            backbone = rename_keys(theirs, ours)
        except KeyMismatchError as error:
            errors.append((len(error.problems), model.name, error))
            continue
        return model, {f'backbone.{key}': value for key, value in backbone.items()} | _rename_head(theirs)
    _, name, closest = min(errors, key=lambda error: error[0])
    raise UserError(f'no released model matches; the closest is {name}, where {closest}')


def rename_keys(theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the authors' backbone weights with the names and shapes of our backbone's state dict `ours`.

    Their classifier ``head`` is skipped. Raises :class:`KeyMismatchError` for names that are unknown or
    missing and for wrong shapes.
    """
    family = find_family(theirs)
    found: dict[str, list[Tensor]] = defaultdict(list)
    problems = []
    # Not in the order of the file: safetensors files are sorted by name, with kv before q.
    for key, value in sorted(theirs.items(), key=lambda item: _LATER_PARTS.fullmatch(item[0]) is not None):
        if DERIVED.fullmatch(key) or key.startswith('head.'):
            continue
        own = _our_key(family, key)
        if own is None or own not in ours:
            problems.append(f'unknown: {key}')
        elif family == 'deit' and key == 'pos_embed':
            found['class_token.position'].append(value[:, :1])
            found[own].append(value[:, 1:])
        else:
            found[own].append(value)
    renamed = {}
    for key, expected in ours.items():
        if key not in found:
            problems.append(f'missing: {key}')
            continue
        parts = found[key]
        if not all(part.dim() and part.shape[1:] == parts[0].shape[1:] for part in parts):
            shapes = ' and '.join(str(tuple(part.shape)) for part in parts)
            problems.append(f'{key}: {shapes} instead of {tuple(expected.shape)}')
            continue
        value = torch.cat(parts)
        if key.endswith('position.weight'):
            value = _as_map(value, expected)
        if value.shape != expected.shape:
            problems.append(f'{key}: {tuple(value.shape)} instead of {tuple(expected.shape)}')
        renamed[key] = value
    if problems:
        raise KeyMismatchError(problems)
    return renamed


def _rename_head(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the linear classifier under mmpretrain's names."""
    head = {key: value for key, value in theirs.items() if key.startswith('head.')}
    expected = {'head.weight', 'head.bias'}
    problems = [f'unknown: {key}' for key in sorted(head.keys() - expected)]
    problems += [f'missing: {key}' for key in sorted(expected - head.keys())]
    if problems:
        raise KeyMismatchError(problems)
    return {key.replace('head.', 'head.fc.'): value for key, value in head.items()}


def _our_key(family: str, key: str) -> str | None:
    path, first = BLOCK_PATHS[family]
    match = re.fullmatch(path, key)
    if match:
        stage, block, rest = match.groups()
        module = f'blocks.{block}' if not stage else f'stages.{int(stage) - first}.blocks.{block}'
        for pattern, replacement in _BLOCK_RULES:
            if re.fullmatch(pattern, rest):
                return f'{module}.{re.sub(pattern, replacement, rest)}'
        return None
    for pattern, replacement, first in _OTHER_RULES[family]:
        match = re.fullmatch(pattern, key)
        if match:
            number = match.group(1) if '{stage}' in replacement else '0'
            return match.expand(replacement.replace('{stage}', str(int(number) - first)))
    return None


def _as_map(table: Tensor, expected: Tensor) -> Tensor:
    """Reshape positions, absolute (1, N, C) or relative (offsets, heads), to a map (1, C, H, W)."""
    table = table.unsqueeze(0) if table.dim() == 2 else table
    if table.dim() != 3 or table.numel() != expected.numel() or table.shape[-1] != expected.shape[1]:
        return table
    return table.transpose(1, 2).reshape(expected.shape)
