"""Reading configs, and errors in configs reported in one line before anything is built."""

from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS as ROOT_MODELS
from mmengine.registry import Registry

from inline.apis.export.model import default_size
from inline.datasets.validation.checks import check_paths
from inline.engine.config import (
    check_config,
    check_paramwise,
    check_phases,
    image_size,
    load_config,
    set_data_root,
)
from inline.utils.errors import UserError, exit_on_user_error
from tests.conftest import ROOT

CLASSIFIER = ROOT / 'configs' / 'digits' / 'inline-pvt-micro_digits.py'
DETECTOR = ROOT / 'configs' / 'digits' / 'retinanet_inline-pvt-micro_digits.py'
SEGMENTER = ROOT / 'configs' / 'digits' / 'semantic-fpn_inline-pvt-micro_digits.py'
UPERNET = ROOT / 'configs' / 'digits' / 'upernet_inline-pvt-micro_digits.py'
IMAGENET = ROOT / 'configs' / 'inline_pvt' / 'inline-pvt-tiny_8xb128_in1k.py'
# One config of each folder: the others differ from it in numbers.
LEAVES = sorted(
    {path.parent: path for path in sorted((ROOT / 'configs').glob('[a-z]*/*.py'))}.values(), key=str
)
MICRO = {
    '_delete_': True,
    'embed_dims': (32, 64, 128, 192),
    'depths': (1, 2, 2, 1),
    'num_heads': (2, 4, 8, 12),
}
HUGE = {**MICRO, 'embed_dims': (16384,) * 4, 'depths': (40,) * 4, 'num_heads': (8,) * 4}
DIGITS = sorted((ROOT / 'configs' / 'digits').glob('*.py'))


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize('path', DIGITS, ids=lambda path: path.stem)
def test_digits_configs_load(path: Path) -> None:
    cfg = load_config(path)
    assert cfg.model.backbone.type == 'inline.InLinePVT'
    assert cfg.train_dataloader.dataset.data_root.startswith('data/digit_scenes')
    assert {backend.type for backend in cfg.visualizer.vis_backends} == {
        'LocalVisBackend',
        'TensorboardVisBackend',
    }
    assert len(path.read_text().splitlines()) <= 45


@pytest.mark.parametrize(
    ('module', 'message'),
    [
        (None, "No module named 'my_attention'"),
        ('from inline.models.mixers import Wrong', "cannot import name 'Wrong' from 'inline.models.mixers'"),
    ],
)
def test_a_failed_custom_import_is_reported_with_its_reason(
    module: str | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write(tmp_path / 'config.py', "custom_imports = dict(imports=['my_attention'])")
    if module is not None:
        write(tmp_path / 'my_attention.py', module)
        monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError) as caught:
        load_config(config)
    assert message in str(caught.value)
    assert 'PYTHONPATH must name the folder' in str(caught.value)
    assert '\n' not in str(caught.value)


@pytest.mark.parametrize(
    ('config', 'size'),
    [
        ('inline_deit/inline-deit-tiny_8xb512_in1k', (224, 224)),
        ('inline_deit/inline-deit-small_8xb128_in1k-288px', (288, 288)),
        ('inline_deit/inline-deit-base_8xb64_in1k-448px', (448, 448)),
        ('inline_swin/inline-swin-base_8xb64_in1k-384px', (384, 384)),
        ('digits_quick/inline-pvt-nano_digits', (32, 32)),
        ('ablations/baselines/digits/inline', (64, 64)),
    ],
)
def test_image_size_of_the_backbone(config: str, size: tuple[int, int]) -> None:
    cfg = load_config(ROOT / 'configs' / f'{config}.py')
    assert default_size(cfg) == image_size(cfg) == size
    cfg.model.backbone.img_size = (64, 96)
    assert default_size(cfg) == image_size(cfg) == (64, 96)


def test_options_override_settings() -> None:
    cfg = load_config(DIGITS[0], {'train_dataloader.batch_size': 3, 'optim_wrapper.optimizer.lr': 0.5})
    assert cfg.train_dataloader.batch_size == 3
    assert cfg.optim_wrapper.optimizer.lr == 0.5


def test_unreadable_configs_are_reported_in_one_line(tmp_path: Path) -> None:
    mistyped = ROOT / 'configs' / 'digits' / 'inline-pvt-micro_digit.py'
    with pytest.raises(UserError, match=r'does not exist: did you mean .*/inline-pvt-micro_digits\.py\?'):
        load_config(mistyped)
    with pytest.raises(UserError, match=r"config 'nowhere\.py' does not exist"):
        load_config('nowhere.py')
    with pytest.raises(UserError, match='cannot be read'):
        load_config(write(tmp_path / 'broken.py', 'model = dict('))
    with pytest.raises(UserError, match='cannot be read'):
        load_config(write(tmp_path / 'orphan.py', "_base_ = './missing.py'"))
    with pytest.raises(UserError, match=r"notes\.md' cannot be read: Only py"):
        load_config(write(tmp_path / 'notes.md', 'model = dict()'))
    with pytest.raises(UserError, match=r'default_scope None: .* one of mmpretrain, mmdet, mmseg'):
        load_config(write(tmp_path / 'nobody.py', 'model = dict()'))
    with pytest.raises(UserError, match='--cfg-options do not fit'):
        load_config(DIGITS[0], {'param_scheduler.7.end': 3})


def test_missing_data_and_weights_are_reported(tmp_path: Path) -> None:
    cfg = load_config(ROOT / 'configs' / 'digits' / 'mask-rcnn_inline-pvt-micro_digits.py')
    cfg.train_dataloader.dataset.data_root = str(tmp_path / 'digit_scenes')
    with pytest.raises(
        UserError, match=r"digit_scenes' of train_dataloader does not exist: .*make_digit_scenes"
    ):
        check_paths(cfg, ('train_dataloader',))
    (tmp_path / 'digit_scenes').mkdir()
    with pytest.raises(UserError, match=r'annotation file .*instances_train\.json'):
        check_paths(cfg, ('train_dataloader',))
    cfg.train_dataloader.dataset = {
        'type': 'RepeatDataset',
        'times': 2,
        'dataset': cfg.train_dataloader.dataset,
    }
    with pytest.raises(UserError, match=r'annotation file .*instances_train\.json'):
        check_paths(cfg, ('train_dataloader',))
    cfg.model.backbone.init_cfg = {'type': 'Pretrained', 'checkpoint': 'no.pth'}
    with pytest.raises(UserError, match=r"model\.backbone\.init_cfg\.checkpoint 'no\.pth' does not exist"):
        check_paths(cfg, ())
    cfg.model.backbone.init_cfg.checkpoint = 'https://example.org/weights.pth'
    cfg.load_from = 'gone.pth'
    with pytest.raises(UserError, match=r"load_from 'gone\.pth' does not exist"):
        check_paths(cfg, ())


def test_imagenet_may_be_a_zip_file(tmp_path: Path) -> None:
    cfg = load_config(ROOT / 'configs' / 'inline_pvt' / 'inline-pvt-tiny_8xb128_in1k.py')
    set_data_root(cfg, tmp_path)
    (tmp_path / 'imagenet' / 'train').mkdir(parents=True)
    check_paths(cfg, ('train_dataloader',))
    with pytest.raises(
        UserError, match=r"imagenet/val' of val_dataloader does not exist: .*prepare_data\.py imagenet PATH"
    ):
        check_paths(cfg, ('train_dataloader', 'val_dataloader'))
    (tmp_path / 'imagenet' / 'val.zip').touch()
    check_paths(cfg, ('train_dataloader', 'val_dataloader'))


def test_stored_logits_are_in_the_data_root() -> None:
    cfg = load_config('inline-pvt-micro-distilled_tiny-imagenet')
    set_data_root(cfg, '/datasets')
    assert cfg.model.teacher.file == '/datasets/tiny-imagenet-200_logits.npy'
    assert cfg.train_dataloader.dataset.data_root == '/datasets/tiny-imagenet-200'


@pytest.mark.parametrize('path', LEAVES, ids=lambda path: path.parent.name)
def test_our_configs_pass_the_checks(path: Path) -> None:
    cfg = load_config(path)
    before = cfg.to_dict()
    check_config(cfg)
    assert cfg.to_dict() == before


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (
            {'model.backbone.drop_path': 0.1},
            r"^model\.backbone: unknown argument 'drop_path' of InLinePVT: it takes frozen_stages, autocast, "
            r"init_cfg, arch, .* \(did you mean 'drop_path_rate'\?\)$",
        ),
        ({'model.backbone.out_indices': True}, 'out_indices True of InLinePVT: must be a list of integers'),
        ({'model.backbone.img_size': '48'}, "img_size '48' of InLinePVT: must be an integer or a list"),
        ({'model.backbone.img_size': 0}, 'img_size 0: must be one size or .* each from 32 to 16384'),
        ({'model.backbone.drop_path_rate': 1.5}, r'drop_path_rate 1\.5: must be at least 0 and below 1'),
        ({'model.backbone.arch': {**MICRO, 'num_heads': (3, 4, 8, 12)}}, 'width 32 is not divisible by 3'),
        ({'model.backbone.arch': {**MICRO, 'depths': 2}}, 'depths 2 of arch: must be a list of integers'),
        ({'model.backbone.arch': {**MICRO, 'depths': (1, 2, 2, 10**6)}}, 'depths 1000000: must be from 1'),
        ({'model.backbone.arch': {**MICRO, 'depth': 2}}, r"unknown key 'depth' of arch: .*mean 'depths'\?\)"),
        ({'model.backbone.arch': HUGE}, r'GiB of parameters: this machine has \d'),
        ({'model.backbone.mixers': [{'type': 'InLine'}] * 3}, 'mixers has 3 entries: must be one dict'),
        ({'model.backbone.mixers': {'type': 'Inline'}}, r"unknown mixer type 'Inline'.*mean 'InLine'"),
        ({'model.backbone.mixers': {'type': 'InLine', 'kernel': 'cos'}}, "unknown kernel 'cos'"),
        ({'model.backbone.mixers': {'type': 'Softmax', 'qkv_bias': 'False'}},
         "qkv_bias 'False' of mixer 'Softmax': must be True or False"),
        ({'model.backbone.init_cfg': {'type': 'Pretained'}}, r"init_cfg type 'Pretained'.*mean 'Pretrained'"),
        ({'model.backbone.init_cfg': {'_delete_': True, 'type': 'Pretrained'}}, r'init_cfg\.checkpoint None'),
        ({'model.backbone.type': 'inline.InLineSwim'}, r"unknown type 'inline\.InLineSwim'.*InLineSwin'\?\)"),
        ({'train_dataloader.batchsize': 4}, r"unknown key 'batchsize' of train_data.*mean 'batch_size'"),
        ({'train_dataloader.batch_size': '4'}, "batch_size '4' of train_dataloader: must be an integer"),
        ({'train_dataloader.batch_size': 0}, r'train_dataloader\.batch_size 0: must be from 1'),
        ({'val_dataloader.num_workers': 0}, 'val_dataloader has persistent_workers True and num_workers 0'),
        ({'train_cfg.max_iters': 'two'}, "max_iters 'two' of train_cfg: must be an integer"),
        ({'compile': 'True'}, "compile 'True': must be True or False, a dict or None"),
        ({'resume': 'auto'}, "resume 'auto': must be True or False"),
        ({'load_from': 3}, 'load_from 3: must be a string or None'),
        ({'auto_scale_lr': True}, 'auto_scale_lr True: must be a dict or None'),
        ({'auto_scale_lr': {'base_batch': 8}}, "unknown key 'base_batch' of auto_scale_lr: it takes"),
        ({'auto_scale_lr': {'base_batch_size': 64.0}}, r'base_batch_size 64\.0 of auto_scale_lr: must'),
        ({'randomness': {'_delete_': True}}, 'randomness lacks seed: it must be an integer'),
        ({'randomness.seed': '1'}, "seed '1' of randomness: must be an integer or None"),
        ({'randomness.seed': -1}, r'randomness\.seed -1: must be from 0 to 4294967295'),
        ({'randomness.sed': 1}, r"unknown key 'sed' of randomness: .* \(did you mean 'seed'\?\)"),
        ({'optim_wrapper.constructor': 'inline.LayerDecay'}, r"'inline\.LayerDecay': choose one of"),
        ({'optim_wrapper.constructor': 'inline.LayerDecayConstructor',
          'optim_wrapper.paramwise_cfg': {'layer_decay': 0.5}},
         r"unknown key 'layer_decay' of paramwise_cfg: .* \(did you mean 'layer_decay_rate'\?\)"),
    ],
    ids=lambda value: str(value)[:50],
)  # fmt: skip
def test_errors_quote_the_value_and_what_is_allowed(options: dict[str, Any], message: str) -> None:
    cfg = load_config(CLASSIFIER, options)
    with pytest.raises(UserError, match=message) as error:
        check_config(cfg)
    assert '\n' not in str(error.value)


@pytest.mark.parametrize(
    ('config', 'options', 'message'),
    [
        (DETECTOR, {'model.bbox_head.num_classes': 'ten'},
         r"^model\.bbox_head: num_classes 'ten' of RetinaHead: must be an integer$"),
        (DETECTOR, {'model.bbox_head.in_channels': 0}, r'^model\.bbox_head: in_channels 0: must be from 1'),
        (DETECTOR, {'model.bbox_head.reg_decoded_bbox': 'no'}, "'no' of RetinaHead: must be True or False"),
        (DETECTOR, {'model.bbox_head.foo': 1},
         r"^model\.bbox_head: unknown argument 'foo' of RetinaHead: it takes num_classes, in_channels"),
        (DETECTOR, {'model.bbox_head.type': 'inline.RetinaHed'},
         r"^model\.bbox_head: unknown type 'inline\.RetinaHed': choose one .*mean 'inline\.RetinaHead'"),
        (CLASSIFIER, {'model.head.in_channels': 100},
         r'^model\.head\.in_channels 100: the backbone returns 192 channels$'),
        (DETECTOR, {'model.backbone.arch': 'nano'},
         r'^model\.neck\.in_channels \[64, 128, 192\]: the backbone returns \[48, 64, 96\] channels$'),
        (UPERNET, {'model.decode_head.in_channels': [32, 64, 128, 128]},
         r'^model\.decode_head\.in_channels .*: the backbone returns \[32, 64, 128, 192\] channels$'),
        (UPERNET, {'model.auxiliary_head.in_index': 4},
         r'^model\.auxiliary_head\.in_index 4: must be from -4 to 3'),
        (SEGMENTER, {'model.decode_head.loss_decode.use_sigmoid': 'False'},
         r"^model\.decode_head\.loss_decode: use_sigmoid 'False' of CrossEntropyLoss: must be True or"),
        (SEGMENTER, {'model.decode_head.loss_decode.weight': 2},
         "unknown argument 'weight' of CrossEntropyLoss: it takes use_sigmoid, .*mean 'loss_weight'"),
    ],
    ids=lambda value: str(value)[-50:],
)  # fmt: skip
def test_our_subclasses_of_toolbox_modules_are_checked(
    config: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        check_config(load_config(config, options))


def test_arguments_of_our_dataset_are_checked() -> None:
    cfg = load_config(IMAGENET, {'train_dataloader.dataset.spilt': 'train'})
    with pytest.raises(UserError, match=r"^train_dataloader\.dataset: unknown argument 'spilt' of ImageNet"):
        check_config(cfg)


def test_options_of_unknown_settings_are_rejected() -> None:
    with pytest.raises(UserError) as error:
        load_config(CLASSIFIER, {'train_dataloder.batch_size': 4})
    assert str(error.value) == (
        "--cfg-options 'train_dataloder.batch_size': the config has no 'train_dataloder' "
        "(did you mean 'train_dataloader'?)"
    )
    assert load_config(CLASSIFIER, {'compile': True, 'experiment_name': 'a'}).experiment_name == 'a'


def test_a_config_without_a_model_is_rejected() -> None:
    cfg = load_config(CLASSIFIER)
    cfg.pop('model')
    with pytest.raises(UserError, match='the config has no model'):
        check_config(cfg)


@pytest.mark.parametrize('rate', [0, -0.5, 1.5, float('nan')])
def test_layer_decay_rate_is_between_0_and_1(rate: float) -> None:
    check_paramwise({'layer_decay_rate': 0.5, 'custom_keys': {'.norm': {'decay_mult': 0}}})
    with pytest.raises(UserError, match=f'layer_decay_rate {rate} of paramwise_cfg: must be above 0'):
        check_paramwise({'layer_decay_rate': rate})


TOYS = Registry('toy')


@TOYS.register_module()
class Toy:
    def __init__(self, size: int, **options: int) -> None:
        self.size = take(**options)
        if size == 0:
            torch.zeros(1, wrong=2)
        if size < 0:
            raise ValueError(f'size is {size},\nmust be positive')
        if size == 9:
            # As a plain assert, whose text pytest would change.
            raise AssertionError


def take(colour: int = 0) -> int:
    return colour


@pytest.mark.parametrize(
    ('config', 'message'),
    [
        ({'type': 'Toy', 'size': 1, 'color': 2}, "error: unknown key 'color' of Toy"),
        ({'type': 'Toy'}, "error: Toy lacks 'size'"),
        ({'type': 'Tow'}, 'error: unknown type Tow is not in the'),
        ({'type': 'Toy', 'size': -1}, 'error: Toy: size is -1, must be positive'),
        ({'type': 'Toy', 'size': 9}, 'error: Toy: does not accept size=9'),
    ],
)
def test_errors_of_the_builder_are_reported_in_one_line(
    config: dict, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exited, exit_on_user_error():
        TOYS.build(config)
    assert exited.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(message)


def test_other_errors_are_not_changed() -> None:
    with pytest.raises(TypeError, match='wrong'), exit_on_user_error():
        TOYS.build({'type': 'Toy', 'size': 0})
    with pytest.raises(KeyError), exit_on_user_error():
        dict.__getitem__({}, 'type')
    assert ROOT_MODELS.get('inline.InLinePVT') is not None


def test_settings_of_a_phase_are_required_together() -> None:
    phases = {
        'train': ('train_dataloader', 'train_cfg', 'optim_wrapper'),
        'val': ('val_dataloader', 'val_cfg', 'val_evaluator'),
        'test': ('test_dataloader', 'test_cfg', 'test_evaluator'),
    }
    complete = {name: {'type': 'some'} for names in phases.values() for name in names}
    for needed in ('train', 'test'):
        check_phases(Config(complete), needed)
        check_phases(Config({name: complete[name] for name in phases[needed]}), needed)
        with pytest.raises(UserError, match=f'the config has no {phases[needed][0]}: .* belong together'):
            check_phases(Config({}), needed)
        for names in phases.values():
            for name in names:
                with pytest.raises(UserError, match=f'the config has no {name}: {", ".join(names)} belong'):
                    check_phases(Config({**complete, name: None}), needed)
