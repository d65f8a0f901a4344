"""The backbones as OpenMMLab modules: registration, frozen stages, autocast, pretrained weights."""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS as ROOT_MODELS
from torch import nn

from inline import models
from inline.openmmlab import backbones as openmmlab
from inline.openmmlab.backbones import InLinePVT
from inline.utils.errors import UserError
from tests.models.families import FAMILIES

SMALL = {
    'embed_dims': (16, 32, 40, 64),
    'depths': (1, 1, 2, 1),
    'num_heads': (2, 4, 5, 8),
    'mlp_ratios': (4, 4, 2, 2),
}


def build(**options: object) -> InLinePVT:
    return InLinePVT(arch=SMALL, img_size=64, **options)


@pytest.mark.slow
def test_type_resolves_in_each_toolbox_without_custom_imports() -> None:
    """Fork a new process for each toolbox, so that nothing has imported inline.registry before."""
    code = """
import importlib, os, sys
from inline.openmmlab.patches import apply_patches
apply_patches()
toolboxes = ('mmpretrain', 'mmdet', 'mmseg')
for toolbox in toolboxes:
    importlib.import_module(f'{toolbox}.models')
assert 'inline.registry' not in sys.modules
for toolbox in toolboxes:
    child = os.fork()
    if child == 0:
        models = importlib.import_module(f'{toolbox}.registry').MODELS
        cls = type(models.build(dict(type='inline.InLinePVT', arch='tiny')))
        print('built', toolbox, cls.__module__, cls.__name__, flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    built = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith('built ')]
    assert built == [
        [toolbox, 'inline.openmmlab.backbones', 'InLinePVT'] for toolbox in ('mmpretrain', 'mmdet', 'mmseg')
    ]


def test_ops_and_models_need_no_openmmlab() -> None:
    code = """
import sys
import inline
assert 'torch' not in sys.modules, 'import inline is not light'
for name in ('mmengine', 'mmcv', 'mmpretrain', 'mmdet', 'mmseg'):
    sys.modules[name] = None  # importing it raises ImportError
import torch, inline.ops, inline.models
print([tuple(out.shape) for out in inline.models.InLinePVT('tiny')(torch.randn(1, 3, 64, 96))])
"""
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == '[(1, 64, 16, 24), (1, 128, 8, 12), (1, 320, 4, 6), (1, 512, 2, 3)]'


def test_outputs_equal_those_of_the_plain_backbone() -> None:
    toolbox, plain = build().eval(), models.InLinePVT(SMALL, img_size=64).eval()
    plain.load_state_dict(toolbox.state_dict())
    x = torch.randn(2, 3, 64, 48)
    for left, right in zip(toolbox(x), plain(x), strict=True):
        assert torch.equal(left, right)


@pytest.mark.parametrize(
    ('frozen_stages', 'frozen'),
    [(-1, []), (0, ['stages.0.downsample', 'stages.0.position']), (2, ['stages.0', 'stages.1'])],
)
def test_frozen_stages_have_no_gradient_and_stay_in_evaluation_mode(
    frozen_stages: int, frozen: list[str]
) -> None:
    model = build(frozen_stages=frozen_stages, drop_path_rate=0.2)
    model.train()
    prefixes = tuple(f'{name}.' for name in frozen)
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad != (name.startswith(prefixes) if prefixes else False), name
    for name, module in model.named_modules():
        if name:
            assert module.training != (f'{name}.'.startswith(prefixes) if prefixes else False), name
    before = {name: p.clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1.0)
    sum(out.square().mean() for out in model(torch.randn(2, 3, 64, 64))).backward()
    optimizer.step()
    changed = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert changed
    assert not [name for name in changed if prefixes and name.startswith(prefixes)]


@pytest.mark.parametrize('family', FAMILIES)
def test_frozen_stages_of_every_family_stay_frozen_through_train(family: str) -> None:
    _, options = FAMILIES[family]
    model = getattr(openmmlab, family)(**options, img_size=64, frozen_stages=2, drop_path_rate=0.2)
    frozen = [module for stage in model.stage_modules()[:3] for module in stage]
    before = [parameter.clone() for module in frozen for parameter in module.parameters()]
    model.train()
    assert not any(child.training for module in frozen for child in module.modules())
    assert any(parameter.requires_grad for parameter in model.parameters())
    optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=1.0)
    sum(out.square().mean() for out in model(torch.randn(2, 3, 64, 64))).backward()
    optimizer.step()
    after = [parameter for module in frozen for parameter in module.parameters()]
    assert all(torch.equal(left, right) for left, right in zip(before, after, strict=True))


@pytest.mark.parametrize('family', FAMILIES)
def test_every_family_is_registered_under_its_name(family: str) -> None:
    _, options = FAMILIES[family]
    assert (
        type(ROOT_MODELS.build({'type': f'inline.{family}', **options})).__module__
        == 'inline.openmmlab.backbones'
    )


@pytest.mark.parametrize('distilled', [False, True])
@pytest.mark.parametrize('family', FAMILIES)
def test_layer_wise_learning_rate_decay(family: str, distilled: bool) -> None:
    """Each block has half the learning rate of the next one, the head has the full rate."""
    _, options = FAMILIES[family]
    backbone = getattr(openmmlab, family)(**options, img_size=64)
    trained = nn.ModuleDict({'backbone': backbone, 'head': nn.Linear(2, 2)})
    model = nn.ModuleDict({'student': trained}) if distilled else trained
    wrapper = build_optim_wrapper(
        model,
        {
            'type': 'OptimWrapper',
            'optimizer': {'type': 'AdamW', 'lr': 1.0, 'weight_decay': 0.05},
            'constructor': 'inline.LayerDecayConstructor',
            'paramwise_cfg': {'layer_decay_rate': 0.5},
        },
    )
    rates = {
        id(parameter): group['lr']
        for group in wrapper.optimizer.param_groups
        for parameter in group['params']
    }
    own = [
        rates[id(parameter)]
        for name, parameter in model.named_parameters()
        if name.endswith('mixer.proj.weight')
    ]
    assert all(later == pytest.approx(2 * earlier) for earlier, later in pairwise(own))
    assert own[-1] == 0.25
    assert rates[id(trained['head'].weight)] == 1.0


def test_autocast_computes_in_bfloat16_and_returns_float32() -> None:
    torch.manual_seed(0)
    exact, reduced = build(), build(autocast='bfloat16')
    reduced.load_state_dict(exact.state_dict())
    x = torch.randn(2, 3, 64, 64)
    for left, right in zip(reduced.train()(x), exact.train()(x), strict=True):
        assert left.dtype == torch.float32
        assert not torch.equal(left, right)
        assert (left - right).norm() < 0.05 * right.norm()
    for left, right in zip(reduced.eval()(x), exact.eval()(x), strict=True):
        assert torch.equal(left, right)


def test_init_cfg_loads_the_backbone_of_a_complete_model(tmp_path: Path) -> None:
    source = build()
    state = {f'backbone.{key}': value for key, value in source.state_dict().items()}
    torch.save({'state_dict': {**state, 'head.fc.weight': torch.zeros(3)}}, tmp_path / 'model.pth')
    pretrained = {'type': 'Pretrained', 'checkpoint': str(tmp_path / 'model.pth'), 'prefix': 'backbone.'}
    target = ROOT_MODELS.build(
        {'type': 'inline.InLinePVT', 'arch': SMALL, 'img_size': 96, 'init_cfg': pretrained}
    )
    target.init_weights()
    own = dict(source.named_parameters())
    for name, parameter in target.named_parameters():
        if '.position.' in name:
            assert parameter.shape[-1] > own[name].shape[-1]
        else:
            assert torch.equal(parameter, own[name]), name


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ({'frozen_stages': 5}, r'frozen_stages 5: must be from -1 \(none\) to 4 \(all\)'),
        ({'autocast': 'int8'}, "autocast 'int8': choose one of bfloat16, float16"),
    ],
)
def test_invalid_arguments(options: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(**options)
