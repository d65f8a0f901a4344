"""Mutated configs: either the error is reported in one line, or the model runs as configured."""

import copy
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from mmengine.config import Config
from mmengine.registry import MODELS

from inline.engine.config import check_config, load_config
from inline.engine.config_components import check_inline_component
from inline.utils.errors import UserError
from tests.conftest import ROOT
from tests.fuzz import PYRAMID, Mutant, base_configs, mutants, run_config_mutants

FIXED = settings(deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow])


def run(config: dict[str, Any]) -> None:
    """Build a backbone, run it on an image and check the shapes of its outputs."""
    torch.manual_seed(0)
    model = MODELS.build(config).eval()
    height, width = 32, 40
    with torch.no_grad():
        outs = model(torch.randn(1, config.get('in_channels', 3), height, width))
    assert len(outs) == len(model.out_indices)
    arch = config.get('arch', 'tiny')
    for out, i in zip(outs, model.out_indices, strict=True):
        if config['type'] == 'inline.InLineDeiT':
            stride = 16 if isinstance(arch, str) else arch.get('patch_size', 16)
            dim = model.dims[0] if isinstance(arch, str) else arch['embed_dims']
        else:
            stride = 4 * 2**i
            dim = model.dims[i] if isinstance(arch, str) else arch['embed_dims'][i]
        assert out.isfinite().all()
        if config.get('out_type') == 'cls_token':
            assert out.shape == (1, dim)
        else:
            assert out.shape == (1, dim, -(-height // stride), -(-width // stride))


@settings(FIXED, max_examples=100)
@given(base_configs())
def test_unmutated_configs_run(config: dict[str, Any]) -> None:
    run(config)


@pytest.mark.slow
@settings(FIXED, max_examples=500)
@given(mutants())
def test_a_mutated_backbone_runs_or_is_rejected_in_one_line(mutant: Mutant) -> None:
    try:
        check_inline_component(mutant.config)
    except UserError as error:
        message = str(error)
        assert '\n' not in message
        assert len(message) < 600
        assert any(word in message for word in mutant.quotable), (message, mutant)
    else:
        assert not mutant.is_wrong, mutant
        run(mutant.config)


RUN_CONFIG = load_config(ROOT / 'configs' / 'digits_quick' / 'inline-pvt-nano_digits.py').to_dict()


@pytest.mark.slow
@settings(FIXED, max_examples=150)
@given(run_config_mutants(RUN_CONFIG))
def test_a_mutated_run_config_is_rejected_in_one_line_or_has_a_model(mutant: Mutant) -> None:
    try:
        check_config(Config(copy.deepcopy(mutant.config)))
    except UserError as error:
        message = str(error)
        assert '\n' not in message
        assert len(message) < 700
        # Changes of the backbone can make the head's in_channels wrong.
        words = {*mutant.quotable, 'in_channels'}
        assert any(word in message for word in words), (message, mutant)
    else:
        assert not mutant.is_wrong, mutant
        assert 'type' in mutant.config['model']
        backbone = mutant.config['model'].get('backbone')
        if isinstance(backbone, dict) and str(backbone.get('type')).startswith('inline.'):
            run(backbone)


# Errors that fuzzing and code review have found.
FOUND: dict[str, tuple[dict[str, Any], str]] = {
    'self': ({'self': 1}, "unknown argument 'self' of InLinePVT"),
    'a key that is no string': ({None: True}, 'unknown argument None of InLinePVT'),
    'no mixer': ({'mixers': {}}, 'mixers: unknown mixer type None'),
    'no mixer of a stage': (
        {'mixers': [{'type': 'InLine'}, {}, {'type': 'InLine'}, {'type': 'InLine'}]},
        r'mixers\[1\]: unknown mixer type None',
    ),
    'no mixer of a block': (
        {'mixers': [{'type': 'InLine'}, [{'type': 'InLine'}, {}], {'type': 'InLine'}, {'type': 'InLine'}]},
        r'mixers\[1\]\[1\]: unknown mixer type None',
    ),
    'a size whose name is no string': ({'arch': {**PYRAMID, 3: [1]}}, 'unknown key 3 of arch'),
    'no mixers': ({'mixers': []}, 'mixers has 0 entries'),
    'a type that has no hash': ({'mixers': {'type': ['InLine']}}, r"unknown mixer type \['InLine'\]"),
    'no stage': (
        {'arch': {name: [] for name in ('embed_dims', 'depths', 'num_heads', 'mlp_ratios')}},
        r'embed_dims \(\): there must be at least one stage',
    ),
    'no inline stage': ({'arch': {**PYRAMID, 'inline_depths': []}}, 'number of stages differs: .*depths 0'),
    'a rate that no block reaches': (
        {
            'arch': {'embed_dims': [8], 'depths': [1], 'num_heads': [2], 'mlp_ratios': [2]},
            'out_indices': [0],
            'drop_path_rate': 1.5,
        },
        r'drop_path_rate 1\.5: must be at least 0 and below 1',
    ),
    'heads that do not divide': (
        {'arch': {**PYRAMID, 'num_heads': [2, 2, 6, 10**9]}},
        'num_heads 6: width 16 is not divisible by 6 heads',
    ),
    'a million blocks': ({'arch': {**PYRAMID, 'depths': [1, 2, 1, 10**6]}}, 'depths 1000000: must be from'),
}


@pytest.mark.parametrize('name', FOUND)
def test_found_errors_are_reported(name: str) -> None:
    options, message = FOUND[name]
    with pytest.raises(UserError, match=message):
        check_inline_component({'type': 'inline.InLinePVT', 'arch': PYRAMID, 'img_size': 32, **options})


def test_out_indices_that_coincide_are_reported_as_written() -> None:
    config = {'type': 'inline.InLineDeiT', 'arch': {'embed_dims': 16, 'depth': 1, 'num_heads': 2}}
    with pytest.raises(UserError, match=r'out_indices \(0, -1\): must be increasing blocks out of -1..0'):
        check_inline_component({**config, 'out_indices': [0, -1]})


def test_mixers_on_reduced_maps_do_not_support_a_class_token() -> None:
    """The error comes when the model is built, not with the first image."""
    for mixer in ({'type': 'InLine', 'window_size': 2}, {'type': 'Softmax', 'sr_ratio': 2}):
        with pytest.raises(UserError, match='do not support a class token'):
            check_inline_component({'type': 'inline.InLineDeiT', 'mixers': mixer})
    with pytest.raises(UserError, match='mixers has 0 entries'):
        check_inline_component({'type': 'inline.InLineDeiT', 'mixers': []})
    with pytest.raises(UserError, match=r'out_indices \(-13,\): must be increasing blocks out of -12\.\.11'):
        check_inline_component({'type': 'inline.InLineDeiT', 'out_indices': [-13]})
