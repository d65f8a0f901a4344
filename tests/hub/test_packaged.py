"""Weights in the package: by name, without a network, in every place that loads weights."""

import socket
from pathlib import Path

import pytest
import torch

from inline import create_backbone
from inline.checkpoints import read_checkpoint, sources
from inline.checkpoints.safetensors_format import write_checkpoint
from inline.engine.config import load_config, starting_checkpoints
from inline.engine.launch import drop_pretrained
from inline.openmmlab.backbones import InLinePVT
from inline.registry import MODELS
from inline.reproduce.provenance import path_digest
from inline.utils.errors import UserError
from tests.conftest import ROOT

NAMES = [f'class {i}' for i in range(200)]
CFG = {
    'input_size': [3, 64, 64],
    'mean': [0.5, 0.4, 0.3],
    'std': [0.2, 0.2, 0.25],
    'crop_pct': 1.0,
    'num_classes': 200,
    'classes': NAMES,
}


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, torch.Tensor]:
    """A package with random weights of inline_pvt_micro in half precision, and no network."""
    torch.manual_seed(0)
    weights = {
        k: v.half() for k, v in create_backbone('inline_pvt_micro', num_classes=200).state_dict().items()
    }
    meta = {'model': 'inline_pvt_micro', 'pretrained_cfg': CFG, 'dataset_meta': {'classes': NAMES}}
    folder = tmp_path / 'package'
    folder.mkdir()
    write_checkpoint({'state_dict': weights, 'meta': meta}, folder / 'inline_pvt_micro.safetensors')
    monkeypatch.setattr(sources, 'PACKAGED_FOLDER', folder)
    monkeypatch.setattr(socket, 'socket', lambda *_, **__: pytest.fail('network'))
    return weights


def test_pretrained_is_true(packaged: dict[str, torch.Tensor], caplog: pytest.LogCaptureFixture) -> None:
    model = create_backbone('inline_pvt_micro', pretrained=True, num_classes=200)
    assert not caplog.records
    for name, value in model.state_dict().items():
        assert value.dtype == torch.float32
        assert torch.equal(value, packaged[name].float()), name
    assert model.pretrained_cfg['mean'] == (0.5, 0.4, 0.3)
    assert model.pretrained_cfg['classes'] == tuple(NAMES)
    other = create_backbone('inline-pvt-micro', pretrained=True, num_classes=3)
    assert '2 with a different shape: head.fc.weight, head.fc.bias' in caplog.text
    assert (other.pretrained_cfg['num_classes'], other.pretrained_cfg['classes']) == (3, ())
    assert other.pretrained_cfg['std'] == (0.2, 0.2, 0.25)


@pytest.mark.usefixtures('packaged')
def test_other_names_have_no_packaged_weights() -> None:
    with pytest.raises(UserError, match='contains inline_pvt_micro; for inline-swin-micro give') as raised:
        create_backbone('inline_swin_micro', pretrained=True)
    assert 'convert_checkpoint' not in str(raised.value)
    with (
        pytest.raises(UserError, match=r'\(tools/convert_checkpoint.py inline-swin-tiny OUT.pth downloads'),
        torch.device('meta'),
    ):
        create_backbone('inline_swin_tiny', pretrained=True)
    with pytest.raises(UserError, match=r'published folder, inline_pvt_micro \(in the package\), a URL'):
        create_backbone('inline_pvt_micro', pretrained='inline_pvt_mikro')


@pytest.mark.parametrize('name', ['inline_pvt_micro', 'inline-pvt-micro'])
def test_the_name_is_a_source_everywhere(name: str, packaged: dict[str, torch.Tensor]) -> None:
    key = 'stages.2.blocks.1.mixer.qkv.weight'
    assert torch.equal(read_checkpoint(name).state_dict[f'backbone.{key}'], packaged[f'backbone.{key}'])
    backbone = InLinePVT(arch='micro', init_cfg={'type': 'Pretrained', 'checkpoint': name})
    backbone.init_weights()
    assert torch.equal(backbone.state_dict()[key], packaged[f'backbone.{key}'].float())
    assert path_digest(name) == path_digest(sources.PACKAGED_FOLDER / 'inline_pvt_micro.safetensors') != ''


def test_a_folder_of_that_name_does_not_hide_the_package(
    packaged: dict[str, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path('inline_pvt_micro').mkdir()
    assert read_checkpoint('inline_pvt_micro').state_dict.keys() == packaged.keys()
    with pytest.raises(UserError, match=r'must contain model\.safetensors'):
        read_checkpoint('./inline_pvt_micro')


@pytest.mark.parametrize(
    'path', sorted((ROOT / 'configs' / 'finetune').glob('*micro*.py')), ids=lambda p: p.stem
)
def test_fine_tuning_starts_from_the_package(path: Path, packaged: dict[str, torch.Tensor]) -> None:
    cfg = load_config(path)
    assert [source for _, source in starting_checkpoints(cfg)] == ['inline_pvt_micro']
    backbone = MODELS.build(cfg.model.backbone)
    backbone.init_weights()
    key = 'stages.3.blocks.0.mlp.fc1.weight'
    assert torch.equal(backbone.state_dict()[key], packaged[f'backbone.{key}'].float())
    drop_pretrained(cfg.model)
    assert [init.type for init in cfg.model.backbone.init_cfg] == ['Xavier']
