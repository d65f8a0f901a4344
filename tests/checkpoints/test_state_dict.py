"""Loading a state dict: what matches is loaded, the rest is reported, another architecture is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from inline.checkpoints import (
    compare_state_dict,
    load_complete_state_dict,
    load_partial_state_dict,
    select_submodule,
)
from inline.openmmlab.backbones import InLineCSwin, InLineDeiT, InLinePVT, InLineSwin, load_pretrained
from inline.utils.errors import UserError

SMALL: dict[str, Any] = {'embed_dims': (16, 32, 64, 96), 'depths': (1, 2, 2, 1), 'num_heads': (2, 2, 4, 4)}
PVT = {**SMALL, 'mlp_ratios': (2, 2, 2, 2)}


def pvt(**options: Any) -> InLinePVT:
    return InLinePVT(arch={**PVT, **options.pop('arch', {})}, img_size=64, **options)


def filled(model: nn.Module, prefix: str = '') -> dict[str, Tensor]:
    return {f'{prefix}{name}': torch.full_like(value, 0.25) for name, value in model.state_dict().items()}


def save(model: nn.Module, path: Path, prefix: str = 'backbone.') -> str:
    torch.save({'state_dict': filled(model, prefix), 'meta': {}}, path)
    return str(path)


def is_loaded(tensor: Tensor) -> bool:
    return bool((tensor == 0.25).all())


def test_report_lists_names() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    weights = {'0.weight': torch.zeros(3, 2), '0.bias': torch.zeros(4), '9.bias': torch.zeros(1)}
    report = compare_state_dict(model, weights)
    assert report.matched == ('0.weight',)
    assert report.missing == ('1.weight', '1.bias')
    assert report.mismatched == ('0.bias',)
    assert report.unexpected == ('9.bias',)
    assert not report.complete
    assert report.describe() == (
        '1 of 4 tensors match; 2 missing from the file: 1.weight, 1.bias; '
        '1 with a different shape: 0.bias; 1 not in the model: 9.bias'
    )
    exact = compare_state_dict(model, model.state_dict())
    assert exact.complete
    assert exact.exact
    extra = compare_state_dict(model, {**model.state_dict(), 'x': torch.zeros(1)})
    assert extra.complete
    assert not extra.exact


@pytest.mark.parametrize('prefix', ['backbone.', 'module.backbone.', ''])
@pytest.mark.parametrize('given', ['backbone.', None])
def test_pretrained_loads_all_weights(prefix: str, given: str | None, tmp_path: Path) -> None:
    path = save(pvt(), tmp_path / 'same.pth', prefix)
    model = pvt(init_cfg={'type': 'Pretrained', 'checkpoint': path, 'prefix': given})
    model.init_weights()
    assert all(is_loaded(p) for p in model.parameters())


def test_pretrained_is_applied_after_other_initializers(tmp_path: Path) -> None:
    path = save(pvt(), tmp_path / 'same.pth')
    pretrained = {'type': 'Pretrained', 'checkpoint': path, 'prefix': 'backbone.'}
    model = pvt(init_cfg=[pretrained, {'type': 'Constant', 'layer': 'Linear', 'val': 7.0}])
    model.init_weights()
    assert all(is_loaded(p) for p in model.parameters())
    assert model.init_cfg[0] == pretrained


def test_another_mixer_loads_what_matches(tmp_path: Path) -> None:
    path = save(pvt(mixers={'type': 'Softmax', 'sr_ratio': 1}), tmp_path / 'softmax.pth')
    model = pvt()
    report = load_pretrained(model, path)
    assert report.missing
    assert all('residual' in name for name in report.missing)
    assert not report.unexpected
    assert is_loaded(model.stages[2].blocks[1].mixer.qkv.weight)
    count = len(model.state_dict())
    assert report.describe().startswith(f'{count - len(report.missing)} of {count} tensors match; ')
    assert 'stages.0.blocks.0.mixer.residual.fc1.weight' in report.describe()


def test_position_tables_are_resized() -> None:
    model = pvt()
    report = load_partial_state_dict(model, filled(InLinePVT(arch=PVT, img_size=96)), 'larger')
    assert len(report.matched) == len(model.state_dict())


@pytest.mark.parametrize(
    'other',
    [
        lambda: pvt(arch={'depths': (1, 2, 3, 1)}),
        lambda: pvt(arch={'depths': (1, 1, 2, 1)}),
        lambda: pvt(arch={'embed_dims': (16, 32, 64, 128)}),
        lambda: InLineDeiT(arch={'embed_dims': 16, 'depth': 2, 'num_heads': 2}, img_size=64),
        lambda: InLineSwin(arch=SMALL),
        lambda: InLineCSwin(arch=SMALL),
    ],
    ids=['deeper', 'shallower', 'wider', 'DeiT', 'Swin', 'CSwin'],
)
def test_another_architecture_is_refused_and_changes_nothing(other: Any) -> None:
    model = pvt()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(UserError, match="checkpoint 'other' has a different architecture than InLinePVT"):
        load_partial_state_dict(model, filled(other()), 'other')
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_loading_completely_needs_every_weight(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.ModuleDict({'backbone': pvt(), 'head': nn.Linear(96, 10)})
    weights = filled(model)
    assert load_complete_state_dict(model, weights, 'all').exact
    assert not caplog.text
    assert load_complete_state_dict(model, {**weights, 'x': torch.zeros(1)}, 'more').complete
    assert "checkpoint 'more': " in caplog.text
    assert '1 not in the model: x' in caplog.text
    before = {name: value.clone() for name, value in model.state_dict().items()}
    partial = {name: value + 1 for name, value in weights.items() if name.startswith('backbone.')}
    with pytest.raises(UserError, match=r"'part' does not match the model: .* 2 missing from the file: head"):
        load_complete_state_dict(model, partial, 'part')
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class ShortBackbone(nn.Module):
    """A backbone with two stages of which the second one is not built."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList([nn.ModuleDict({'blocks': nn.ModuleList([nn.Linear(2, 2)])})])

    def unused_state_dict_prefixes(self) -> tuple[str, ...]:
        return ('stages.1.',)


def test_weights_of_stages_that_are_not_built_are_unused() -> None:
    model = nn.ModuleDict({'backbone': ShortBackbone()})
    weights = {**filled(model), 'backbone.stages.1.blocks.0.weight': torch.zeros(4, 4)}
    report = load_complete_state_dict(model, weights, 'full')
    assert report.unused == ('backbone.stages.1.blocks.0.weight',)
    assert report.exact
    assert report.describe() == (
        '2 of 2 tensors match; 1 of stages that are not built: backbone.stages.1.blocks.0.weight'
    )
    with pytest.raises(UserError, match='different architecture'):
        load_complete_state_dict(model, {**weights, 'backbone.stages.2.blocks.0.weight': torch.zeros(4)}, 'x')


def test_a_checkpoint_of_all_stages_loads_into_a_backbone_with_fewer(tmp_path: Path) -> None:
    path = save(pvt(), tmp_path / 'full.pth')
    model = pvt(out_indices=(0, 1))
    report = load_pretrained(model, path)
    assert report.exact
    assert report.unused
    assert all(name.startswith(('stages.2.', 'stages.3.')) for name in report.unused)
    assert all(is_loaded(parameter) for parameter in model.parameters())
    assert f'{len(report.unused)} of stages that are not built: stages.2.' in report.describe()


def test_versions_of_modules_are_kept() -> None:
    """A batch norm of version 1 has no num_batches_tracked; torch needs the version to accept that."""
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2))
    wrapped = nn.ModuleDict({'backbone': model}).state_dict()
    selected = select_submodule(wrapped, 'backbone.')
    assert list(selected) == list(model.state_dict())
    assert selected._metadata['1'] == {'version': 2}
    assert selected._metadata == model.state_dict()._metadata
