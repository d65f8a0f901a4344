"""The key ``compile``: training of a classifier, a detector and a segmentor with a compiled backbone."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from mmengine.config import Config

from inline.engine.launch import compile_backbone
from inline.utils.errors import UserError
from tests.engine.short_runs import short_run, train

MIXUP = {'model.train_cfg': {'augments': [{'type': 'Mixup', 'alpha': 0.8}]}}
RUNS: dict[str, dict[str, Any]] = {
    'inline-pvt-nano_digits': MIXUP,
    'retinanet_inline-pvt-nano_digits': {},
    'semantic-fpn_inline-pvt-nano_digits': {},
}


# Traces forward and backward pass as inductor does, but generates no code.
QUICK = {'backend': 'aot_eager', 'dynamic': False}


@pytest.mark.slow
@pytest.mark.parametrize(
    ('name', 'compiled'),
    [
        ('inline-pvt-nano_digits', QUICK),
        *(pytest.param(name, True, marks=pytest.mark.exhaustive) for name in RUNS),
    ],
)
def test_training_with_a_compiled_backbone_has_the_same_losses(
    name: str, compiled: Any, digit_scenes: Path, tmp_path: Path
) -> None:
    """``compile=True`` uses inductor, for a detector with symbolic sizes, which takes minutes."""
    losses = []
    for options in (False, compiled):
        torch.compiler.reset()
        torch._dynamo.utils.counters.clear()
        work_dir = tmp_path / str(bool(options))
        cfg = short_run(name, digit_scenes, work_dir, **{'train_cfg.max_iters': 2, **RUNS[name]})
        cfg.compile = options
        losses.append(train(cfg, total_batch=2)[1])
        graphs = torch._dynamo.utils.counters['stats']['unique_graphs']
        assert (graphs > 0) == bool(options)
    assert len(losses[0]) == 2
    for step, expected in zip(*losses, strict=True):
        assert step == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_compile_becomes_a_hook_that_the_config_shows() -> None:
    for given, scope, expected in (
        (True, 'mmpretrain', {'dynamic': None}),
        (True, 'mmdet', {'dynamic': True}),
        ({'dynamic': False, 'mode': 'max-autotune'}, 'mmseg', {'dynamic': False, 'mode': 'max-autotune'}),
    ):
        cfg = Config({'default_scope': scope, 'compile': given, 'custom_hooks': [{'type': 'Other'}]})
        compile_backbone(cfg)
        assert 'compile' not in cfg
        assert cfg.custom_hooks == [{'type': 'Other'}, {'type': 'inline.CompileBackboneHook', **expected}]
    for off in (False, None, {}):
        cfg = Config({'default_scope': 'mmdet', 'compile': off})
        compile_backbone(cfg)
        assert not cfg.get('custom_hooks')


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(UserError, match="unknown option 'target' of compile: it takes fullgraph, dynamic"):
        compile_backbone(Config({'default_scope': 'mmdet', 'compile': {'target': 'forward'}}))
