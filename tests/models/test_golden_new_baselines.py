"""Agent Attention, PolaFormer, RALA, MALA, MHLA and Circulant Attention against their authors' code.

Each file of tests/data/golden/baselines/ holds the random parameters of an attention module of the authors,
an input, and what the module computed from it in float64: output, gradient and intermediate results.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inline.models.mixers import AttentionMixer, MHLAMixer, build_mixer, split_heads
from inline.ops import softmax_attention
from inline.ops.agent_attention import pool_agents
from inline.ops.circulant_attention import shift_weights
from inline.ops.kernels import apply_kernel
from inline.ops.mhla_attention import TRANSFORMS, initial_mixing
from inline.ops.rala_attention import key_importance

FOLDER = Path(__file__).parents[1] / 'data' / 'golden' / 'baselines'
ATOL = 1e-9
Arrays = dict[str, Tensor]
Meta = dict[str, Any]


def load(name: str) -> tuple[Arrays, Arrays, Meta]:
    """Return the parameters and the other arrays of a file, and its description."""
    file = np.load(FOLDER / f'{name}.npz')
    arrays = {key: torch.from_numpy(file[key]) for key in file if key != 'meta'}
    parameters = {key[6:]: arrays.pop(key) for key in list(arrays) if key.startswith('param:')}
    return parameters, arrays, json.loads(str(file['meta']))


def take(parameters: Arrays, *names: tuple[str, str]) -> Arrays:
    """Rename layers with weight and bias: (theirs, ours). Layers that the file lacks are left out."""
    return {
        f'{ours}.{kind}': parameters[f'{theirs}.{kind}']
        for theirs, ours in names
        for kind in ('weight', 'bias')
        if f'{theirs}.{kind}' in parameters
    }


def split_rows(parameters: Arrays, layer: str, *targets: tuple[str, int]) -> Arrays:
    """Split the output channels of a linear layer: (our layer, number of parts of C channels) in order."""
    sizes = [parts * parameters[f'{layer}.weight'].shape[1] for _, parts in targets]
    found = {}
    for kind in ('weight', 'bias'):
        # Weights of 1×1 convolutions have two more axes.
        rows = parameters[f'{layer}.{kind}'].flatten(int(kind == 'weight')).split(sizes)
        found |= {f'{ours}.{kind}': part for (ours, _), part in zip(targets, rows, strict=True)}
    return found


def make_agent(parameters: Arrays, meta: Meta) -> tuple[Meta, Arrays]:
    options = {
        'type': 'Agent',
        'num_agents': meta['hyper_parameters']['agent_num'],
        'bias_size': meta['height'],
        'class_token': 'ac_bias' in parameters,
        'sr_ratio': meta['hyper_parameters'].get('sr_ratio', 1),
    }
    weights = take(
        parameters,
        ('qkv', 'qkv'),
        ('proj', 'proj'),
        ('dwc', 'lepe.conv'),
        ('sr', 'reduction.proj'),
        ('norm', 'reduction.norm'),
    )
    if 'q.weight' in parameters:
        for kind in ('weight', 'bias'):
            weights[f'qkv.{kind}'] = torch.cat([parameters[f'q.{kind}'], parameters[f'kv.{kind}']])
    tables = {
        'key_bias.blocks': parameters['an_bias'][None],
        'key_bias.rows': parameters['ah_bias'],
        'key_bias.columns': parameters['aw_bias'],
        'query_bias.blocks': parameters['na_bias'][None],
        # Agents last → (1, heads, agents, rows, columns).
        'query_bias.rows': parameters['ha_bias'].movedim(-1, 2),
        'query_bias.columns': parameters['wa_bias'].movedim(-1, 2),
    }
    weights |= {f'{key}.weight': table.flatten(1, 2) for key, table in tables.items()}
    if options['class_token']:
        weights['key_bias.class_token'] = parameters['ac_bias'][0]
        weights['query_bias.class_token'] = parameters['ca_bias'][0].transpose(1, 2)
    return options, weights


def make_polaformer(parameters: Arrays, meta: Meta) -> tuple[Meta, Arrays]:
    ratio = meta['hyper_parameters'].get('sr_ratio', 1)
    options = {'type': 'PolaFormer', 'sr_ratio': ratio}
    weights = take(
        parameters, ('proj', 'proj'), ('dwc', 'conv'), ('sr', 'reduction.proj'), ('norm', 'reduction.norm')
    )
    weights |= {'power': parameters['power'].flatten(), 'scale': parameters['scale'].flatten()}
    keys = (meta['height'] // ratio, meta['width'] // ratio)
    weights['position.weight'] = parameters['positional_encoding'].transpose(1, 2).unflatten(2, keys)
    if 'qkvg.weight' in parameters:
        return options, weights | split_rows(parameters, 'qkvg', ('qkv', 3), ('gate', 1))
    parts = split_rows(parameters, 'qg', ('q', 1), ('gate', 1))
    for kind in ('weight', 'bias'):
        parts[f'qkv.{kind}'] = torch.cat([parts.pop(f'q.{kind}'), parameters[f'kv.{kind}']])
    return options, weights | parts


def make_rotary(kind: str) -> Callable[[Arrays, Meta], tuple[Meta, Arrays]]:
    def make(parameters: Arrays, meta: Meta) -> tuple[Meta, Arrays]:
        weights = take(parameters, ('attn.lepe', 'conv'))
        weights |= split_rows(parameters, 'attn.qkvo', ('qkv', 3), ('gate', 1))
        weights |= split_rows(parameters, 'attn.proj', ('proj', 1))
        return {'type': kind, 'conv_size': meta['hyper_parameters']['lepe_kernel']}, weights

    return make


def make_mhla(parameters: Arrays, meta: Meta) -> tuple[Meta, Arrays]:
    weights = take(parameters, ('to_qkv', 'qkv'), ('to_out.0', 'proj'), ('lepe', 'conv'))
    weights |= {'q_norm': parameters['q_norm.weight'], 'k_norm': parameters['k_norm.weight']}
    weights['mixing'] = parameters['piece_attn.conv.weight'][:, :, 0, 0]
    return {'type': 'MHLA', 'grid': meta['height'] // meta['hyper_parameters']['window_side']}, weights


def make_circulant(parameters: Arrays, _: Meta) -> tuple[Meta, Arrays]:
    return {'type': 'Circulant'}, take(parameters, ('qkv', 'qkv'), ('gate.0', 'gate.0'), ('proj', 'proj'))


MAKERS: dict[str, Callable[[Arrays, Meta], tuple[Meta, Arrays]]] = {
    'agent': make_agent,
    'polaformer': make_polaformer,
    'rala': make_rotary('RALA'),
    'mala': make_rotary('MALA'),
    'mhla': make_mhla,
    'circulant': make_circulant,
}
NAMES = sorted(path.stem for path in FOLDER.glob('*.npz') if path.stem.split('_')[0] in MAKERS)


def build(name: str) -> tuple[AttentionMixer, Callable[[Tensor], Tensor], Arrays, Meta]:
    """Return the mixer with the authors' weights, what precedes it, the arrays and the description."""
    parameters, arrays, meta = load(name)
    options, weights = MAKERS[name.split('_')[0]](parameters, meta)
    heads = meta['hyper_parameters'].get('num_heads', 2)
    mixer = build_mixer(options, meta['channels'], heads).double().eval()
    if 'position.weight' in weights:
        # The authors' table has the size of the map. Loading it into one of another size would interpolate.
        mixer.position.weight = nn.Parameter(torch.empty_like(weights['position.weight']))
    mixer.load_state_dict(weights)
    if name != 'mhla':
        return mixer, lambda x: x, arrays, meta
    # The authors' norm is inside of their attention module, ours is the norm of the block.
    norm = parameters['norm.weight'], parameters['norm.bias']
    return mixer, lambda x: F.layer_norm(x, (x.shape[-1],), *norm, eps=1e-5), arrays, meta


def intermediates(mixer: AttentionMixer, x: Tensor, hw: tuple[int, int], names: set[str]) -> Arrays:
    """Return those intermediate results of the authors that are in ``names``."""
    (inputs,) = mixer.partition_inputs(x, hw)
    heads = mixer.num_heads
    # MHLA's queries and keys are normalised in its projection; the authors' file has them before that.
    is_mhla = isinstance(mixer, MHLAMixer)
    q, k = mixer.qkv(x).chunk(3, dim=-1)[:2] if is_mhla else (inputs.q, inputs.k)
    found = {'q': q, 'k': k, 'v': inputs.v}
    if 'attention_weights' not in names:
        found = {name: split_heads(t, heads) for name, t in found.items()}
    found['attn_out'] = mixer.attend(inputs)
    if mixer.gate is not None:
        found['gate'] = mixer.gate(x)
    if 'key_weights' in names:
        found['key_weights'] = key_importance(*(apply_kernel('elu', found[t]) for t in ('q', 'k'))).squeeze(
            -1
        )
    if 'attention_weights' in names:
        maps = shift_weights(split_heads(q, heads), split_heads(k, heads), hw)
        found['attention_weights'] = maps.flatten(3).flatten(1, 2).transpose(1, 2)
    if 'agents' in names:
        found['agents'] = pool_agents(found['q'], hw, mixer.num_agents).q
        bias = mixer._biases(inputs, found['q'])[0]
        found['agent_values'] = softmax_attention(found['agents'], found['k'], found['v'], bias=bias)
    return found


@pytest.mark.parametrize('name', NAMES)
def test_output_and_gradient_match_the_authors_code(name: str) -> None:
    mixer, prepare, arrays, meta = build(name)
    x = arrays['x'].clone().requires_grad_()
    y = mixer(prepare(x), (meta['height'], meta['width']))
    torch.testing.assert_close(y, arrays['y'], rtol=0, atol=ATOL)
    (gradient,) = torch.autograd.grad((y * arrays['g']).sum(), x)
    torch.testing.assert_close(gradient, arrays['grad_x'], rtol=0, atol=ATOL)


@pytest.mark.parametrize('name', NAMES)
def test_intermediate_results_match_the_authors_code(name: str) -> None:
    mixer, prepare, arrays, meta = build(name)
    names = {key for key in arrays if key not in ('x', 'y', 'g', 'grad_x') and not key.startswith('init:')}
    found = intermediates(mixer, prepare(arrays['x']), (meta['height'], meta['width']), names)
    assert set(found) == names
    for key in sorted(names):
        torch.testing.assert_close(
            found[key], arrays[key], rtol=0, atol=ATOL, msg=lambda m, key=key: f'{key}: {m}'
        )


@pytest.mark.parametrize('name', NAMES)
def test_weights_applied_to_the_values_match_the_authors_code(name: str) -> None:
    mixer, prepare, arrays, meta = build(name)
    (inputs,) = mixer.partition_inputs(prepare(arrays['x']), (meta['height'], meta['width']))
    out = mixer.weights(inputs) @ split_heads(inputs.v, inputs.num_heads)
    torch.testing.assert_close(out.transpose(1, 2).flatten(2), arrays['attn_out'], rtol=0, atol=ATOL)


@pytest.mark.parametrize('transform', TRANSFORMS)
def test_initial_mixing_matrix_of_mhla_matches_the_authors_code(transform: str) -> None:
    _, arrays, _ = load('mhla')
    expected = arrays[f'init:piece_attn.conv.weight:{transform}'][:, :, 0, 0]
    torch.testing.assert_close(initial_mixing(4, transform, sigma=1), expected, rtol=0, atol=ATOL)


def test_every_method_has_a_golden_file() -> None:
    assert {name.split('_')[0] for name in NAMES} == set(MAKERS)
    assert len(NAMES) == 11
