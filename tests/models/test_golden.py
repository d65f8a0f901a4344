"""Stage outputs and logits against those of the authors' code with the same weights.

If INLINE_GOLDEN_DIR is set, the files of that folder are checked as well.
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from inline.checkpoints.official import FAMILIES, rename_keys

OWN = Path(__file__).parents[1] / 'data' / 'golden'
FOLDERS = [OWN, *([Path(os.environ['INLINE_GOLDEN_DIR'])] if os.environ.get('INLINE_GOLDEN_DIR') else [])]
FILES = sorted(path for folder in FOLDERS for path in folder.glob('*.npz'))
Meta = dict[str, Any]


def mixers_of(meta: Meta, depths: list[int], inline: list[dict], softmax: list[dict]) -> list[list[dict]]:
    """Return mixer configs per block from the authors' code: I, S, or M for mixed with the number of I."""
    letters = meta.get('attn_type') or 'IIII'
    mixed = int(letters[4:] or 0)
    counts = [{'I': depth, 'S': 0, 'M': mixed}[letters[i]] for i, depth in enumerate(depths)]
    bias = {'qkv_bias': meta.get('qkv_bias', True)}
    return [
        [{**inline[i], **bias}] * min(count, depth) + [{**softmax[i], **bias}] * (depth - count)
        for i, (depth, count) in enumerate(zip(depths, counts, strict=True))
    ]


def describe_pvt(meta: Meta) -> Meta:
    softmax = [{'type': 'Softmax', 'sr_ratio': ratio} for ratio in meta.get('sr_ratios', (8, 4, 2, 1))]
    mixers = mixers_of(meta, meta['depths'], [{'type': 'InLine'}] * 4, softmax)
    arch = {key: meta[key] for key in ('embed_dims', 'depths', 'num_heads', 'mlp_ratios')}
    return {'arch': arch, 'img_size': meta['img_size'], 'mixers': mixers}


def pyramid_arch(meta: Meta, depths: list[int]) -> Meta:
    return {
        'embed_dims': [meta['embed_dim'] * 2**i for i in range(4)],
        'depths': depths,
        'num_heads': meta['num_heads'],
        'mlp_ratios': [meta.get('mlp_ratio', 4)] * 4,
    }


def describe_swin(meta: Meta) -> Meta:
    window = meta['window_size']
    softmax = {'type': 'Softmax', 'window_size': max(7, window // 8)}
    mixers = mixers_of(meta, meta['depths'], [{'type': 'InLine', 'window_size': window}] * 4, [softmax] * 4)
    arch = pyramid_arch(meta, meta['depths'])
    return {'arch': arch, 'img_size': meta['img_size'], 'mixers': mixers}


def describe_cswin(meta: Meta) -> Meta:
    splits = [*meta['split_size'][:3], None]
    softmax = [{'type': 'Softmax', 'split_size': split} for split in splits]
    mixers = mixers_of(meta, meta['depth'], [{'type': 'InLine'}] * 4, softmax)
    arch = pyramid_arch(meta, meta['depth'])
    return {'arch': arch, 'img_size': meta['img_size'], 'mixers': mixers}


def describe_deit(meta: Meta) -> Meta:
    arch = {
        'embed_dims': meta['embed_dim'],
        'depth': meta['depth'],
        'num_heads': meta['num_heads'],
        'patch_size': meta['patch_size'],
        'mlp_ratio': meta.get('mlp_ratio', 4),
    }
    mixer = {'type': 'InLine', 'qkv_bias': meta.get('qkv_bias', True)}
    return {'arch': arch, 'img_size': meta['img_size'], 'mixers': mixer}


# Convert the metadata of a golden file to the arguments of the backbone.
DESCRIBED = {'pvt': describe_pvt, 'swin': describe_swin, 'cswin': describe_cswin, 'deit': describe_deit}
OPTIONS: dict[str, Meta] = {
    'swin': {'out_indices': (3,)},
    'cswin': {'out_indices': (3,)},
    'deit': {'out_type': 'cls_token'},
}


def compute(path: Path, dtype: torch.dtype) -> dict[str, tuple[Tensor, Tensor]]:
    """Return our output and the golden one for each output of the file."""
    golden = np.load(path)
    meta = json.loads(bytes(golden['meta']))
    theirs = {key[2:]: torch.from_numpy(golden[key]) for key in golden if key.startswith('w/')}
    theirs = {key: value.to(dtype) if value.is_floating_point() else value for key, value in theirs.items()}
    head = [theirs.pop('head.weight'), theirs.pop('head.bias')]
    family = meta['family']
    model = FAMILIES[family](**DESCRIBED[family](meta), **OPTIONS.get(family, {})).to(dtype).eval()
    model.load_state_dict(rename_keys(theirs, model.state_dict()))
    tokens: dict[str, Tensor] = {}

    def keep(name: str, block: nn.Module) -> None:
        block.register_forward_hook(lambda *args: tokens.__setitem__(name, args[2]))

    if meta['family'] == 'deit':
        keep('tokens', model.blocks[-1])
    else:
        for i, stage in enumerate(model.stages, start=1):
            keep(f'stage{i}', stage.blocks[-1])
    with torch.no_grad():
        features = model(torch.from_numpy(golden['x']).to(dtype))[-1]
    pooled = features.mean(dim=(2, 3)) if features.dim() == 4 else features
    tokens['logits'] = pooled @ head[0].T + head[1]
    outputs = {key[2:] for key in golden if key.startswith('y/')}
    assert outputs == set(tokens)
    return {name: (tokens[name], torch.from_numpy(golden[f'y/{name}'])) for name in sorted(outputs)}


@pytest.mark.parametrize('path', FILES, ids=lambda path: path.stem)
def test_outputs_match_the_authors_code_in_float64(path: Path) -> None:
    for name, (ours, theirs) in compute(path, torch.float64).items():
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9, msg=lambda m, name=name: f'{name}: {m}')


@pytest.mark.parametrize('path', FILES, ids=lambda path: path.stem)
def test_outputs_match_the_authors_code_in_float32(path: Path) -> None:
    for name, (ours, theirs) in compute(path, torch.float32).items():
        torch.testing.assert_close(
            ours.double(), theirs, rtol=0, atol=1e-5, msg=lambda m, name=name: f'{name}: {m}'
        )


def test_every_family_has_a_golden_file() -> None:
    families = {json.loads(bytes(np.load(path)['meta']))['family'] for path in OWN.glob('*.npz')}
    assert families == set(DESCRIBED)
