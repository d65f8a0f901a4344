"""The models in transformers: equal outputs, folders that both libraries open, detectors and segmentors."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from PIL import Image
from torch import Tensor, nn
from transformers import (
    AutoBackbone,
    AutoConfig,
    AutoImageProcessor,
    AutoModelForImageClassification,
    PreTrainedModel,
    Trainer,
    TrainingArguments,
    pipeline,
)

import inline
from inline.apis import InLineModel
from inline.checkpoints.official import OFFICIAL
from inline.engine.config import load_config
from inline.hub.publish import image_processor_settings, publish
from inline.hub.transformers import (
    InLineBackbone,
    InLineConfig,
    InLineForImageClassification,
    create_image_processor,
)
from inline.models.mixers import MIXERS
from inline.utils.errors import UserError
from tests.checkpoints.formats import CLASSES, make_weights, write_config
from tests.conftest import ROOT

PYRAMID = {'embed_dims': [8, 16, 24, 32], 'depths': [1, 1, 2, 1], 'num_heads': [1, 2, 2, 4]}
ARCHS: dict[str, dict[str, Any]] = {
    'deit': {'embed_dims': 16, 'depth': 3, 'num_heads': 2},
    'pvt': PYRAMID,
    'swin': {**PYRAMID, 'inline_depths': [1, 1, 1, 0]},
    'cswin': {**PYRAMID, 'inline_depths': [1, 1, 0, 0]},
}
FAMILIES = pytest.mark.parametrize('family', ARCHS)
LABELS = {0: 'cat', 1: 'dog', 2: 'owl'}
IMAGES = torch.randn(2, 3, 64, 96, generator=torch.Generator().manual_seed(0))


def make_plain(family: str, **arguments: Any) -> inline.InLineBackbone:
    """A plain model with random values in all parameters, also in those that start as constants."""
    model = inline.InLineBackbone(family, ARCHS[family], img_size=64, **arguments)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model.eval()


def make_config(family: str = 'pvt', **settings: Any) -> InLineConfig:
    return InLineConfig(family=family, arch=ARCHS[family], img_size=64, **settings)


def assert_same_weights(left: nn.Module, right: nn.Module) -> None:
    expected, weights = left.state_dict(), right.state_dict()
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


@FAMILIES
def test_classifier_equals_the_plain_model(family: str) -> None:
    plain = make_plain(family, num_classes=3)
    model = InLineForImageClassification.from_backbone(plain, id2label=LABELS)
    assert not model.training
    assert (model.config.num_labels, model.config.label2id) == (3, {'cat': 0, 'dog': 1, 'owl': 2})
    pixels = IMAGES.clone().requires_grad_()
    output = model(pixels, labels=torch.tensor([0, 2]))
    assert torch.equal(output.logits, plain(IMAGES))
    torch.testing.assert_close(output.loss, F.cross_entropy(output.logits, torch.tensor([0, 2])))
    output.loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    loss, logits = model(IMAGES, labels=torch.tensor([0, 2]), return_dict=False)
    assert torch.equal(logits, output.logits)
    assert torch.equal(loss, output.loss)


@FAMILIES
def test_backbone_equals_the_plain_maps(family: str) -> None:
    plain = make_plain(family, features_only=True, out_indices=(0, 2))
    model = AutoBackbone.from_config(InLineConfig.from_backbone(plain)).eval()
    assert isinstance(model, InLineBackbone)
    model.load_state_dict(plain.state_dict())
    assert (model.out_features, model.out_indices) == (['stage1', 'stage3'], [0, 2])
    assert model.channels == plain.feature_info.channels()
    output = model(IMAGES)
    assert output.hidden_states is None
    for ours, expected in zip(output.feature_maps, plain(IMAGES), strict=True):
        assert torch.equal(ours, expected)


def test_hidden_states_are_the_stages_or_blocks() -> None:
    plain = make_plain('pvt', features_only=True, out_indices=(0, 1, 2, 3))
    model = InLineForImageClassification(InLineConfig.from_backbone(plain, num_labels=3)).eval()
    model.backbone.load_state_dict(plain.backbone.state_dict())
    output = model(IMAGES, output_hidden_states=True)
    for ours, expected in zip(output.hidden_states, plain(IMAGES), strict=True):
        assert torch.equal(ours, expected)
    assert model(IMAGES).hidden_states is None
    deit = InLineBackbone(make_config('deit', output_hidden_states=True))
    assert [tuple(tokens.shape) for tokens in deit(IMAGES).hidden_states] == [(2, 25, 16)] * 3
    with pytest.raises(UserError, match='output_attentions=True: linear attention'):
        model(IMAGES, output_attentions=True)


@FAMILIES
def test_save_and_load(family: str, tmp_path: Path) -> None:
    model = InLineForImageClassification.from_backbone(make_plain(family, num_classes=3), id2label=LABELS)
    model.save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    assert isinstance(config, InLineConfig)
    assert config.to_dict() == {**model.config.to_dict(), '_name_or_path': str(tmp_path)}
    again, info = AutoModelForImageClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert isinstance(again, InLineForImageClassification)
    assert not any(info.values())
    assert again.config.id2label == LABELS
    assert_same_weights(model, again)
    # Loaded weights are not aligned in memory, which changes the order of sums.
    torch.testing.assert_close(again.double()(IMAGES.double()).logits, model.double()(IMAGES.double()).logits)


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float64])
def test_the_type_of_the_weights_is_kept(dtype: torch.dtype, tmp_path: Path) -> None:
    InLineForImageClassification(make_config()).to(dtype).save_pretrained(tmp_path)
    assert InLineForImageClassification.from_pretrained(tmp_path).dtype == dtype
    model = InLineForImageClassification.from_pretrained(tmp_path, dtype=torch.float32)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


@pytest.mark.parametrize('arguments', [{'num_classes': 3}, {'features_only': True, 'out_indices': (1, 2)}])
def test_both_libraries_open_the_folders_of_the_other(arguments: dict[str, Any], tmp_path: Path) -> None:
    plain = make_plain('swin', **arguments)
    plain.save_pretrained(tmp_path / 'plain')
    model_class = InLineForImageClassification if 'num_classes' in arguments else InLineBackbone
    model, info = model_class.from_pretrained(tmp_path / 'plain', output_loading_info=True)
    assert not any(info.values())
    assert_same_weights(plain, model)
    model.save_pretrained(tmp_path / 'transformers')
    again = inline.InLineBackbone.from_pretrained(tmp_path / 'transformers')
    assert_same_weights(plain, again)
    for left, right in zip(plain.double()(IMAGES.double()), again.double()(IMAGES.double()), strict=True):
        torch.testing.assert_close(left, right)


def test_two_default_classes_are_read_from_a_config_without_names(tmp_path: Path) -> None:
    InLineForImageClassification(make_config()).save_pretrained(tmp_path)
    assert 'id2label' not in json.loads((tmp_path / 'config.json').read_text())
    head = inline.InLineBackbone.from_pretrained(tmp_path).head
    assert head is not None
    assert head.fc.out_features == 2


def test_a_classifier_becomes_a_backbone_of_its_first_stages(tmp_path: Path) -> None:
    plain = make_plain('pvt', num_classes=3)
    plain.save_pretrained(tmp_path)
    model, info = InLineBackbone.from_pretrained(tmp_path, out_indices=[0, 1], output_loading_info=True)
    assert not any(info.values())
    assert len(model.backbone.stages) == 2
    expected = plain.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())


def test_a_new_classifier_is_initialized_and_reported(tmp_path: Path) -> None:
    plain = make_plain('pvt', num_classes=3)
    plain.save_pretrained(tmp_path)
    model, info = AutoModelForImageClassification.from_pretrained(
        tmp_path, num_labels=5, ignore_mismatched_sizes=True, output_loading_info=True
    )
    assert {name for name, *_ in info['mismatched_keys']} == {'head.fc.weight', 'head.fc.bias'}
    assert model.head.fc.weight.shape == (5, 32)
    assert 0.01 < float(model.head.fc.weight.detach().std()) < 0.03
    assert not model.head.fc.bias.any()
    assert torch.equal(model.backbone.stages[0].blocks[0].mixer.qkv.weight,
                       plain.backbone.stages[0].blocks[0].mixer.qkv.weight)  # fmt: skip


@pytest.mark.parametrize('mixer', [*MIXERS, 'affine kernel'])
def test_missing_weights_are_initialized_as_in_the_plain_model(mixer: str) -> None:
    """transformers builds the modules on the meta device, which discards their initialisation."""
    mixers = {'type': 'InLine', 'kernel': 'affine_relu'} if mixer == 'affine kernel' else {'type': mixer}
    config = make_config(mixers=mixers)
    torch.manual_seed(0)
    plain = inline.InLineBackbone(**config.backbone_arguments(), num_classes=2)
    torch.manual_seed(0)
    model = InLineForImageClassification.from_pretrained(None, config=config, state_dict={})
    assert_same_weights(plain, model)


@FAMILIES
def test_gradient_checkpointing_recomputes_blocks(family: str) -> None:
    model = InLineForImageClassification(make_config(family, num_labels=3)).double().train()
    runs: list[nn.Module] = []
    first = model.backbone.blocks[0] if family == 'deit' else model.backbone.stages[0].blocks[0]
    # Recomputation stops at the last tensor that is needed, before hooks on the output.
    first.register_forward_pre_hook(lambda module, _: runs.append(module))

    def gradients() -> list[Tensor]:
        runs.clear()
        model.zero_grad()
        model(IMAGES.double(), labels=torch.tensor([0, 2])).loss.backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    expected = gradients()
    assert len(runs) == 1
    model.activation_checkpointing_enable()
    assert model.is_activation_checkpointing
    for left, right in zip(gradients(), expected, strict=True):
        torch.testing.assert_close(left, right)
    assert len(runs) == 2
    model.activation_checkpointing_disable()
    gradients()
    assert len(runs) == 1


def segmentation_labels() -> dict[str, Any]:
    return {'labels': torch.randint(0, 3, (2, 64, 96))}


def box_labels() -> dict[str, Any]:
    box = {'class_labels': torch.tensor([1]), 'boxes': torch.tensor([[0.5, 0.5, 0.2, 0.3]])}
    return {'labels': [box, box]}


def mask_labels() -> dict[str, Any]:
    masks = torch.stack([torch.ones(64, 96), torch.zeros(64, 96)])
    return {'mask_labels': [masks] * 2, 'class_labels': [torch.tensor([0, 1])] * 2}


SMALL = {'num_labels': 3, 'd_model': 16, 'encoder_layers': 1, 'decoder_layers': 1, 'num_queries': 5,
         'encoder_attention_heads': 2, 'decoder_attention_heads': 2, 'encoder_ffn_dim': 16,
         'decoder_ffn_dim': 16}  # fmt: skip
# Class, levels of the backbone, settings, labels.
Composite = tuple[str, list[int], dict[str, Any], Callable[[], dict[str, Any]]]
COMPOSITES: dict[str, Composite] = {
    'UperNet': (
        'UperNetForSemanticSegmentation',
        [0, 1, 2, 3],
        {'num_labels': 3, 'hidden_size': 16, 'auxiliary_in_channels': 24, 'auxiliary_channels': 8},
        segmentation_labels,
    ),
    'Detr': ('DetrForObjectDetection', [3], SMALL, box_labels),
    'RTDetr': (
        'RTDetrForObjectDetection',
        [1, 2, 3],
        {**SMALL, 'encoder_hidden_dim': 16, 'encoder_in_channels': [16, 24, 32],
         'decoder_in_channels': [16] * 3, 'num_denoising': 0},
        box_labels,
    ),
    'Mask2Former': (
        'Mask2FormerForUniversalSegmentation',
        [0, 1, 2, 3],
        {'num_labels': 3, 'feature_size': 32, 'mask_feature_size': 32, 'hidden_dim': 32, 'num_queries': 5,
         'encoder_feedforward_dim': 16, 'dim_feedforward': 16, 'encoder_layers': 1, 'decoder_layers': 2,
         'num_attention_heads': 2, 'train_num_points': 16},
        mask_labels,
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize('name', COMPOSITES)
def test_backbone_in_a_detector_or_segmentor(name: str, tmp_path: Path) -> None:
    class_name, levels, settings, labels = COMPOSITES[name]
    backbone_config = make_config(out_indices=levels, options={'out_norm': True})
    config = getattr(transformers, f'{name}Config')(backbone_config=backbone_config, **settings)
    model: PreTrainedModel = getattr(transformers, class_name)(config).train()
    (backbone,) = [module for module in model.modules() if isinstance(module, InLineBackbone)]
    backbone.gradient_checkpointing = True
    model(pixel_values=IMAGES, **labels()).loss.backward()
    assert all(parameter.grad.any() for parameter in backbone.parameters() if parameter.dim() > 1)
    model.save_pretrained(tmp_path)
    again, info = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values())
    assert_same_weights(model, again)
    (loaded,) = [module for module in again.modules() if isinstance(module, InLineBackbone)]
    assert (loaded.out_indices, loaded.channels) == (levels, backbone.channels)


def test_pretrained_backbone_in_upernet(tmp_path: Path) -> None:
    plain = make_plain('pvt', num_classes=3)
    plain.save_pretrained(tmp_path)
    backbone = InLineBackbone.from_pretrained(tmp_path, out_indices=[0, 1, 2, 3])
    _, _, settings, _ = COMPOSITES['UperNet']
    config = transformers.UperNetConfig(backbone_config=backbone.config, **settings)
    model = transformers.UperNetForSemanticSegmentation(config)
    model.backbone.load_state_dict(backbone.state_dict())
    assert model(IMAGES).logits.shape == (2, 3, 64, 96)
    assert torch.equal(model.backbone.backbone.stages[3].blocks[0].mlp.fc1.weight,
                       plain.backbone.stages[3].blocks[0].mlp.fc1.weight)  # fmt: skip


def make_stripes() -> list[dict[str, Any]]:
    """Images with vertical (0) or horizontal (1) stripes."""
    waves = [torch.sin(torch.arange(32.0) * (0.8 + i / 40)).expand(3, 32, 32) for i in range(32)]
    return [{'pixel_values': wave.mT if i % 2 else wave, 'labels': i % 2} for i, wave in enumerate(waves)]


@pytest.mark.slow
def test_trainer_learns_saves_and_loads(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = InLineForImageClassification(make_config(num_labels=2, options={'out_norm': True}))
    arguments = TrainingArguments(
        output_dir=str(tmp_path / 'run'),
        max_steps=30,
        per_device_train_batch_size=16,
        learning_rate=3e-3,
        activation_checkpointing=True,
        report_to=[],
        save_strategy='no',
        disable_tqdm=True,
        logging_strategy='no',
        use_cpu=True,
    )
    stripes = make_stripes()
    trainer = Trainer(model, arguments, train_dataset=stripes, eval_dataset=stripes)
    before = trainer.evaluate()['eval_loss']
    trainer.train()
    after = trainer.evaluate()['eval_loss']
    assert after < 0.5 * before
    trainer.save_model(str(tmp_path / 'model'))
    again = AutoModelForImageClassification.from_pretrained(tmp_path / 'model')
    images = torch.stack([sample['pixel_values'] for sample in stripes])
    assert again(images).logits.argmax(-1).tolist() == [0, 1] * 16


@pytest.fixture(scope='module')
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A digit classifier: its config and its checkpoint."""
    folder = tmp_path_factory.mktemp('digits')
    config = write_config(folder / 'digits.py')
    meta = {'cfg': load_config(config).pretty_text, 'dataset_meta': {'classes': CLASSES}}
    torch.save({'state_dict': make_weights(), 'meta': meta}, folder / 'iter_1.pth')
    return config, folder / 'iter_1.pth'


def write_digit(folder: Path) -> Path:
    """An image of the model's size: OpenCV's resize has no anti-aliasing, unlike that of transformers."""
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(folder / 'digit.png')
    return folder / 'digit.png'


@pytest.mark.parametrize('file_format', ['safetensors', 'pth'])
def test_pipeline_opens_a_published_folder(
    file_format: str, checkpoint: tuple[Path, Path], tmp_path: Path
) -> None:
    publish(checkpoint[1], tmp_path / 'out', file_format, config='digits')
    classify = pipeline('image-classification', str(tmp_path / 'out'), top_k=10)
    assert isinstance(classify.model, InLineForImageClassification)
    image = write_digit(tmp_path)
    scores = {row['label']: row['score'] for row in classify(str(image))}
    (expected,) = InLineModel(str(checkpoint[0]), str(checkpoint[1]))(str(image))
    assert expected.probs is not None
    assert scores == pytest.approx(dict(zip(CLASSES, expected.probs.tolist(), strict=True)), abs=1e-5)


def test_folder_of_an_earlier_version(checkpoint: tuple[Path, Path], tmp_path: Path) -> None:
    """Without `model_type` the Auto classes do not know the model; the classes themselves do."""
    publish(checkpoint[1], tmp_path, config='digits')
    content = json.loads((tmp_path / 'config.json').read_text())
    for key in ('model_type', 'transformers_weights', 'id2label', 'pretrained_cfg'):
        del content[key]
    (tmp_path / 'config.json').write_text(json.dumps(content))
    plain = inline.InLineBackbone.from_pretrained(tmp_path)
    model = InLineForImageClassification.from_pretrained(tmp_path)
    assert_same_weights(plain, model)
    assert model.config.num_labels == 10
    with pytest.raises(ValueError, match='Should have a `model_type` key'):
        AutoConfig.from_pretrained(tmp_path)


@pytest.mark.parametrize('backend', ['pil', 'torchvision'])
def test_image_processor_is_the_test_pipeline(backend: str, tmp_path: Path) -> None:
    from mmengine.dataset import Compose
    from mmengine.registry import init_default_scope

    y, x = np.mgrid[:300, :400]
    pixels = np.stack([x * 0.6, y * 0.8, 128 + 100 * np.sin(x / 9)], axis=-1).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / 'image.png')
    cfg = load_config(ROOT / 'configs' / 'inline_swin' / 'inline-swin-tiny_8xb128_in1k.py')
    init_default_scope('mmpretrain')
    bgr = Compose(cfg.test_dataloader.dataset.pipeline)({'img_path': str(tmp_path / 'image.png')})['inputs']
    mean, std = (torch.tensor(cfg.data_preprocessor[key])[:, None, None] for key in ('mean', 'std'))
    expected = (bgr.flip(0) - mean) / std
    create_image_processor(InLineConfig.from_name('inline_swin_tiny')).save_pretrained(tmp_path)
    InLineConfig.from_name('inline_swin_tiny').save_pretrained(tmp_path)
    processor = AutoImageProcessor.from_pretrained(tmp_path, backend=backend)
    found = processor(Image.open(tmp_path / 'image.png'), return_tensors='pt')['pixel_values'][0]
    assert found.shape == expected.shape == (3, 224, 224)
    # Two grey levels: rounding of the resampled image.
    assert float((found - expected).abs().max()) < 2 / 57
    assert float((found - expected).abs().mean()) < 0.2 / 57
    settings = image_processor_settings({'cfg': cfg.pretty_text}) or {}
    assert settings.pop('image_processor_type') == 'BitImageProcessor'
    for key, value in settings.items():
        found = processor.to_dict()[key]
        assert found == (value if isinstance(value, dict) else pytest.approx(value)), key


@pytest.mark.parametrize('name', ['inline_deit_small', 'inline_pvt_tiny', 'inline_cswin_base_384'])
def test_image_size_of_the_released_models(name: str) -> None:
    side = OFFICIAL[name.replace('_', '-')].img_size
    config = InLineConfig.from_name(name)
    processor = create_image_processor(config)
    assert processor.crop_size == {'height': side, 'width': side}
    assert processor.size == {'height': round(side * 256 / 224), 'width': round(side * 256 / 224)}
    config.img_size = None
    side = 288 if 'deit' in name else 224
    assert create_image_processor(config, crop_ratio=1).size == {'height': side, 'width': side}
    assert not create_image_processor(config, crop_ratio=1).do_center_crop


@pytest.mark.parametrize(
    ('text', 'is_known'),
    [
        ("dict(type='Resize', scale=(48, 32))", True),
        ("dict(type='Resize', scale=48, keep_ratio=True)", False),
        ("dict(type='ResizeEdge', scale=48, edge='long')", False),
        ("dict(type='CenterCrop', crop_size=48, efficientnet_style=True)", False),
        ("dict(type='Pad', size=48)", False),
    ],
)
def test_unknown_steps_write_no_image_processor(text: str, is_known: bool) -> None:
    pixels = 'data_preprocessor = dict(mean=[0.0], std=[255.0], to_rgb={})\n'
    loader = f"test_dataloader = dict(dataset=dict(pipeline=[dict(type='LoadImageFromFile'), {text}]))"
    settings = image_processor_settings({'cfg': pixels.format(True) + loader})
    assert (settings is not None) == is_known
    if settings is not None:
        assert settings['size'] == {'height': 32, 'width': 48}
        assert settings['image_std'] == [1.0]
        assert image_processor_settings({'cfg': pixels.format(False) + loader}) is None


@pytest.mark.parametrize(
    ('settings', 'message'),
    [
        ({'family': 'vgg'}, "unknown family 'vgg'"),
        ({'arch': 'huge'}, "unknown arch 'huge'"),
        ({'arch': {**PYRAMID, 'depths': [1, 1, 1, 10**9]}}, 'sum of depths'),
        ({'in_chans': 'three'}, "in_chans 'three' of InLineConfig"),
        ({'img_size': '224'}, "img_size '224' of InLineConfig"),
    ],
)
def test_wrong_settings_raise_in_one_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as raised:
        InLineConfig(**settings)
    assert '\n' not in str(raised.value)


def test_models_without_classes_or_stages_raise() -> None:
    with pytest.raises(UserError, match='num_labels 0'):
        InLineForImageClassification(make_config(num_labels=0))
    with pytest.raises(UserError, match='create it with num_classes'):
        InLineForImageClassification.from_backbone(make_plain('pvt'))
    with pytest.raises(ValueError, match='stage_names'):
        make_config(out_features=['stage5'])
    with pytest.raises(UserError, match='unknown backbone'):
        InLineConfig.from_name('inline_vgg')


def test_names_of_transformers() -> None:
    config = InLineConfig(image_size=96, num_channels=1)
    assert (config.img_size, config.in_chans) == (96, 1)
    assert (config.image_size, config.num_channels) == (96, 1)
    assert config.stage_names == ['stage1', 'stage2', 'stage3', 'stage4']
    assert len(InLineConfig(family='deit').stage_names) == 12


def test_missing_package_is_named() -> None:
    code = (
        'import sys; sys.modules["transformers"] = None\n'
        'from inline.utils.errors import UserError\n'
        'try:\n    import inline.hub.transformers\n'
        'except UserError as error:\n    print(error)\n'
        'print(sorted(n for n in sys.modules if n.startswith("mm")))\n'
    )
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True, cwd=ROOT)
    message, modules = done.stdout.strip().splitlines()
    assert 'pip install transformers' in message
    assert not [name for name in modules if name in ('mmengine', 'mmcv', 'mmpretrain')]


def test_another_pooling_than_that_of_the_family_is_refused(tmp_path: Path) -> None:
    inline.create_backbone('inline_pvt_nano', num_classes=3).save_pretrained(tmp_path / 'usual')
    assert AutoModelForImageClassification.from_pretrained(tmp_path / 'usual').config.num_labels == 3
    inline.create_backbone('inline_deit_micro', num_classes=3, global_pool='avg').save_pretrained(
        tmp_path / 'other'
    )
    with pytest.raises(UserError, match="global_pool 'avg': the transformers classes of deit use 'token'"):
        AutoModelForImageClassification.from_pretrained(tmp_path / 'other')
