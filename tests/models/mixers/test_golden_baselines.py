"""Baseline mixers against the authors' modules: outputs and gradients in float64 with the same weights.

A file of tests/data/golden/baselines holds tokens ``x``, the authors' parameters ``param:NAME``, the output
``y``, a cotangent ``g``, the gradient ``grad_x`` of sum(y·g), and the source of the module in ``meta``.
Values that float32 represents exactly are stored as float32.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from inline.models.mixers import AttentionMixer, build_mixer

FOLDER = Path(__file__).parents[2] / 'data' / 'golden' / 'baselines'
PARTS = ('weight', 'bias')
Weights = dict[str, Tensor]


def mixer_output(mixer: AttentionMixer, x: Tensor, hw: tuple[int, int]) -> Tensor:
    return mixer(x, hw)


def plus_input(mixer: AttentionMixer, x: Tensor, hw: tuple[int, int]) -> Tensor:
    """The authors' module includes the residual connection, which is part of the block here."""
    return x + mixer(x, hw)


@dataclass(frozen=True)
class Golden:
    """How to build the mixer of a golden file.

    Args:
        mixer: Config of the mixer.
        convert: Returns the weights under our names, from those under the authors' names.
        output: Returns what the authors' module returns.
        heads: Number of heads.
    """

    mixer: dict[str, Any]
    convert: Callable[[Weights], Weights]
    output: Callable[[AttentionMixer, Tensor, tuple[int, int]], Tensor] = field(default=mixer_output)
    heads: int = 2


def join(weights: Weights, names: tuple[str, ...], ours: str) -> Weights:
    """Join the authors' linear layers along the output channels; a 1×1 convolution is a linear layer."""
    return {
        f'{ours}.{part}': torch.cat(
            [weights[f'{name}.{part}'].flatten(1 if part == 'weight' else 0) for name in names]
        )
        for part in PARTS
        if f'{names[0]}.{part}' in weights
    }


def efficient(weights: Weights) -> Weights:
    return {
        **join(weights, ('queries', 'keys', 'values'), 'qkv'),
        **join(weights, ('reprojection',), 'proj'),
    }


def sequence_model(weights: Weights) -> Weights:
    """cosFormer and TransNormer."""
    found = {**join(weights, ('q_proj', 'k_proj', 'v_proj'), 'qkv'), **join(weights, ('out_proj',), 'proj')}
    if 'urpe.theta' in weights:
        found |= {'lrpe.theta': weights['urpe.theta'].flatten(), 'lrpe.reflection': weights['urpe.v']}
    return found


def flatten_pvt(weights: Weights) -> Weights:
    return {
        **join(weights, ('q', 'kv') if 'q.weight' in weights else ('qkv',), 'qkv'),
        **join(weights, ('proj',), 'proj'),
        **{f'conv.{part}': weights[f'dwc.{part}'] for part in PARTS},
        'scale': weights['scale'].flatten(),
    }


def flatten_with_position(height: int, width: int) -> Callable[[Weights], Weights]:
    def convert(weights: Weights) -> Weights:
        table = weights['positional_encoding'].transpose(1, 2).unflatten(2, (height, width))
        layers = {'sr': 'reduction.proj', 'norm': 'reduction.norm'} if 'sr.weight' in weights else {}
        reduction = {
            f'{ours}.{p}': weights[f'{theirs}.{p}'] for theirs, ours in layers.items() for p in PARTS
        }
        return {**flatten_pvt(weights), **reduction, 'key_position.weight': table}

    return convert


def mlla(weights: Weights) -> Weights:
    """The authors' attention has neither a value projection nor an output projection."""
    eye = torch.eye(32, dtype=torch.float64)
    return {
        'qkv.weight': torch.cat([weights['qk.weight'], eye]),
        'qkv.bias': torch.cat([weights['qk.bias'], torch.zeros(32)]),
        **{f'lepe.conv.{part}': weights[f'lepe.{part}'] for part in PARTS},
        'proj.weight': eye,
        'proj.bias': torch.zeros(32),
    }


def mlla_gated(weights: Weights) -> Weights:
    names = {
        'in_proj': 'in_proj',
        'act_proj': 'gate.0',
        'dwc': 'conv',
        'attn.qk': 'qkv',
        'attn.lepe': 'lepe.conv',
        'out_proj': 'proj',
    }
    return {f'{ours}.{part}': weights[f'{theirs}.{part}'] for theirs, ours in names.items() for part in PARTS}


def same_names(weights: Weights) -> Weights:
    return weights


def nystrom_lra(weights: Weights) -> Weights:
    return {
        **join(weights, ('W_q', 'W_k', 'W_v'), 'qkv'),
        **join(weights, ('ff',), 'proj'),
        'conv.weight': weights['attn.conv.weight'],
    }


def plus_values(mixer: AttentionMixer, x: Tensor, hw: tuple[int, int]) -> Tensor:
    """The authors' T2T block adds the values where other blocks add their input."""
    return mixer.qkv(x).chunk(3, dim=-1)[2] + mixer(x, hw)


LRA = {'type': 'Nystrom', 'num_landmarks': 8, 'conv_size': 5, 'conv_axes': 'sequence'}
T2T = Golden({'type': 'Nystrom', 'num_landmarks': 8}, same_names, plus_values, heads=1)
# One line per file; several files may use one mixer.
GOLDEN: dict[str, Golden] = {
    'cosformer': Golden({'type': 'CosFormer'}, sequence_model),
    'efficient': Golden({'type': 'Efficient'}, efficient, plus_input, heads=4),
    'flatten_pvt': Golden({'type': 'FLatten', 'position_size': (6, 5)}, flatten_with_position(6, 5)),
    'flatten_pvt_sr2': Golden(
        {'type': 'FLatten', 'position_size': (4, 3), 'sr_ratio': 2}, flatten_with_position(4, 3)
    ),
    'flatten_swin': Golden(
        {'type': 'FLatten', 'position_size': 7, 'window_size': 7}, flatten_with_position(7, 7)
    ),
    'mlla': Golden({'type': 'MLLA'}, mlla),
    'mlla_gated_mixer': Golden({'type': 'MLLAGated'}, mlla_gated),
    'mlla_rect': Golden({'type': 'MLLA'}, mlla),
    'nystrom_lra_exact': Golden(LRA, nystrom_lra),
    'nystrom_lra_original': Golden({**LRA, 'inverse_init': 'batch'}, nystrom_lra),
    'nystrom_t2t_divisible': T2T,
    'nystrom_t2t_indivisible': T2T,
    'transnormer_t1': Golden({'type': 'TransNormer', 'variant': 'T1', 'lrpe': False}, sequence_model),
    'transnormer_t1_lrpe': Golden({'type': 'TransNormer', 'variant': 'T1'}, sequence_model),
    'transnormer_t2': Golden({'type': 'TransNormer', 'variant': 'T2', 'lrpe': False}, sequence_model),
    'transnormer_t2_lrpe': Golden({'type': 'TransNormer', 'variant': 'T2'}, sequence_model),
}


def compute(name: str) -> dict[str, tuple[Tensor, Tensor]]:
    """Return our output and input gradient, each with the golden one."""
    golden, file = GOLDEN[name], np.load(FOLDER / f'{name}.npz')
    arrays = {key: torch.from_numpy(file[key]).double() for key in file if key != 'meta'}
    meta = json.loads(str(file['meta']))
    x = arrays['x'].requires_grad_()
    mixer = build_mixer(golden.mixer, x.shape[-1], golden.heads).double().eval()
    theirs = {key.removeprefix('param:'): value for key, value in arrays.items() if key.startswith('param:')}
    mixer.load_state_dict(golden.convert(theirs))
    y = golden.output(mixer, x, (meta['height'], meta['width']))
    (gradient,) = torch.autograd.grad((y * arrays['g']).sum(), x)
    return {'y': (y, arrays['y']), 'grad_x': (gradient, arrays['grad_x'])}


@pytest.mark.parametrize('name', GOLDEN)
def test_baseline_matches_the_authors_module(name: str) -> None:
    for key, (ours, theirs) in compute(name).items():
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9, msg=lambda m, key=key: f'{key}: {m}')


def test_every_file_of_these_authors_is_tested() -> None:
    authors = {name.split('_')[0] for name in GOLDEN}
    files = {path.stem for path in FOLDER.glob('*.npz')}
    assert {name for name in files if name.split('_')[0] in authors} == set(GOLDEN)
