"""Our models in timm: by name, with timm's arguments, and without timm a clear error."""

import importlib
import sys
from pathlib import Path

import pytest
import timm
import timm.data
import torch
from timm.optim import create_optimizer_v2

import inline.hub.timm
from inline import InLineBackbone, list_backbones
from inline.checkpoints import sources
from inline.utils.errors import UserError
from tests.hub.test_packaged import NAMES, packaged

__all__ = ['packaged']


def test_all_models_are_listed() -> None:
    assert set(timm.list_models('inline*')) == set(list_backbones())
    assert timm.list_models('inline*', module='timm') == sorted(
        list_backbones(), key=timm.models._registry._natural_key
    )
    assert {name for name in timm.list_models(pretrained=True) if name.startswith('inline')} == set(
        sources.list_packaged()
    )


def test_features() -> None:
    model = timm.create_model('inline_swin_tiny', features_only=True, out_indices=(1, 2, 3), num_classes=1000)
    assert isinstance(model, InLineBackbone)
    with torch.no_grad():
        maps = model(torch.randn(1, 3, 64, 96))
    assert [out.shape[1] for out in maps] == model.feature_info.channels() == [192, 384, 768]
    assert model.feature_info.reduction() == [8, 16, 32]


def test_classifier_with_arguments_of_timm() -> None:
    model = timm.create_model(
        'inline_pvt_micro', num_classes=10, in_chans=1, drop_path_rate=0.2, drop_rate=0.0, global_pool='avg'
    )
    assert model(torch.randn(2, 1, 64, 64)).shape == (2, 10)
    assert model.backbone.stages[3].blocks[0].drop_path.rate == pytest.approx(0.2)
    config = timm.data.resolve_model_data_config(model)
    assert config['input_size'] == (1, 64, 64)
    assert config['mean'] == pytest.approx(((0.485 + 0.456 + 0.406) / 3,))
    transform = timm.data.create_transform(**config)
    assert 'Resize' in str(transform)
    default = timm.create_model('inline_deit_micro')
    assert default.num_classes == default.get_classifier().out_features == 200
    assert timm.create_model('inline_deit_micro', num_classes=0)(torch.randn(1, 3, 64, 64)).shape == (1, 128)


def test_optimizer_with_layer_decay() -> None:
    model = timm.create_model('inline_deit_micro', num_classes=3)
    optimizer = create_optimizer_v2(model, 'adamw', lr=1.0, weight_decay=0.1, layer_decay=0.5)
    found = {id(p): group for group in optimizer.param_groups for p in group['params']}
    assert len(found) == len(list(model.parameters()))
    # Six blocks and the head follow the stem; the norm belongs to the last block.
    assert found[id(model.backbone.patch_embed.proj.weight)]['lr_scale'] == pytest.approx(0.5**7)
    assert found[id(model.backbone.position.weight)]['weight_decay'] == 0
    assert found[id(model.head.fc.weight)]['lr_scale'] == 1


def test_packaged_weights(packaged: dict[str, torch.Tensor]) -> None:
    model = timm.create_model('inline_pvt_micro', pretrained=True)
    assert model.num_classes == 200
    assert torch.equal(model.head.fc.weight, packaged['head.fc.weight'].float())
    assert timm.data.resolve_model_data_config(model)['mean'] == (0.5, 0.4, 0.3)
    assert model.pretrained_cfg['classes'] == tuple(NAMES)
    grey = timm.create_model('inline_pvt_micro', pretrained=True, in_chans=1, num_classes=2)
    rgb = packaged['backbone.stages.0.downsample.proj.weight'].float()
    torch.testing.assert_close(grey.backbone.stages[0].downsample.proj.weight, rgb.sum(1, keepdim=True))
    with pytest.raises(UserError, match='the package contains inline_pvt_micro; for inline-pvt-nano give'):
        timm.create_model('inline_pvt_nano', pretrained=True)


def test_weights_and_settings_of_the_overlay(tmp_path: Path) -> None:
    model = timm.create_model('inline_pvt_nano', num_classes=4)
    torch.save(model.state_dict(), tmp_path / 'own.pth')
    overlay = {'file': str(tmp_path / 'own.pth'), 'mean': (0.1, 0.2, 0.3), 'num_classes': 4}
    again = timm.create_model('inline_pvt_nano', pretrained=True, pretrained_cfg_overlay=overlay)
    assert torch.equal(again.head.fc.weight, model.head.fc.weight)
    assert timm.data.resolve_model_data_config(again)['mean'] == (0.1, 0.2, 0.3)
    loaded = timm.create_model('inline_pvt_nano', num_classes=4, checkpoint_path=str(tmp_path / 'own.pth'))
    assert torch.equal(loaded.head.fc.weight, model.head.fc.weight)


def test_class_names_after_fine_tuning(tmp_path: Path) -> None:
    model = timm.create_model('inline_pvt_nano', num_classes=2)
    model.update_pretrained_cfg({'classes': ['cat', 'dog']})
    model.save_pretrained(tmp_path)
    again = InLineBackbone.from_pretrained(tmp_path)
    assert again.pretrained_cfg['classes'] == ('cat', 'dog')
    with pytest.raises(UserError, match='has 3 names for 2 classes'):
        model.update_pretrained_cfg({'classes': ['cat', 'dog', 'cow']})


def test_unknown_arguments_raise() -> None:
    with pytest.raises(UserError, match="unknown argument 'depth' of inline_pvt_nano"):
        timm.create_model('inline_pvt_nano', depth=3)
    with pytest.raises(UserError, match='drop_rate is not supported'):
        timm.create_model('inline_pvt_nano', drop_rate=0.1)
    with pytest.raises(UserError, match="'in1k': our models have no tags"):
        timm.create_model('inline_pvt_nano.in1k')


def test_missing_timm_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, 'inline.hub.timm')
    monkeypatch.setitem(sys.modules, 'timm.models', None)
    with pytest.raises(
        UserError, match=r'^import inline\.hub\.timm requires the package timm: pip install timm$'
    ):
        importlib.import_module('inline.hub.timm')


def test_the_module_names_its_models() -> None:
    """timm adds the entry points to ``__all__`` of the module that registers them."""
    assert set(inline.hub.timm.__all__) == set(list_backbones())
