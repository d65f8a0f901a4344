"""Weights of plain DeiT, ViT, PVT, Swin and CSwin: converted models agree with the originals."""

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.registry import MODELS as ROOT_MODELS
from mmengine.registry import init_default_scope
from safetensors.torch import save_file
from torch import Tensor, nn

from inline.checkpoints import Checkpoint, load_complete_state_dict, read_checkpoint
from inline.checkpoints.reading import as_checkpoint
from inline.checkpoints.softmax_models import Conversion, convert_softmax
from inline.hub.backbones import InLineBackbone
from inline.models import InLineSwin
from inline.registry import MODELS
from inline.utils.errors import UserError
from tests.checkpoints.softmax_sources import CLASSES, SOURCES, randomize
from tests.conftest import run_tool

Weights = dict[str, Tensor]
# Settings that the weights of these small models do not tell: heads of unpublished sizes, widths of stripes.
UNKNOWN: dict[str, tuple[Any, Any]] = {
    'timm ViT': (3, None),
    'mmpretrain ViT': (3, None),
    'mmdet PVT': ((1, 2, 4, 8), None),
    'CSwin': ((2, 4, 8, 16), 64),
}


@pytest.fixture(scope='module')
def sources() -> dict[str, nn.Module]:
    return {name: randomize(build()) for name, (build, _) in SOURCES.items()}


def convert(weights: Weights) -> Conversion:
    conversion = convert_softmax(weights)
    assert conversion is not None
    return conversion


def build_ours(conversion: Conversion, name: str) -> InLineBackbone:
    """Build our model for a conversion and load every tensor of it."""
    config = conversion.model.config()
    heads, img_size = UNKNOWN.get(name, (None, None))
    assert (conversion.model.num_heads is None) == (heads is not None)
    config['arch'] = dict(config['arch']) | ({} if heads is None else {'num_heads': heads})
    config['img_size'] = img_size or config['img_size']
    del config['type']
    config.pop('out_type', None)
    out_indices = config.pop('out_indices', (3,))
    is_classifier = 'head.fc.weight' in conversion.state_dict
    is_pyramid = conversion.model.family != 'deit'
    features = {'features_only': True, 'out_indices': out_indices if name != 'mmdet PVT' else (0, 1, 2, 3)}
    model = InLineBackbone(
        conversion.model.family,
        config.pop('arch'),
        img_size=config.pop('img_size'),
        mixers=config.pop('mixers'),
        num_classes=CLASSES if is_classifier else 0,
        **({} if is_classifier or not is_pyramid else features),
        options=config,
    )
    model.load_state_dict(dict(conversion.state_dict), strict=True)
    return model.eval()


def assert_same_outputs(ours: nn.Module, theirs: nn.Module, size: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 3, size, size, dtype=torch.float64, generator=generator).to(dtype)
    with torch.no_grad():
        outputs = [model.to(dtype)(x) for model in (ours, theirs)]
    own, other = ([out] if isinstance(out, Tensor) else list(out) for out in outputs)
    assert len(own) == len(other)
    for a, b in zip(own, other, strict=True):
        assert b.std() > 1e-3
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10 if dtype == torch.float64 else 1e-5)


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64], ids=['float32', 'float64'])
@pytest.mark.parametrize('name', SOURCES)
def test_converted_models_agree_with_their_sources(
    sources: dict[str, nn.Module], name: str, dtype: torch.dtype
) -> None:
    theirs = sources[name].to(dtype)
    conversion = convert(theirs.state_dict())
    ours = build_ours(conversion, name)
    # mmdet has 1e-6 in all norms; the official repository and our PVT have it in the blocks only.
    assert conversion.model.options.get('norm_eps') == (1e-6 if name == 'mmdet PVT' else None)
    assert_same_outputs(ours, theirs, SOURCES[name][1], dtype)
    used = sum(value.numel() for value in conversion.state_dict.values())
    assert used == sum(value.numel() for value in theirs.parameters())
    buffers = {key for key, _ in theirs.named_buffers() if key in theirs.state_dict()}
    assert set(conversion.ignored) == buffers


def test_official_swin_is_what_timm_and_mmdet_convert(sources: dict[str, nn.Module]) -> None:
    """Both packages have a converter of their own for the official names."""
    from mmdet.models.backbones.swin import swin_converter
    from timm.models.swin_transformer import checkpoint_filter_fn

    theirs = sources['timm Swin'].double()
    official: Weights = {}
    for name, value in theirs.state_dict().items():
        name = re.sub(r'layers\.(\d)\.downsample', lambda m: f'layers.{int(m[1]) - 1}.downsample', name)
        official[name.replace('head.fc', 'head')] = value
    buffers = {
        'layers.0.blocks.0.attn.relative_position_index': torch.zeros(16, 16, dtype=torch.long),
        'layers.0.blocks.1.attn_mask': torch.zeros(64, 16, 16),
    }
    filtered = checkpoint_filter_fn(dict(official), theirs)
    assert filtered.keys() == theirs.state_dict().keys()
    assert all(torch.equal(filtered[name], value) for name, value in theirs.state_dict().items())
    conversion = convert(official | buffers)
    assert conversion.ignored == dict.fromkeys(buffers, 'computed from the sizes')
    expected = convert(theirs.state_dict())
    assert_same_weights(conversion, expected.state_dict)
    # mmdet's own conversion, with its norm after the last stage, gives the same model again.
    renamed = {name.removeprefix('backbone.'): value for name, value in swin_converter(official).items()}
    renamed = {re.sub(r'^norm\.', 'norm3.', name): value for name, value in renamed.items()}
    backbone = {key: value for key, value in expected.state_dict.items() if not key.startswith('head.')}
    assert_same_weights(convert(renamed), backbone)


def test_official_pvt_is_what_mmdet_converts(sources: dict[str, nn.Module]) -> None:
    from mmdet.models.backbones.pvt import pvt_convert

    theirs = sources['mmdet PVT'].double()
    official: Weights = {}
    for name, value in theirs.state_dict().items():
        stage = int(name.split('.')[1]) + 1
        name = re.sub(r'^layers\.\d\.0\.', f'patch_embed{stage}.', name).replace('projection', 'proj')
        name = re.sub(r'^layers\.\d\.1\.0\.pos_embed', f'pos_embed{stage}', name)
        name = re.sub(r'^layers\.\d\.1\.(\d+)', lambda m, s=stage: f'block{s}.{int(m[1]) - 1}', name)
        name = name.replace('attn.attn.out_proj', 'attn.proj')
        name = name.replace('ffn.layers.0', 'mlp.fc1').replace('ffn.layers.3', 'mlp.fc2')
        value = value.flatten(1) if '.mlp.' in name and value.dim() == 4 else value
        if 'in_proj' in name:
            q, kv = value.split([len(value) // 3, len(value) * 2 // 3])
            official[name.replace('attn.in_proj_', 'q.')] = q
            official[name.replace('attn.in_proj_', 'kv.')] = kv
        else:
            official[name] = value
    token = torch.randn(1, 1, 64, dtype=torch.float64)
    classifier = {'cls_token': token, 'norm.weight': token[0, 0], 'head.weight': token[0]}
    official['pos_embed4'] = torch.cat([token, official['pos_embed4']], dim=1)
    # mmdet's converter drops the position of the class token only from tables for 224 pixels.
    converted = pvt_convert({**official, 'pos_embed4': official['pos_embed4'][:, 1:]})
    assert all(torch.equal(converted[name], value) for name, value in theirs.state_dict().items())
    conversion = convert(official | classifier)
    assert_same_weights(conversion, convert(theirs.state_dict()).state_dict)
    assert set(conversion.ignored) == {*classifier, 'pos_embed4[:, :1]'}
    # Sorted by name, as in a safetensors file, keys and values come before queries.
    assert_same_weights(convert(dict(sorted(official.items()))), conversion.state_dict)
    # A detector of the official repository: the same names after a prefix, and other parts.
    detector = {f'backbone.{name}': value for name, value in official.items()} | {'neck.a': token}
    conversion = convert(detector)
    assert_same_weights(conversion, convert(theirs.state_dict()).state_dict | {'neck.a': token})


def assert_same_weights(conversion: Conversion, expected: Any) -> None:
    assert conversion.state_dict.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(conversion.state_dict[name], value), name


def test_order_of_the_file_does_not_matter(sources: dict[str, nn.Module], tmp_path: Path) -> None:
    """The two branches of the stripes become one layer, the vertical one first."""
    theirs = {name: value.contiguous() for name, value in sources['CSwin'].state_dict().items()}
    reordered = dict(sorted(theirs.items(), reverse=True))
    assert list(reordered) != list(theirs)
    assert_same_weights(convert(reordered), convert(theirs).state_dict)
    save_file(theirs, tmp_path / 'cswin.safetensors')
    checkpoint = read_checkpoint(tmp_path / 'cswin.safetensors', convert_softmax_models=True)
    assert checkpoint.converted is not None
    assert_same_weights(checkpoint.converted, convert(theirs).state_dict)


@pytest.mark.slow
@pytest.mark.parametrize(
    ('name', 'family', 'arch'),
    [
        ('swin_tiny_patch4_window7_224', 'swin', 'tiny'),
        ('swin_base_patch4_window12_384', 'swin', 'base'),
        ('deit_small_patch16_224', 'deit', {'embed_dims': 384, 'depth': 12, 'num_heads': 6}),
        ('vit_large_patch16_384', 'deit', {'embed_dims': 1024, 'depth': 24, 'num_heads': 16}),
    ],
)
def test_published_sizes_are_recognised(name: str, family: str, arch: Any) -> None:
    import timm

    size = int(name[-3:])
    with torch.device('meta'):
        conversion = convert(timm.create_model(name).state_dict())
        expected = InLineBackbone(family, arch, img_size=size, mixers={'type': 'Softmax'}, num_classes=1000)
        own = InLineBackbone(family, conversion.model.config()['arch'], img_size=conversion.model.img_size)
    assert conversion.model.img_size == size
    assert conversion.model.mixers == {'type': 'Softmax'}
    shapes = {key: value.shape for key, value in conversion.state_dict.items()}
    assert shapes == {key: value.shape for key, value in expected.state_dict().items()}
    heads = [m.num_heads for m in expected.modules() if hasattr(m, 'num_heads')]
    assert heads == [m.num_heads for m in own.modules() if hasattr(m, 'num_heads')]


@pytest.mark.parametrize(
    ('source', 'change', 'message'),
    [
        ('timm ViT', {'dist_token': (1, 1, 24)}, r'a distilled DeiT .*\(dist_token\)'),
        ('timm ViT', {'blocks.0.ls1.gamma': (24,)}, r'layer scale.*\(blocks\.0\.ls1\.gamma\)'),
        ('timm Swin', {'layers.0.blocks.0.attn.logit_scale': (1,)}, 'Swin V2'),
        ('timm Swin', {'absolute_pos_embed': (1, 4, 8)}, 'absolute positions'),
        ('mmdet PVT', {'backbone.layers.0.1.1.mlp.dwconv.weight': (1,)}, 'PVT v2'),
        ('timm ViT', {'blocks.1.attn.gate': (1,)}, r'\(timm, official\).*unknown: blocks\.1\.attn\.gate'),
        ('timm ViT', {'pos_embed': (1, 8, 24)}, r'pos_embed: 7 positions are not a square map'),
        ('timm ViT', {'pos_embed': ()}, r'pos_embed: shape \(\)'),
        ('timm ViT', {'blocks.2.mlp.fc1.bias': (7,)}, r'mlp\.fc1\.bias: \(7,\) instead of \(72,\)'),
        ('timm ViT', {'head.fc.weight': (5, 24)}, 'are the same tensor'),
        ('timm Swin', {'layers.2.blocks.1.norm1.weight': None}, r'missing: stages\.2\.blocks\.1\.norm1'),
        ('mmpretrain Swin', {'backbone.stages.1.downsample.norm.weight': ()}, 'downsample'),
        ('CSwin', {'stage4.0.attns.1.get_v.weight': (32, 1, 3, 3)}, 'stage4 has stripes'),
        ('CSwin', {'stage2.0.norm1.weight': None}, r'missing: norm1\.weight'),
    ],
)  # fmt: skip
def test_other_models_are_refused_in_one_line(
    sources: dict[str, nn.Module], source: str, change: dict[str, tuple[int, ...] | None], message: str
) -> None:
    weights = dict(sources[source].state_dict())
    for name, shape in change.items():
        if shape is None:
            del weights[name]
        else:
            weights[name] = torch.zeros(shape)
    with pytest.raises(UserError, match=f"'file.pth' cannot be converted: .*{message}") as caught:
        as_checkpoint(weights, 'file.pth', convert_softmax_models=True)
    assert '\n' not in str(caught.value)


@pytest.mark.parametrize(
    ('name', 'message'),
    [
        ('swinv2_tiny_window8_256', 'Swin V2'),
        ('pvt_v2_b0', 'PVT v2'),
        ('deit_tiny_distilled_patch16_224', 'distilled DeiT'),
        ('deit3_small_patch16_224', 'layer scale'),
        ('vit_small_patch16_dinov3', 'register tokens'),
        ('vit_base_patch16_clip_224', r'unknown: norm_pre\.weight'),
        ('resnet18', r'the names are conv1\.weight'),
    ],
)
def test_related_models_of_timm_are_named(name: str, message: str) -> None:
    import timm

    with torch.device('meta'):
        weights = timm.create_model(name).state_dict()
    with pytest.raises(UserError, match=message) as caught:
        Checkpoint('file.pth', weights, {}, {}, converted=convert_softmax(weights)).identify()
    assert '\n' not in str(caught.value)


def test_a_classifier_that_is_not_linear_is_left_out(sources: dict[str, nn.Module]) -> None:
    weights = dict(sources['timm ViT'].state_dict()) | {'pre_logits.fc.weight': torch.zeros(24, 24)}
    conversion = convert(weights)
    assert set(conversion.ignored) == {'head.weight', 'head.bias', 'pre_logits.fc.weight'}
    assert not any(name.startswith('head') for name in conversion.state_dict)
    assert len(conversion.describe()) == 3


def test_only_our_backbones_get_converted_weights(sources: dict[str, nn.Module]) -> None:
    """A model of mmpretrain loads its own checkpoints unchanged."""
    theirs = sources['mmpretrain Swin'].float()
    checkpoint = as_checkpoint(theirs.state_dict(), 'swin.pth')
    assert checkpoint.state_dict.keys() == theirs.state_dict().keys()
    load_complete_state_dict(theirs, checkpoint.state_dict, 'swin.pth')
    model = InLineBackbone('swin', swin_config()['arch'])
    with pytest.raises(
        UserError, match=r'of a Swin \(mmpretrain, mmdet\): --pretrained .*convert_checkpoint'
    ):
        load_complete_state_dict(model, checkpoint.state_dict, 'swin.pth')


@pytest.fixture
def swin_file(sources: dict[str, nn.Module], tmp_path: Path) -> Path:
    torch.save({'model': sources['timm Swin'].float().state_dict()}, tmp_path / 'swin.pth')
    return tmp_path / 'swin.pth'


def swin_config(**changes: Any) -> dict[str, Any]:
    arch = {'embed_dims': (8, 16, 32, 64), 'depths': (2, 2, 3, 1), 'num_heads': (1, 2, 4, 8)}
    return {'type': 'inline.InLineSwin', 'arch': arch | changes.pop('arch', {}), 'img_size': 128, **changes}


def load_with_init_cfg(file: Path, **changes: Any) -> InLineSwin:
    pretrained = {'type': 'Pretrained', 'checkpoint': str(file), 'prefix': 'backbone.'}
    backbone = MODELS.build(swin_config(init_cfg=pretrained, **changes))
    backbone.init_weights()
    return backbone


def test_init_cfg_loads_softmax_and_inline_models(
    sources: dict[str, nn.Module], swin_file: Path, load_reports: list[str]
) -> None:
    theirs = sources['timm Swin']
    softmax = load_with_init_cfg(swin_file, mixers={'type': 'Softmax'}, out_indices=(3,))
    x = torch.randn(1, 3, 128, 128, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        expected = theirs.forward_features(x).permute(0, 3, 1, 2)
        torch.testing.assert_close(softmax.eval()(x)[0], expected, rtol=0, atol=1e-5)
    assert 'left out' not in load_reports[-1]
    inline = load_with_init_cfg(swin_file, mixers={'type': 'InLine'}, out_indices=(3,))
    own, other = inline.state_dict(), softmax.state_dict()
    shared = own.keys() & other.keys()
    assert all(torch.equal(own[name], other[name]) for name in shared)
    assert {name.split('.mixer.')[1].split('.')[0] for name in own.keys() - shared} == {'residual'}
    report = load_reports[-1]
    assert re.search(r'kept: .*mixer\.qkv \(16\).*mixer\.proj \(16\).*; initialised: mixer\.residual', report)
    assert 'left out: mixer.position (8)' in report


def test_another_number_of_heads_is_an_error_for_softmax_only(
    swin_file: Path, load_reports: list[str], tmp_path: Path
) -> None:
    heads = {'arch': {'num_heads': (2, 2, 4, 8)}}
    message = r'has 1 heads in stages\.0\.blocks\.0\.mixer, where the model has 2: .*\(1, 2, 4, 8\)'
    converted = tmp_path / 'ours.pth'
    checkpoint = read_checkpoint(swin_file, convert_softmax_models=True)
    torch.save(checkpoint.content, converted)
    for file in (swin_file, converted):
        with pytest.raises(UserError, match=message):
            # The last stage only differs in a table that depends on the heads.
            load_with_init_cfg(file, mixers={'type': 'Softmax', 'relative_position': False}, **heads)
        load_with_init_cfg(file, mixers={'type': 'InLine'}, **heads)
        assert re.search(r'its num_heads are \(1, 2, 4, 8\), unlike stages\.0', load_reports[-1])


def test_plain_torch_models_load_the_files(
    sources: dict[str, nn.Module], swin_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = swin_config()
    model = InLineBackbone('swin', config['arch'], 128, num_classes=CLASSES, mixers={'type': 'Softmax'})
    model.load_weights(swin_file)
    assert not caplog.records
    assert_same_outputs(model.eval(), sources['timm Swin'], 128, torch.float32)
    InLineBackbone('swin', config['arch'], 128, mixers={'type': 'InLine'}).load_weights(swin_file)
    assert 'initialised: mixer.residual' in caplog.text


def test_the_tool_converts_and_prints_the_config(swin_file: Path, tmp_path: Path) -> None:
    out = tmp_path / 'ours.safetensors'
    done = run_tool('tools/convert_checkpoint.py', swin_file, out)
    assert done.returncode == 0, done.stderr
    assert 'Swin (timm, official)' in done.stdout
    assert "backbone={'type': 'inline.InLineSwin'" in done.stdout
    checkpoint = read_checkpoint(out)
    expected = convert(torch.load(swin_file)['model'])
    assert_same_weights(expected, checkpoint.state_dict)
    assert checkpoint.meta['converted_backbone']['arch']['num_heads'] == [1, 2, 4, 8]
    torch.save({'backbone.conv1.weight': torch.zeros(1)}, tmp_path / 'resnet.pth')
    done = run_tool('tools/convert_checkpoint.py', tmp_path / 'resnet.pth', tmp_path / 'no.pth')
    assert done.returncode == 2
    assert 'neither our weights nor those of a model that can be converted' in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / 'no.pth').exists()


@pytest.fixture
def load_reports(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the lines that a run logs about loaded weights."""
    lines: list[str] = []
    record: Callable[[str, bool], None] = lambda line, _: lines.append(line)  # noqa: E731
    monkeypatch.setattr('inline.openmmlab.backbones.log_load_report', record)
    return lines


def test_a_detector_of_mmdet_is_converted_whole() -> None:
    """Neck and head keep their weights, so that the file can be tested with our softmax configs."""
    importlib.import_module('mmdet.models')
    init_default_scope('mmdet')
    theirs = {'type': 'SwinTransformer', 'embed_dims': 8, 'depths': (2, 2, 3, 1), 'num_heads': (1, 2, 4, 8)}
    theirs |= {'window_size': 4}
    detectors = []
    for backbone in (theirs, None):
        if backbone is None:
            conversion = convert(detectors[0].state_dict())
            backbone = conversion.model.config()
        neck = {'type': 'FPN', 'in_channels': [8, 16, 32, 64], 'out_channels': 8, 'num_outs': 5}
        anchors = {'type': 'AnchorGenerator', 'scales': [4], 'ratios': [1.0], 'strides': [4, 8, 16, 32, 64]}
        head = {'type': 'RetinaHead', 'num_classes': 3, 'in_channels': 8, 'feat_channels': 8}
        head |= {'stacked_convs': 1, 'anchor_generator': anchors}
        config = {'type': 'RetinaNet', 'backbone': backbone, 'neck': neck, 'bbox_head': head}
        detectors.append(randomize(ROOT_MODELS.build(config)))
    assert load_complete_state_dict(detectors[1], conversion.state_dict, 'mmdet').exact
    # All maps are divisible by the windows: mmdet's padded positions count as keys.
    images = torch.randn(2, 3, 128, 256)
    with torch.no_grad():
        outputs, expected = (model.bbox_head(model.extract_feat(images)) for model in reversed(detectors))
    pairs = zip((*outputs[0], *outputs[1]), (*expected[0], *expected[1]), strict=True)
    for found, reference in pairs:
        torch.testing.assert_close(found, reference, rtol=0, atol=1e-5 * float(reference.abs().max()))
