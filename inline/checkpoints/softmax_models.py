"""Conversion of plain DeiT, ViT, PVT, Swin and CSwin weights to our backbones with softmax attention.

The sizes of the model are read from the shapes of the weights. Every tensor is used or listed as ignored with
a reason, and every tensor of our backbone is filled; anything else is an error.
"""

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from inline.checkpoints.layouts import PREFIX, Layout, find_layout, find_unsupported
from inline.checkpoints.official import (
    BLOCK_PATHS,
    DERIVED,
    FAMILIES,
    Backbone,
    KeyMismatchError,
    rename_keys,
)
from inline.checkpoints.state_dict import StateDict, shorten
from inline.models.backbones.pvt import SR_RATIOS
from inline.models.mixers.registry import MixerConfig, MixersConfig
from inline.models.mixers.softmax import SoftmaxMixer
from inline.utils.errors import UserError

# Number of heads by the widths of all stages (DeiT: blocks). Only Swin's weights determine it.
_NUM_HEADS: dict[str, dict[tuple[int, ...], tuple[int, ...]]] = {
    'deit': {
        (192,) * 12: (3,),
        (384,) * 12: (6,),
        (768,) * 12: (12,),
        (1024,) * 24: (16,),
        (1280,) * 32: (16,),
    },
    'pvt': {(64, 128, 320, 512): (1, 2, 5, 8)},
    'cswin': {
        (64, 128, 256, 512): (2, 4, 8, 16),
        (96, 192, 384, 768): (4, 8, 16, 32),
        (144, 288, 576, 1152): (6, 12, 24, 24),
    },
}
# The key of a checkpoint's ``meta`` for the config of the backbone that weights were converted for.
CONVERTED_KEY = 'converted_backbone'
_NO_CLASS_TOKEN = 'belongs to the class token, which our PVT does not have'


@dataclass(frozen=True)
class SoftmaxModel:
    """A backbone with softmax attention in every block, as inferred from its weights.

    Args:
        layout: The names that the weights had.
        arch: Sizes, as the backbone's ``arch``.
        num_heads: Heads of each stage (DeiT: of all blocks); None for a size that is not a published one.
        img_size: Image size of the position tables, or the one that gives the windows.
        mixers: The backbone's ``mixers``.
        options: Other arguments of the backbone.
    """

    layout: Layout
    arch: dict[str, Any]
    num_heads: tuple[int, ...] | None
    img_size: int
    mixers: MixersConfig
    options: dict[str, Any]

    @property
    def family(self) -> str:
        return self.layout.family

    def config(self) -> dict[str, Any]:
        """Return the backbone as in a config file; without ``num_heads`` if they are not known."""
        heads: dict[str, Any] = {}
        if self.num_heads is not None:
            heads['num_heads'] = self.num_heads[0] if self.family == 'deit' else self.num_heads
        kind = f'inline.{FAMILIES[self.family].__name__}'
        arch = {**self.arch, **heads}
        return {
            'type': kind, 'arch': arch, 'img_size': self.img_size, 'mixers': self.mixers, **self.options
        }  # fmt: skip

    def build(self) -> Backbone:
        """Build the backbone. If the heads are not known, only the shapes of its weights are right."""
        settings = self.config()
        # Stripes need an even number.
        any_number = 2 if self.family == 'cswin' else 1
        default = any_number if self.family == 'deit' else (any_number,) * len(self.arch['depths'])
        arch = {'num_heads': default, **settings.pop('arch')}
        del settings['type']
        return FAMILIES[self.family](arch, **settings)


@dataclass(frozen=True)
class Conversion:
    """Converted weights.

    Args:
        model: The backbone that the weights belong to.
        state_dict: Weights under our names: ``backbone.…`` and, of a classifier, ``head.fc.…``. Necks and
            heads of detectors and segmentors are unchanged.
        ignored: Tensors that were not used, with the reason.
    """

    model: SoftmaxModel
    state_dict: StateDict
    ignored: Mapping[str, str]

    def describe(self) -> list[str]:
        """Return the config of the backbone, and a line per reason why tensors were ignored."""
        lines = [f'backbone={self.model.config()}']
        if self.model.num_heads is None:
            lines.append(
                'num_heads is missing in arch: the weights do not determine it, use that of the original'
            )
        names = defaultdict(list)
        for name, reason in self.ignored.items():
            names[reason].append(name)
        ignored = (f'ignored: {shorten(group)} ({reason})' for reason, group in names.items())
        return [*lines, *ignored]


def convert_softmax(weights: StateDict) -> Conversion | None:
    """Convert the weights of a plain DeiT, ViT, PVT, Swin or CSwin; None if they are something else.

    Raises:
        UserError: If the weights belong to a related model that ours do not reproduce, or if a tensor is
            unknown, missing or has a wrong shape.
    """
    layout = find_layout(weights)
    unsupported = find_unsupported(weights)
    if layout is None:
        return None
    if unsupported is not None:
        raise UserError(f'{unsupported} has no counterpart among our models')
    has_prefix = any(name.startswith(PREFIX) for name in weights)
    own = {
        name: value for name, value in weights.items() if not has_prefix or name.startswith((PREFIX, 'head.'))
    }
    theirs, ignored = _official_names(own, layout)
    try:
        model = describe_model(theirs, layout)
        with torch.device('meta'):
            ours = model.build().state_dict()
        backbone = rename_keys(theirs, ours)
    except KeyMismatchError as error:
        raise UserError(f'it resembles {layout.title}, but: {shorten(error.problems)}') from error
    head = {name.replace('head.', 'head.fc.'): theirs[name] for name in theirs if name.startswith('head.')}
    # Neck and heads of detectors and segmentors are the toolboxes' own in our models too.
    others = {name: value for name, value in weights.items() if name not in own}
    state_dict = {f'{PREFIX}{name}': value for name, value in backbone.items()} | head | others
    return Conversion(model, state_dict, ignored)


def check_num_heads(model: nn.Module, meta: Mapping[str, Any], source: str) -> str:
    """Compare the number of heads of converted weights with that of a model.

    The shapes of weights do not depend on it: with a wrong number they load but give wrong features.

    Args:
        model: The model to load into.
        meta: Metadata of the checkpoint. Nothing is checked unless the weights were converted.
        source: Where the weights come from, for messages.

    Returns:
        A note for the log if the heads of another attention differ, else ''.

    Raises:
        UserError: If the heads of a block with softmax attention differ.
    """
    num_heads = _converted_heads(meta)
    differ = []
    for name, mixer in model.named_modules() if num_heads else ():
        match = re.search(r'(?:^|\.)(?:stages\.(\d+)\.)?blocks\.\d+\.mixer$', name)
        expected = dict(enumerate(num_heads)).get(int(match[1] or 0)) if match else None
        if expected is None or mixer.num_heads == expected:
            continue
        if isinstance(mixer, SoftmaxMixer):
            raise UserError(
                f'checkpoint {source!r} has {expected} heads in {name}, where the model has '
                f'{mixer.num_heads}: set num_heads in its arch to {_as_text(num_heads)}'
            )
        differ.append(name)
    return f'; its num_heads are {_as_text(num_heads)}, unlike {shorten(differ)}' if differ else ''


def describe_model(theirs: StateDict, layout: Layout) -> SoftmaxModel:
    """Read the sizes of a model from the shapes of its weights under the official names."""
    stages = _stages_of(theirs, layout.family)
    dims = tuple(_size(blocks[0], 'norm1.weight', 0) for blocks in stages)
    depths = tuple(len(blocks) for blocks in stages)
    ratios = tuple(
        _ratio(_size(blocks[0], 'mlp.fc1.weight', 0), dim) for blocks, dim in zip(stages, dims, strict=True)
    )
    describe = {
        'deit': _describe_deit,
        'pvt': _describe_pvt,
        'swin': _describe_swin,
        'cswin': _describe_cswin,
    }
    arch, img_size, mixers, options = describe[layout.family](theirs, [blocks[0] for blocks in stages])
    if layout.family == 'deit':
        arch |= {'embed_dims': dims[0], 'depth': depths[0], 'mlp_ratio': ratios[0]}
    else:
        arch |= {'embed_dims': dims, 'depths': depths, 'mlp_ratios': ratios}
    for mixer, blocks in zip(mixers, stages, strict=True):
        mixer |= _qkv_bias(blocks[0])
    channels = _size(theirs, _EMBEDDINGS[layout.family], 1)
    return SoftmaxModel(
        layout=layout,
        arch=arch,
        num_heads=_num_heads(layout.family, stages, dims, depths),
        img_size=img_size,
        mixers=mixers[0] if all(mixer == mixers[0] for mixer in mixers) else mixers,
        options=options | dict(layout.options) | ({} if channels == 3 else {'in_channels': channels}),
    )


Block = dict[str, Tensor]
# Sizes in addition to those of the blocks, image size, a mixer per stage, other options.
Description = tuple[dict[str, Any], int, list[MixerConfig], dict[str, Any]]
_EMBEDDINGS = {
    'deit': 'patch_embed.proj.weight',
    'pvt': 'patch_embed1.proj.weight',
    'swin': 'patch_embed.proj.weight',
    'cswin': 'stage1_conv_embed.0.weight',
}


# Each takes the tensors of a model and those of the first block of each stage.
def _describe_deit(theirs: StateDict, _: list[Block]) -> Description:
    patch = _size(theirs, 'patch_embed.proj.weight', 2)
    side = _square_side('pos_embed', _size(theirs, 'pos_embed', 1) - 1)
    return {'patch_size': patch}, side * patch, [{'type': 'Softmax'}], {'out_type': 'cls_token'}


def _describe_pvt(theirs: StateDict, blocks: list[Block]) -> Description:
    ratios = [_size(block, 'attn.sr.weight', 2) if 'attn.sr.weight' in block else 1 for block in blocks]
    mixers = [
        {'type': 'Softmax'} if SR_RATIOS[i : i + 1] == (ratio,) else {'type': 'Softmax', 'sr_ratio': ratio}
        for i, ratio in enumerate(ratios)
    ]
    return {}, 4 * _square_side('pos_embed1', _size(theirs, 'pos_embed1', 1)), mixers, {}


def _describe_swin(theirs: StateDict, blocks: list[Block]) -> Description:
    table = 'attn.relative_position_bias_table'
    windows = [(_square_side(table, _size(block, table, 0)) + 1) // 2 for block in blocks]
    # The default window of an image size is a 32nd of it.
    mixers = [{'type': 'Softmax'} | ({} if w == max(windows) else {'window_size': w}) for w in windows]
    return {}, 32 * max(windows), mixers, {'out_indices': _normed_stages(theirs, 0)}


def _describe_cswin(theirs: StateDict, blocks: list[Block]) -> Description:
    mixers: list[MixerConfig] = []
    for i, block in enumerate(blocks):
        has_stripes = 'attns.1.get_v.weight' in block
        if has_stripes and i > 2:
            raise KeyMismatchError([f'stage{i + 1} has stripes: stage{i + 1}.0.attns.1.get_v.weight'])
        mixers.append({'type': 'Softmax'} | ({} if has_stripes or i > 2 else {'split_size': None}))
    # Stripe widths of the published models at 224 pixels; they cannot be inferred from the weights.
    return {}, 224, mixers, {'out_indices': _normed_stages(theirs, 1)}


def _official_names(weights: StateDict, layout: Layout) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of a backbone and its linear classifier under official names, and those ignored."""
    theirs: dict[str, Tensor] = {}
    originals: dict[str, str] = {}
    ignored: dict[str, str] = {}
    for original, value in weights.items():
        name = layout.rename(original.removeprefix(PREFIX))
        if DERIVED.fullmatch(name):
            ignored[original] = 'computed from the sizes'
            continue
        if name in theirs:
            raise UserError(f'{original} and {originals[name]} are the same tensor of a {layout.title}')
        theirs[name] = _official_value(layout, name, value)
        originals[name] = original
    if layout.family == 'swin' and 'layers.0.downsample.norm.weight' not in theirs:
        # timm: the downsampling belongs to the stage after it.
        theirs = {
            re.sub(
                r'(?<=^layers\.)[1-9](?=\.downsample\.)', lambda match: str(int(match[0]) - 1), name
            ): value
            for name, value in theirs.items()
        }
    for name, reason in _unused(theirs, layout.family).items():
        ignored[originals[name]] = reason
        del theirs[name]
    last = theirs.get('pos_embed4')
    if layout.family == 'pvt' and last is not None and last.dim() == 3 and _is_square(last.shape[1] - 1):
        theirs['pos_embed4'] = last[:, 1:]
        ignored[f'{originals["pos_embed4"]}[:, :1]'] = _NO_CLASS_TOKEN
    return theirs, ignored


def _official_value(layout: Layout, name: str, value: Tensor) -> Tensor:
    """Return a tensor of mmpretrain or mmdet in the shape and order of the official repository."""
    is_merging = layout.merges_channels_first and '.downsample.' in name
    if is_merging and value.dim() > 0 and value.shape[-1] % 4 == 0:
        # (channel, row, column) of each merged patch → (column, row, channel).
        return value.unflatten(-1, (-1, 2, 2)).transpose(-3, -1).flatten(-3)
    if '.mlp.' in name and value.dim() == 4 and value.shape[2:] == (1, 1):
        return value.flatten(1)
    return value


def _unused(theirs: Mapping[str, Tensor], family: str) -> dict[str, str]:
    """Return the tensors of a classifier that ours do not have, with the reason."""
    head = {name for name in theirs if name.startswith(('head.', 'pre_logits.'))}
    if family == 'pvt':
        of_token = (name for name in theirs if name == 'cls_token' or name.startswith('norm.'))
        return dict.fromkeys([*of_token, *sorted(head)], _NO_CLASS_TOKEN)
    if head == {'head.weight', 'head.bias'} and theirs['head.weight'].dim() == 2:
        return {}
    return dict.fromkeys(sorted(head), 'the classifier is not one linear layer')


def _stages_of(theirs: StateDict, family: str) -> list[list[Block]]:
    """Return the tensors of each block, without its path, as a list per stage."""
    path, _ = BLOCK_PATHS[family]
    found: dict[str, dict[str, Block]] = defaultdict(lambda: defaultdict(dict))
    for name, value in theirs.items():
        match = re.fullmatch(path, name)
        if match:
            stage, block, rest = match.groups()
            found[stage][block][rest] = value
    if not found:
        raise KeyMismatchError(['there are no blocks'])
    return [list(found[stage].values()) for stage in sorted(found)]


def _num_heads(
    family: str, stages: list[list[Block]], dims: tuple[int, ...], depths: tuple[int, ...]
) -> tuple[int, ...] | None:
    if family == 'swin':
        return tuple(_size(blocks[0], 'attn.relative_position_bias_table', 1) for blocks in stages)
    return _NUM_HEADS[family].get(dims * depths[0] if family == 'deit' else dims)


def _normed_stages(theirs: StateDict, first: int) -> tuple[int, ...]:
    """Return the stages with an output norm; a classifier has one after the last stage."""
    numbers = [re.fullmatch(r'norm(\d)\.weight', name) for name in theirs]
    return tuple(sorted(int(match[1]) - first for match in numbers if match)) or (3,)


def _qkv_bias(block: Block) -> MixerConfig:
    has_bias = any(name.endswith(('qkv.bias', 'attn.q.bias')) for name in block)
    return {} if has_bias else {'qkv_bias': False}


def _size(tensors: Mapping[str, Tensor], name: str, axis: int) -> int:
    if name not in tensors:
        raise KeyMismatchError([f'missing: {name}'])
    shape = tensors[name].shape
    if len(shape) <= axis or not shape[axis]:
        raise KeyMismatchError([f'{name}: shape {tuple(shape)}'])
    return shape[axis]


def _ratio(hidden: int, dim: int) -> float:
    """Return the MLP ratio for which ``int(dim * ratio)`` is `hidden`."""
    return hidden // dim if hidden % dim == 0 else (hidden + 0.5) / dim


def _is_square(number: int) -> bool:
    return number > 0 and math.isqrt(number) ** 2 == number


def _square_side(name: str, number: int) -> int:
    if not _is_square(number):
        raise KeyMismatchError([f'{name}: {number} positions are not a square map'])
    return math.isqrt(number)


def _converted_heads(meta: Mapping[str, Any]) -> list[int]:
    """Return the heads of each stage from the metadata of converted weights; [] if there are none."""
    backbone = meta.get(CONVERTED_KEY)
    arch = backbone.get('arch') if isinstance(backbone, Mapping) else None
    heads = arch.get('num_heads') if isinstance(arch, Mapping) else None
    listed: list[Any] = list(heads) if isinstance(heads, list | tuple) else [heads]
    return listed if all(isinstance(number, int) for number in listed) else []


def _as_text(num_heads: Sequence[int]) -> str:
    return str(num_heads[0]) if len(num_heads) == 1 else str(tuple(num_heads))
