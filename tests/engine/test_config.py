from pathlib import Path

import pytest

from inline.engine.config import check_paths, image_size, load_config, set_data_root
from inline.errors import UserError
from inline.export.model import backbone_size, usual_size
from tests.conftest import ROOT

DIGITS = sorted((ROOT / 'configs' / 'digits').glob('*.py'))


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize('path', DIGITS, ids=lambda path: path.stem)
def test_every_digits_config_loads_and_names_our_backbone(path: Path) -> None:
    cfg = load_config(path)
    assert cfg.model.backbone.type == 'inline.InLinePVT'
    assert cfg.train_dataloader.dataset.data_root.startswith('data/digit_scenes')
    assert {backend.type for backend in cfg.visualizer.vis_backends} == {
        'LocalVisBackend',
        'TensorboardVisBackend',
    }
    assert len(path.read_text().splitlines()) <= 45


@pytest.mark.parametrize(
    ('module', 'told'),
    [
        (None, "No module named 'my_attention'"),
        ('from inline.models.mixers import Wrong', "cannot import name 'Wrong' from 'inline.models.mixers'"),
    ],
)
def test_a_custom_import_that_fails_is_told_with_its_reason(
    module: str | None, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write(tmp_path / 'config.py', "custom_imports = dict(imports=['my_attention'])")
    if module is not None:
        write(tmp_path / 'my_attention.py', module)
        monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError) as caught:
        load_config(config)
    assert told in str(caught.value)
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
        ('ablations/rivals/digits/inline', (32, 32)),
    ],
)
def test_models_are_counted_and_exported_at_the_size_they_are_made_for(
    config: str, size: tuple[int, int]
) -> None:
    cfg = load_config(ROOT / 'configs' / f'{config}.py')
    assert usual_size(cfg) == image_size(cfg) == size
    cfg.model.backbone.img_size = (64, 96)
    assert usual_size(cfg) == image_size(cfg) == (64, 96)
    assert backbone_size(cfg) == 96


def test_options_override_settings() -> None:
    cfg = load_config(DIGITS[0], {'train_dataloader.batch_size': 3, 'optim_wrapper.optimizer.lr': 0.5})
    assert cfg.train_dataloader.batch_size == 3
    assert cfg.optim_wrapper.optimizer.lr == 0.5


def test_bad_configs_are_told_in_one_line(tmp_path: Path) -> None:
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


def test_missing_data_and_weights_are_found_before_anything_is_built(tmp_path: Path) -> None:
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


def test_imagenet_may_be_packed(tmp_path: Path) -> None:
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
