"""Weights to start from: loaded, told, or refused; never loaded silently as nothing."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from inline.engine.pretrained import check_whole, load_pretrained, read_weights
from inline.errors import UserError
from inline.openmmlab import InLineCSwin, InLineDeiT, InLinePVT, InLineSwin
from inline.weights import compare

SMALL: dict[str, Any] = {'embed_dims': (16, 32, 64, 96), 'depths': (1, 2, 2, 1), 'num_heads': (2, 2, 4, 4)}
PVT = {**SMALL, 'mlp_ratios': (2, 2, 2, 2)}


def pvt(**options: Any) -> InLinePVT:
    return InLinePVT(arch={**PVT, **options.pop('arch', {})}, img_size=64, **options)


def save(model: nn.Module, path: Path, prefix: str = 'backbone.') -> str:
    weights = {f'{prefix}{name}': torch.full_like(value, 0.25) for name, value in model.state_dict().items()}
    torch.save({'state_dict': weights, 'meta': {}}, path)
    return str(path)


def is_loaded(tensor: torch.Tensor) -> bool:
    return bool((tensor == 0.25).all())


@pytest.mark.parametrize('prefix', ['backbone.', 'module.backbone.', ''])
def test_all_weights_of_the_same_architecture_are_loaded(prefix: str, tmp_path: Path) -> None:
    path = save(pvt(), tmp_path / 'same.pth', prefix)
    model = pvt(init_cfg={'type': 'Pretrained', 'checkpoint': path, 'prefix': 'backbone.'})
    model.init_weights()
    assert all(is_loaded(p) for p in model.parameters())


def test_pretrained_weights_come_after_other_rules(tmp_path: Path) -> None:
    path = save(pvt(), tmp_path / 'same.pth')
    pretrained = {'type': 'Pretrained', 'checkpoint': path, 'prefix': 'backbone.'}
    model = pvt(init_cfg=[pretrained, {'type': 'Constant', 'layer': 'Linear', 'val': 7.0}])
    model.init_weights()
    assert all(is_loaded(p) for p in model.parameters())
    assert model.init_cfg[0] == pretrained


def test_another_mixer_keeps_what_fits_and_names_the_rest(tmp_path: Path) -> None:
    path = save(pvt(mixers={'type': 'Softmax', 'sr_ratio': 1}), tmp_path / 'softmax.pth')
    model = pvt()
    fit = load_pretrained(model, path)
    assert fit.missing
    assert all('residual' in name for name in fit.missing)
    assert not fit.unused
    assert is_loaded(model.stages[2].blocks[1].mixer.qkv.weight)
    count = len(model.state_dict())
    assert fit.describe().startswith(
        f'{count - len(fit.missing)} of {count} tensors fit; {len(fit.missing)} not'
    )
    assert 'stages.0.blocks.0.mixer.residual.fc1.weight' in fit.describe()


def test_tables_of_positions_are_resized_not_refused(tmp_path: Path) -> None:
    path = save(InLinePVT(arch=PVT, img_size=96), tmp_path / 'larger.pth')
    fit = load_pretrained(model := pvt(), path)
    assert len(fit.matched) == len(model.state_dict())


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
def test_another_architecture_is_refused(other: Any, tmp_path: Path) -> None:
    model = pvt()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(UserError, match='of another architecture than InLinePVT'):
        load_pretrained(model, save(other(), tmp_path / 'other.pth'))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize('content', [{'state_dict': {}}, {'epoch': 3}, [1, 2]])
def test_a_file_without_weights_is_refused(content: Any, tmp_path: Path) -> None:
    torch.save(content, tmp_path / 'empty.pth')
    with pytest.raises(UserError, match='holds no weights'):
        read_weights(str(tmp_path / 'empty.pth'))


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = save(pvt(), tmp_path / 'whole.pth')
    (tmp_path / 'cut.pth').write_bytes(Path(path).read_bytes()[:1000])
    with pytest.raises(UserError, match='cannot be read'):
        read_weights(str(tmp_path / 'cut.pth'))


def test_shapes_are_compared_by_name() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    fit = compare(model, {'0.weight': torch.zeros(3, 2), '0.bias': torch.zeros(4), '9.bias': torch.zeros(1)})
    assert fit.matched == ('0.weight',)
    assert fit.missing == ('1.weight', '1.bias')
    assert fit.misshapen == ('0.bias',)
    assert fit.unused == ('9.bias',)


def test_a_test_needs_every_weight(tmp_path: Path) -> None:
    model = nn.ModuleDict({'backbone': pvt(), 'head': nn.Linear(96, 10)})
    check_whole(model, save(model, tmp_path / 'whole.pth', ''))
    with pytest.raises(UserError, match=r'another model than the config: .* 2 not in the file: head'):
        check_whole(model, save(model['backbone'], tmp_path / 'part.pth'))
