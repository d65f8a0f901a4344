"""What is exported of a config and a checkpoint, and that no data is asked for."""

from pathlib import Path

import pytest
import torch

from inline.engine.config import load_config
from inline.errors import UserError
from inline.export.model import build_subject
from tests.conftest import ROOT
from tests.inference.small_models import save_model

OWN_DATA = ROOT / 'configs' / 'finetune' / 'inline-pvt-micro_image-folder.py'


def save_finetuned(path: Path, classes: tuple[str, ...]) -> Path:
    cfg = load_config(OWN_DATA)
    cfg.model.head.num_classes = 3
    return save_model(cfg, classes, path)


def test_a_model_of_ones_own_data_needs_no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint = str(save_finetuned(tmp_path / 'own.pth', ('cat', 'dog', 'hen')))
    subject = build_subject(load_config(OWN_DATA), checkpoint)
    assert subject.classes == ('cat', 'dog', 'hen')
    assert subject.network(torch.zeros(1, 3, 32, 32))[0].shape == (1, 3)
    features = build_subject(load_config(OWN_DATA), checkpoint, what='backbone')
    assert features.network.outputs == ('features_3',)


def test_a_checkpoint_without_classes_is_told_where_the_data_is_not_there_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint = str(save_finetuned(tmp_path / 'own.pth', ()))
    with pytest.raises(UserError, match=r"own\.pth' does not name its classes, .*--data-root"):
        build_subject(load_config(OWN_DATA), checkpoint)
    # The backbone has none.
    build_subject(load_config(OWN_DATA), checkpoint, what='backbone')
