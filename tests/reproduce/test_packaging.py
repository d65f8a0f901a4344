"""Packaging a training checkpoint: weights in the package, with a model card."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.logging.history_buffer import HistoryBuffer

from inline import create_backbone
from inline.apis.loading import build_model, find_config
from inline.checkpoints import sources
from inline.checkpoints.safetensors_format import read_safetensors
from inline.reproduce import packaging
from inline.reproduce.packaging import PackagingOptions, package
from inline.utils.errors import UserError
from tests.configs.tiny_datasets import write_tiny_imagenet
from tests.conftest import ROOT

CONFIG = 'inline-pvt-micro_tiny-imagenet'
CLASSES = [f'class {i}' for i in range(200)]


def save_training(path: Path, **meta: Any) -> Path:
    torch.manual_seed(0)
    cfg = find_config(CONFIG)
    cfg.train_dataloader.dataset.data_root = '/home/someone/secret'
    content = {
        'meta': {
            'cfg': cfg.pretty_text,
            'dataset_meta': {'classes': CLASSES},
            'epoch': 30,
            'iter': 9,
            **meta,
        },
        'state_dict': create_backbone('inline_pvt_micro', num_classes=200).state_dict(),
        'message_hub': {'log_scalars': {'train/time': HistoryBuffer([1800.0, 3600.0], [1, 1])}},
    }
    torch.save(content, path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize('lossy', [False, True])
def test_file_and_card(lossy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = save_training(tmp_path / 'epoch_30.pth')
    if lossy:
        results = iter([{'accuracy/top1': 48.0}, {'accuracy/top1': 47.9}])
        monkeypatch.setattr(packaging, 'evaluate', lambda *_: next(results))
    write_tiny_imagenet(tmp_path)
    options = PackagingOptions(
        'inline_pvt_micro',
        f'configs/{CONFIG}.py',
        tmp_path,
        'abc1234',
        after=(('configs/first.py', find_config('inline-pvt-micro-distilled_tiny-imagenet')),),
        folder=tmp_path / 'w',
    )
    messages = list(package(source, find_config(CONFIG), options))
    assert messages[0].startswith('single precision: accuracy/top1 ')
    file, card = (tmp_path / 'w' / f'inline_pvt_micro.{suffix}' for suffix in ('safetensors', 'md'))
    stored = read_safetensors(file)
    precision = torch.float32 if lossy else torch.float16
    assert {value.dtype for value in stored['state_dict'].values()} == {precision}
    assert b'secret' not in file.read_bytes()
    text = card.read_text()
    assert 'secret' not in text
    for fact in (
        'The terms of ImageNet apply to it: research and education, not for commercial use',
        f'recipe: `configs/{CONFIG}.py`; AdamW (lr 0.002, weight_decay 0.05), batch size 128, 30 epochs, '
        'augmentation RandomCrop, RandomFlip',
        'it starts from the result of `configs/first.py`; '
        'AdamW (lr 0.002, weight_decay 0.05), batch size 125, 22 epochs',
        'training: 1.5 hours on ',
        'code: commit abc1234',
        f'stored in {"single" if lossy else "half"} precision',
        'license: other',
        "create_backbone('inline_pvt_micro', pretrained=True, num_classes=200)",
    ):
        assert fact in text
    top1 = '48.00' if lossy else messages[1].removeprefix('half precision: accuracy/top1 ').split(',')[0]
    assert f'| accuracy/top1 | {top1} |' in text
    monkeypatch.setattr(sources, 'PACKAGED_FOLDER', tmp_path / 'w')
    model = create_backbone('inline_pvt_micro', pretrained=True, num_classes=200)
    assert model.pretrained_cfg['classes'] == tuple(CLASSES)
    assert model.pretrained_cfg['input_size'] == (3, 64, 64)
    assert model.pretrained_cfg['mean'] == pytest.approx((0.485, 0.456, 0.406), abs=1e-4)


def test_other_weights_are_refused(tmp_path: Path) -> None:
    cfg, source = find_config(CONFIG), save_training(tmp_path / 'a.pth', dataset_meta={})
    options = PackagingOptions('inline_pvt_micro', 'a.py', folder=tmp_path / 'w')
    with pytest.raises(UserError, match='does not state mean, std and classes'):
        list(package(source, cfg, options))
    with pytest.raises(UserError, match=r'is not a inline_swin_micro: \d+ of'):
        list(package(source, cfg, PackagingOptions('inline_swin_micro', 'a.py', folder=tmp_path / 'w')))
    assert not (tmp_path / 'w').exists()


def test_cards_are_complete() -> None:
    """Every file of weights in the package has a card with its digest."""
    for name in sources.list_packaged():
        file = ROOT / 'inline' / 'hub' / 'weights' / f'{name}.safetensors'
        assert hashlib.sha256(file.read_bytes()).hexdigest() in file.with_suffix('.md').read_text()


def test_a_distiller_is_described_and_its_student_is_evaluated() -> None:
    cfg = find_config('inline-pvt-micro-distilled_tiny-imagenet')
    assert packaging._recipe(cfg.pretty_text).endswith(
        '22 epochs, augmentation RandomCrop, RandomFlip; distilled from StoredLogits of EfficientNet-Lite0 '
        'with ImageNet weights under Apache-2.0 (tools/store_logits.py) with LogitLoss '
        '(temperature 2.0, weight 0.8), weight of the labels 0.2'
    )
    model, _ = build_model(cfg)
    assert type(model).__name__ == 'ImageClassifier'
