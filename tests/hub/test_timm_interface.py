"""The methods of timm's models, compared with plain computations and with timm's own functions."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import timm.data
import torch
from timm.models._manipulate import group_parameters
from timm.optim import param_groups_layer_decay, param_groups_weight_decay
from torch import Tensor, nn

from inline import InLineBackbone, create_backbone
from inline.utils.errors import UserError

PYRAMID = {'embed_dims': (8, 16, 16, 24), 'depths': (1, 2, 1, 1), 'num_heads': (2, 2, 2, 2)}
ARCHS: dict[str, dict[str, Any]] = {
    'pvt': PYRAMID,
    'swin': {**PYRAMID, 'inline_depths': (1, 1, 0, 0)},
    'cswin': {**PYRAMID, 'inline_depths': (1, 1, 0, 0)},
    'deit': {'embed_dims': 16, 'depth': 4, 'num_heads': 2, 'patch_size': 8},
}
EVERY = pytest.mark.parametrize('family', ARCHS)


def build(family: str, **options: Any) -> InLineBackbone:
    torch.manual_seed(0)
    return InLineBackbone(family, ARCHS[family], img_size=64, **options).double().eval()


def images(channels: int = 3) -> Tensor:
    return torch.randn(2, channels, 64, 96, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@EVERY
def test_forward_is_features_then_head(family: str) -> None:
    model = build(family, num_classes=5)
    features = model.forward_features(images())
    assert features.shape == ((2, 97, 16) if family == 'deit' else (2, 24, 2, 3))
    pooled = features[:, 0] if family == 'deit' else features.flatten(2).mean(2)
    assert torch.equal(model.forward_head(features, pre_logits=True), pooled)
    logits = pooled @ model.get_classifier().weight.T + model.get_classifier().bias
    torch.testing.assert_close(model.forward_head(features), logits)
    torch.testing.assert_close(model(images()), logits)
    maps = build(family, features_only=True, out_indices=(-1,))(images())[0]
    expected = features[:, 1:].transpose(1, 2).reshape(maps.shape) if family == 'deit' else features
    torch.testing.assert_close(maps, expected)


@EVERY
def test_intermediates_equal_the_outputs_of_the_stages(family: str) -> None:
    model = build(family)
    outputs: dict[int, Tensor] = {}
    for i, name in enumerate(model.feature_info.module_name()):
        model.get_submodule(name).register_forward_hook(
            lambda _, __, out, i=i: outputs.__setitem__(i, out), always_call=True
        )
    final, maps = model.forward_intermediates(images())
    torch.testing.assert_close(final, model.forward_features(images()))
    assert len(maps) == len(outputs) == 4
    for i, out in enumerate(maps):
        raw = outputs[i][:, 1:].transpose(1, 2).reshape(out.shape) if family == 'deit' else outputs[i]
        assert torch.equal(out, raw)
        assert model.feature_info[i]['num_chs'] == out.shape[1]
        assert model.feature_info[i]['reduction'] == 64 // out.shape[2]
    tokens = model.forward_intermediates(images(), indices=[-1, 0], output_fmt='NLC', intermediates_only=True)
    assert [t.shape[1:] for t in tokens] == [
        m.flatten(2).transpose(1, 2).shape[1:] for m in (maps[3], maps[0])
    ]
    assert torch.equal(tokens[1], maps[0].flatten(2).transpose(1, 2))


@EVERY
def test_stop_early_computes_no_later_stage(family: str) -> None:
    model = build(family)
    last = model.get_submodule(model.feature_info[3]['module'])
    last.register_forward_hook(lambda *_: pytest.fail('the last stage runs'))
    maps = model.forward_intermediates(images(), indices=(0, 1), stop_early=True, intermediates_only=True)
    assert len(maps) == 2


@EVERY
def test_norm_is_applied_to_the_last_intermediate(family: str) -> None:
    model = build(family, **({} if family == 'deit' else {'options': {'out_norm': True}}))
    final, (normed,) = model.forward_intermediates(images(), indices=1, norm=True)
    final = final[:, 1:].transpose(1, 2).reshape(normed.shape) if family == 'deit' else final
    torch.testing.assert_close(normed, final)
    (raw,) = model.forward_intermediates(images(), indices=1, intermediates_only=True)
    assert not torch.allclose(raw, normed)


def test_prefix_tokens_are_the_class_token() -> None:
    model = build('deit')
    _, pairs = model.forward_intermediates(images(), indices=[3], norm=True, return_prefix_tokens=True)
    torch.testing.assert_close(pairs[0][1], model.forward_features(images())[:, :1])
    with pytest.raises(UserError, match='only a DeiT has a class token'):
        build('pvt').forward_intermediates(images(), return_prefix_tokens=True)


@EVERY
@pytest.mark.parametrize('indices', [[4], [-5], [], 5, 0])
def test_invalid_indices_raise(family: str, indices: Any) -> None:
    with pytest.raises(UserError, match='indices'):
        build(family).forward_intermediates(images(), indices=indices)
    with pytest.raises(UserError, match='indices'):
        build(family, features_only=True, out_indices=indices)


@EVERY
def test_pruned_model_keeps_the_earlier_features(family: str) -> None:
    model = build(family, num_classes=5)
    expected = model.forward_intermediates(images(), indices=(0, 1), intermediates_only=True)
    before = sum(p.numel() for p in model.parameters())
    assert model.prune_intermediate_layers((0, 1)) == [0, 1]
    assert sum(p.numel() for p in model.parameters()) < before
    assert (model.num_classes, model.head) == (0, None)
    final, maps = model.forward_intermediates(images())
    for left, right in zip(maps, expected, strict=True):
        assert torch.equal(left, right)
    assert model(images()).shape == final.shape
    assert model.num_features == model.feature_info.channels()[-1] == maps[-1].shape[1]


@EVERY
def test_negative_and_counted_out_indices(family: str) -> None:
    expected = build(family, features_only=True, out_indices=(2, 3))
    for out_indices in ((-2, -1), 2):
        model = build(family, features_only=True, out_indices=out_indices)
        assert model.feature_info.out_indices == (2, 3)
        for left, right in zip(model(images()), expected(images()), strict=True):
            assert torch.equal(left, right)


@EVERY
def test_new_classifier(family: str, tmp_path: Path) -> None:
    model = build(family, num_classes=5)
    backbone = model.backbone.state_dict()
    model.reset_classifier(7)
    assert model(images()).shape == (2, 7)
    assert (model.num_classes, model.get_classifier().out_features) == (7, 7)
    assert model.get_classifier().weight.dtype == torch.float64
    assert all(torch.equal(value, backbone[key]) for key, value in model.backbone.state_dict().items())
    model.float().save_pretrained(tmp_path)
    again = InLineBackbone.from_pretrained(tmp_path)
    assert torch.equal(again(images().float()), model(images().float()))
    model.reset_classifier(0)
    assert isinstance(model.get_classifier(), nn.Identity)
    pooled = model.forward_head(model.forward_features(images().float()))
    assert torch.equal(model(images().float()), pooled)
    model.reset_classifier(0, '')
    assert torch.equal(model(images().float()), model.forward_features(images().float()))
    with pytest.raises(UserError, match="must be 0 with global_pool ''"):
        model.reset_classifier(3)


def test_pooling_of_a_deit() -> None:
    model = build('deit', global_pool='avg')
    torch.testing.assert_close(model(images()), model.forward_features(images())[:, 1:].mean(1))
    with pytest.raises(UserError, match="global_pool 'token': choose one of avg"):
        build('pvt', global_pool='token')


@EVERY
def test_grad_checkpointing_recomputes_blocks(family: str) -> None:
    model = build(family, num_classes=3).train()
    calls = []
    block = next(m for name, m in model.named_modules() if name.endswith('blocks.0'))
    block.register_forward_pre_hook(lambda *_: calls.append(1))
    gradients = []
    for enable in (False, True):
        calls.clear()
        model.zero_grad()
        model.set_grad_checkpointing(enable)
        model(images()).square().sum().backward()
        assert len(calls) == 1 + enable
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters()})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, msg=name)


@EVERY
def test_layer_groups_follow_the_order_of_the_network(family: str) -> None:
    """Groups of timm may join neighbouring depths of ours, but never reverse them."""
    model = build(family, num_classes=3, **({} if family == 'deit' else {'options': {'out_norm': True}}))
    groups = group_parameters(model, model.group_matcher())
    stem = r'backbone\.(patch_embed|class_token|position|stages\.0\.(downsample|position))\.'
    assert set(groups[0]) == {name for name, _ in model.named_parameters() if re.match(stem, name)}
    depths = [
        {
            model.backbone.get_layer_depth(name, 'backbone.')[0]
            for name in names
            if name.startswith('backbone')
        }
        for names in groups.values()
    ]
    for earlier, later in pairwise(depths):
        assert not later or max(earlier) <= min(later)
    assert groups[len(groups) - 1] == ['head.fc.weight', 'head.fc.bias']
    coarse = group_parameters(model, model.group_matcher(coarse=True))
    assert len(coarse) <= len(groups)


@EVERY
def test_layer_decay_of_timm(family: str) -> None:
    model = build(family, num_classes=3)
    tables = model.no_weight_decay()
    decayed = param_groups_layer_decay(model, 0.1, tables, layer_decay=0.5)
    scale = {id(p): group['lr_scale'] for group in decayed for p in group['params']}
    decay = {id(p): group['weight_decay'] for group in decayed for p in group['params']}
    parameters = dict(model.named_parameters())
    assert scale[id(parameters['head.fc.weight'])] == 1
    stem = parameters[f'{model.pretrained_cfg["first_conv"]}.weight']
    assert scale[id(stem)] == min(scale.values()) < 0.5
    assert decay[id(stem)] == 0.1
    assert tables == {n for n in parameters if 'position' in n or 'class_token' in n}
    for name in tables:
        assert decay[id(parameters[name])] == 0, name
    plain = param_groups_weight_decay(model, 0.1, tables)
    assert sum(p.numel() for group in plain for p in group['params']) == sum(
        p.numel() for p in model.parameters()
    )


def test_feature_info_of_a_model_and_of_its_outputs() -> None:
    model = build('pvt', features_only=True, out_indices=(0, 2))
    info = model.feature_info
    assert (info.channels(), info.reduction()) == ([8, 16], [4, 16])
    assert info.module_name() == ['backbone.stages.0', 'backbone.stages.2']
    assert len(info) == 3
    assert info[1] == {'num_chs': 16, 'reduction': 8, 'module': 'backbone.stages.1', 'index': 1}
    assert info.get_dicts(['num_chs']) == [{'num_chs': 8}, {'num_chs': 16}]
    assert info.get_dicts(idx=1) == info[1]
    assert info.channels(1) == 16
    assert info.reduction([1, 2]) == [8, 16]


@pytest.mark.parametrize(
    ('name', 'size', 'crop', 'classes'),
    [
        ('inline_pvt_micro', 64, 1.0, 200),
        ('inline_deit_base', 448, 0.875, 1000),
        ('inline_swin_base_384', 384, 1.0, 1000),
        ('inline_cswin_base_384', 384, 0.875, 1000),
    ],
)
def test_data_config_of_timm(name: str, size: int, crop: float, classes: int) -> None:
    with torch.device('meta'):
        model = create_backbone(name)
    assert timm.data.resolve_model_data_config(model) == {
        'input_size': (3, size, size),
        'interpolation': 'bicubic',
        'mean': (0.485, 0.456, 0.406),
        'std': (0.229, 0.224, 0.225),
        'crop_pct': crop,
        'crop_mode': 'squash',
    }
    assert model.pretrained_cfg['num_classes'] == classes
    assert model.default_cfg == model.pretrained_cfg
    assert isinstance(model.get_submodule(model.pretrained_cfg['first_conv']), nn.Conv2d)


@EVERY
@pytest.mark.parametrize('channels', [1, 5])
def test_weights_of_rgb_images_fit_other_channels(family: str, channels: int, tmp_path: Path) -> None:
    """A grey image, repeated with timm's scale, has the same features."""
    source = build(family)
    torch.save(source.state_dict(), tmp_path / 'rgb.pth')
    model = build(family, in_chans=channels)
    model.load_weights(tmp_path / 'rgb.pth')
    grey = images(1)
    stem = source.get_submodule(source.pretrained_cfg['first_conv'])
    adapted = model.get_submodule(model.pretrained_cfg['first_conv'])
    if channels == 1:
        torch.testing.assert_close(model(grey), source(grey.expand(-1, 3, -1, -1)), rtol=1e-6, atol=1e-6)
    else:
        expected = torch.cat([stem.weight, stem.weight], 1)[:, :5] * 3 / 5
        torch.testing.assert_close(adapted.weight, expected, rtol=1e-6, atol=1e-6)
    assert model.pretrained_cfg['input_size'] == (channels, 64, 64)
    assert len(model.pretrained_cfg['mean']) == len(model.pretrained_cfg['std']) == channels
