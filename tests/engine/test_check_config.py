"""Configs held against what takes them, before anything is built or read."""

from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS as ROOT_MODELS
from mmengine.registry import Registry

from inline.engine.check_config import check_config, check_paramwise, check_phases
from inline.engine.config import load_config
from inline.errors import UserError, exit_on_user_error
from tests.conftest import ROOT

CLASSIFIER = ROOT / 'configs' / 'digits' / 'inline-pvt-micro_digits.py'
DETECTOR = ROOT / 'configs' / 'digits' / 'retinanet_inline-pvt-micro_digits.py'
SEGMENTER = ROOT / 'configs' / 'digits' / 'semantic-fpn_inline-pvt-micro_digits.py'
IMAGENET = ROOT / 'configs' / 'inline_pvt' / 'inline-pvt-tiny_8xb128_in1k.py'
# One leaf of each folder: the rest differ from it in numbers.
LEAVES = sorted(
    {path.parent: path for path in sorted((ROOT / 'configs').glob('[a-z]*/*.py'))}.values(), key=str
)


@pytest.mark.parametrize('path', LEAVES, ids=lambda path: path.parent.name)
def test_our_own_configs_pass(path: Path) -> None:
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
        ({'model.backbone.out_indices': True}, 'out_indices True of InLinePVT: must be a list of whole num'),
        ({'model.backbone.img_size': '48'}, "img_size '48' of InLinePVT: must be a whole number or a list"),
        ({'model.backbone.img_size': 0}, 'img_size 0: must be one size or .* each from 32 to 16384'),
        ({'model.backbone.drop_path_rate': 1.5}, r'drop_path_rate 1\.5: must be at least 0 and below 1'),
        ({'model.backbone.arch.num_heads': (3, 4, 8, 12)}, 'width 32 is not divisible by 3 heads'),
        ({'model.backbone.arch.depths': 2}, 'depths 2 of arch: must be a list of whole numbers'),
        ({'model.backbone.arch.depths': (1, 2, 2, 10**6)}, 'depths 1000000: must be from 1 to 1000'),
        ({'model.backbone.arch.depth': 2}, r"unknown key 'depth' of arch: .* \(did you mean 'depths'\?\)"),
        ({'model.backbone.arch.embed_dims': (16384,) * 4, 'model.backbone.arch.depths': (40,) * 4,
          'model.backbone.arch.num_heads': (8,) * 4}, r'GiB of parameters: this machine has \d'),
        ({'model.backbone.mixers': [{'type': 'InLine'}] * 3}, 'mixers has 3 entries: one dict, or one entry'),
        ({'model.backbone.mixers': {'type': 'Inline'}}, r"unknown mixer type 'Inline'.*mean 'InLine'"),
        ({'model.backbone.mixers': {'type': 'InLine', 'kernel': 'cos'}}, "unknown kernel 'cos'"),
        ({'model.backbone.mixers': {'type': 'Softmax', 'qkv_bias': 'False'}},
         "qkv_bias 'False' of mixer 'Softmax': must be True or False"),
        ({'model.backbone.init_cfg': {'type': 'Pretained'}}, r"init_cfg type 'Pretained'.*mean 'Pretrained'"),
        ({'model.backbone.init_cfg': {'_delete_': True, 'type': 'Pretrained'}}, r'init_cfg\.checkpoint None'),
        ({'model.backbone.type': 'inline.InLineSwim'}, r"unknown type 'inline\.InLineSwim'.*InLineSwin'\?\)"),
        ({'train_dataloader.batchsize': 4}, r"unknown key 'batchsize' of train_data.*mean 'batch_size'"),
        ({'train_dataloader.batch_size': '4'}, "batch_size '4' of train_dataloader: must be a whole number"),
        ({'train_dataloader.batch_size': 0}, r'train_dataloader\.batch_size 0: must be from 1'),
        ({'val_dataloader.num_workers': 0}, 'val_dataloader has persistent_workers True and num_workers 0'),
        ({'train_cfg.max_iters': 'two'}, "max_iters 'two' of train_cfg: must be a whole number"),
        ({'compile': 'True'}, "compile 'True': must be True or False, a dict or None"),
        ({'resume': 'auto'}, "resume 'auto': must be True or False"),
        ({'load_from': 3}, 'load_from 3: must be a string or None'),
        ({'auto_scale_lr': True}, 'auto_scale_lr True: must be a dict or None'),
        ({'auto_scale_lr': {'base_batch': 8}}, "unknown key 'base_batch' of auto_scale_lr: it takes"),
        ({'auto_scale_lr': {'base_batch_size': 64.0}}, r'base_batch_size 64\.0 of auto_scale_lr: must'),
        ({'randomness': {'_delete_': True}}, 'randomness lacks seed: it must be a whole number'),
        ({'randomness.seed': '1'}, "seed '1' of randomness: must be a whole number or None"),
        ({'randomness.seed': -1}, r'randomness\.seed -1: must be from 0 to 4294967295'),
        ({'randomness.sed': 1}, r"unknown key 'sed' of randomness: .* \(did you mean 'seed'\?\)"),
        ({'optim_wrapper.constructor': 'inline.LayerDecay'}, r"'inline\.LayerDecay': choose one of"),
        ({'optim_wrapper.constructor': 'inline.LayerDecayConstructor',
          'optim_wrapper.paramwise_cfg': {'layer_decay': 0.5}},
         r"unknown key 'layer_decay' of paramwise_cfg: .* \(did you mean 'layer_decay_rate'\?\)"),
    ],
    ids=lambda value: str(value)[:50],
)  # fmt: skip
def test_a_mistake_is_told_with_its_value_and_what_is_allowed(options: dict[str, Any], message: str) -> None:
    cfg = load_config(CLASSIFIER, options)
    with pytest.raises(UserError, match=message) as error:
        check_config(cfg)
    assert '\n' not in str(error.value)


@pytest.mark.parametrize(
    ('config', 'options', 'message'),
    [
        (DETECTOR, {'model.bbox_head.num_classes': 'ten'},
         r"^model\.bbox_head: num_classes 'ten' of RetinaHead: must be a whole number$"),
        (DETECTOR, {'model.bbox_head.in_channels': 0}, r'^model\.bbox_head: in_channels 0: must be from 1'),
        (DETECTOR, {'model.bbox_head.reg_decoded_bbox': 'no'}, "'no' of RetinaHead: must be True or False"),
        (DETECTOR, {'model.bbox_head.foo': 1},
         r"^model\.bbox_head: unknown argument 'foo' of RetinaHead: it takes num_classes, in_channels"),
        (DETECTOR, {'model.bbox_head.type': 'inline.detection.RetinaHed'},
         r"^model\.bbox_head: unknown type 'inline\.detection\.RetinaHed': the package has nothing"),
        (SEGMENTER, {'model.decode_head.loss_decode.use_sigmoid': 'False'},
         r"^model\.decode_head\.loss_decode: use_sigmoid 'False' of CrossEntropyLoss: must be True or"),
        (SEGMENTER, {'model.decode_head.loss_decode.weight': 2},
         "unknown argument 'weight' of CrossEntropyLoss: it takes use_sigmoid, .*mean 'loss_weight'"),
    ],
    ids=lambda value: str(value)[-50:],
)  # fmt: skip
def test_changed_modules_of_a_toolbox_are_checked_too(
    config: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        check_config(load_config(config, options))


def test_options_of_our_data_set_are_checked_before_it_is_read() -> None:
    cfg = load_config(IMAGENET, {'train_dataloader.dataset.spilt': 'train'})
    with pytest.raises(UserError, match=r"^train_dataloader\.dataset: unknown argument 'spilt' of ImageNet"):
        check_config(cfg)


def test_options_must_begin_with_a_setting_that_is_read() -> None:
    with pytest.raises(UserError) as error:
        load_config(CLASSIFIER, {'train_dataloder.batch_size': 4})
    assert str(error.value) == (
        "--cfg-options 'train_dataloder.batch_size': the config has no 'train_dataloder' "
        "(did you mean 'train_dataloader'?)"
    )
    assert load_config(CLASSIFIER, {'compile': True, 'experiment_name': 'a'}).experiment_name == 'a'


def test_a_config_needs_a_model() -> None:
    cfg = load_config(CLASSIFIER)
    cfg.pop('model')
    with pytest.raises(UserError, match='the config has no model'):
        check_config(cfg)


@pytest.mark.parametrize('rate', [0, -0.5, 1.5, float('nan')])
def test_the_decay_of_layers_is_a_share(rate: float) -> None:
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


def take(colour: int = 0) -> int:
    return colour


@pytest.mark.parametrize(
    ('config', 'message'),
    [
        ({'type': 'Toy', 'size': 1, 'color': 2}, "error: unknown key 'color' of Toy"),
        ({'type': 'Toy'}, "error: Toy lacks 'size'"),
        ({'type': 'Tow'}, 'error: unknown type Tow is not in the'),
    ],
)
def test_a_key_that_a_toolbox_refuses_is_one_line_too(
    config: dict, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as leaving, exit_on_user_error():
        TOYS.build(config)
    assert leaving.value.code == 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1
    assert told[0].startswith(message)


def test_other_errors_keep_their_traceback() -> None:
    with pytest.raises(TypeError, match='wrong'), exit_on_user_error():
        TOYS.build({'type': 'Toy', 'size': 0})
    with pytest.raises(KeyError), exit_on_user_error():
        dict.__getitem__({}, 'type')
    assert ROOT_MODELS.get('inline.InLinePVT') is not None


def test_the_parts_of_a_phase_belong_together() -> None:
    phases = {
        'train': ('train_dataloader', 'train_cfg', 'optim_wrapper'),
        'val': ('val_dataloader', 'val_cfg', 'val_evaluator'),
        'test': ('test_dataloader', 'test_cfg', 'test_evaluator'),
    }
    whole = {name: {'type': 'some'} for names in phases.values() for name in names}
    for needed in ('train', 'test'):
        check_phases(Config(whole), needed)
        check_phases(Config({name: whole[name] for name in phases[needed]}), needed)
        with pytest.raises(UserError, match=f'the config has no {phases[needed][0]}: .* belong together'):
            check_phases(Config({}), needed)
        for names in phases.values():
            for name in names:
                with pytest.raises(UserError, match=f'the config has no {name}: {", ".join(names)} belong'):
                    check_phases(Config({**whole, name: None}), needed)
