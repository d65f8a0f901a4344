"""Export models: networks built from a config and a checkpoint, and replacements for untraceable modules."""

from pathlib import Path

import pytest
import torch
from torch import nn

from inline.apis.export.model import IntegerUpsample, MatmulAvgPool2d, build_export_model, make_traceable
from inline.engine.config import load_config
from inline.utils.errors import UserError
from tests.apis.small_models import save_model
from tests.conftest import ROOT

CUSTOM_DATA = ROOT / 'configs' / 'finetune' / 'inline-pvt-micro_image-folder.py'


def save_finetuned(path: Path, classes: tuple[str, ...]) -> Path:
    cfg = load_config(CUSTOM_DATA)
    cfg.model.head.num_classes = 3
    return save_model(cfg, classes, path)


def test_model_for_custom_data_needs_no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint = str(save_finetuned(tmp_path / 'own.pth', ('cat', 'dog', 'hen')))
    model = build_export_model(load_config(CUSTOM_DATA), checkpoint)
    assert model.classes == ('cat', 'dog', 'hen')
    assert model.network(torch.zeros(1, 3, 32, 32))[0].shape == (1, 3)
    backbone = build_export_model(load_config(CUSTOM_DATA), checkpoint, what='backbone')
    assert backbone.network.outputs == ('features_3',)


def test_checkpoint_without_classes_raises_if_the_data_are_missing_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint = str(save_finetuned(tmp_path / 'own.pth', ()))
    with pytest.raises(UserError, match=r"own\.pth' does not name its classes, .*--data-root"):
        build_export_model(load_config(CUSTOM_DATA), checkpoint)
    # A backbone has no classes.
    build_export_model(load_config(CUSTOM_DATA), checkpoint, what='backbone')


@pytest.mark.parametrize('bins', [(1, 1), (2, 2), (3, 5), (6, 6)])
@pytest.mark.parametrize('size', [(1, 1), (2, 3), (6, 12), (7, 11), (16, 5)])
def test_matmul_pooling_equals_adaptive_pooling(bins: tuple[int, int], size: tuple[int, int]) -> None:
    x = torch.randn(2, 3, *size, dtype=torch.float64)
    torch.testing.assert_close(MatmulAvgPool2d(bins)(x), nn.AdaptiveAvgPool2d(bins)(x))


def test_integer_upsampling_equals_mmseg() -> None:
    from mmseg.models.utils import Upsample

    x = torch.randn(2, 3, 5, 7, dtype=torch.float64)
    original = Upsample(scale_factor=2, mode='bilinear', align_corners=False)
    model = make_traceable(nn.Sequential(original))
    assert isinstance(model[0], IntegerUpsample)
    torch.testing.assert_close(model(x), original(x))


def test_make_traceable_does_not_change_the_model() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 1), nn.Sequential(nn.AdaptiveAvgPool2d(2)), nn.AdaptiveAvgPool2d((None, 3))
    )
    traceable = make_traceable(model)
    assert isinstance(model[1][0], nn.AdaptiveAvgPool2d)
    assert isinstance(traceable[1][0], MatmulAvgPool2d)
    # An output side of None depends on the input and has no fixed number of bins.
    assert isinstance(traceable[2], nn.AdaptiveAvgPool2d)
    x = torch.randn(1, 3, 9, 13)
    torch.testing.assert_close(traceable(x), model(x))
