"""Conversion of the authors' checkpoints: complete, or with a list of what does not match."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from inline.checkpoints import read_checkpoint
from inline.checkpoints.official import OFFICIAL, convert_official, is_official
from inline.utils.errors import UserError
from tests.configs.tiny_datasets import write_all
from tests.conftest import ROOT, run_tool

SHAPES = json.loads((ROOT / 'tests' / 'data' / 'golden' / 'official_state_dicts.json').read_text())
SIZES = {'t': 'tiny', 's': 'small', 'm': 'medium', 'b': 'base', 'l': 'large'}


def weights(name: str, device: str = 'meta') -> dict[str, Tensor]:
    """Return weights with the shapes of a released model; zeros on a real device."""
    return {key: torch.zeros(shape, device=device) for key, shape in SHAPES[name].items()}


def expected_name(name: str) -> str:
    _, family, size, *resolution = name.split('_')
    # Their file name of the large PVT has a b. The weights of CSwin-B are the same for 224 and 384.
    size = 'l' if (family, size) == ('pvt', 'b') else size
    suffix = ['384'] if resolution and family == 'swin' else []
    return '-'.join(['inline', family, SIZES[size], *suffix])


@pytest.mark.slow
@pytest.mark.parametrize('name', SHAPES)
def test_every_released_model_is_converted_completely(name: str) -> None:
    theirs = weights(name)
    assert is_official(theirs)
    model, ours = convert_official(theirs)
    assert model.name == expected_name(name)
    derived = [key for key in theirs if key.endswith(('relative_position_index', 'attn_mask'))]
    # No number is lost or added. Only the position of the class token becomes a separate tensor.
    count = sum(value.numel() for value in theirs.values()) - sum(theirs[key].numel() for key in derived)
    assert sum(value.numel() for value in ours.values()) == count
    with torch.device('meta'):
        own = {f'backbone.{key}': value.shape for key, value in model.build().state_dict().items()}
    own |= {'head.fc.weight': theirs['head.weight'].shape, 'head.fc.bias': theirs['head.bias'].shape}
    assert {key: value.shape for key, value in ours.items()} == own


def test_there_are_fifteen_models() -> None:
    assert len(SHAPES) == len(OFFICIAL) == 15


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        (lambda w: w.pop('block2.0.attn.q.weight'), r'closest is inline-pvt-tiny.*stages\.1\.blocks\.0'),
        (lambda w: w.update({'block2.0.attn.gate': torch.zeros(1)}), r'unknown: block2\.0\.attn\.gate'),
        (lambda w: w.pop('patch_embed3.norm.bias'), r'missing: stages\.2\.downsample\.norm\.bias'),
        (
            lambda w: w.update({'block1.0.mlp.fc1.bias': torch.zeros(7)}),
            r'stages\.0\.blocks\.0\.mlp\.fc1\.bias: \(7,\) instead of \(512,\)',
        ),
        (lambda w: w.pop('head.weight'), 'missing: head'),
        (lambda w: w.update({'head.scale': torch.zeros(1)}), r'unknown: head\.scale'),
        (lambda w: w.pop('pos_embed1'), 'not weights of an InLine model'),
    ],
    ids=['no queries', 'unknown', 'missing', 'shape', 'no head', 'unknown head', 'no family'],
)
def test_mismatches_are_listed(change, message: str) -> None:
    theirs = {key: value.cpu() for key, value in weights('inline_pvt_t', 'cpu').items()}
    change(theirs)
    with pytest.raises(UserError, match=f'(?s){message}'):
        convert_official(theirs)


def test_plain_transformers_are_not_converted() -> None:
    """DeiT, PVT, Swin and CSwin without InLine attention have the same names except for the residual."""
    theirs = weights('inline_deit_t')
    assert not is_official({key: value for key, value in theirs.items() if '.residual.' not in key})
    assert not is_official({f'backbone.{key}': value for key, value in theirs.items()})


def test_a_checkpoint_that_cannot_be_converted_is_refused(tmp_path: Path) -> None:
    theirs = weights('inline_pvt_t', 'cpu')
    del theirs['patch_embed3.norm.bias']
    torch.save({'model': theirs}, tmp_path / 'c.pth')
    with pytest.raises(UserError, match=r"(?s)c\.pth' cannot be converted: .*missing: stages\.2"):
        read_checkpoint(tmp_path / 'c.pth')


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (['nothing.pth', 'out.pth'], "checkpoint 'nothing.pth' does not exist"),
        (['inline-swin-huge', 'out.pth'], "'inline-swin-huge' is neither a file nor a released model"),
        (['inline-swin-base-384', 'out.pth'], 'published no weights of inline-swin-base-384'),
        (['weights.pth', 'setup.cfg'], "'setup.cfg' exists"),
        (['weights.pth'], 'required: OUT'),
    ],
)
def test_errors_of_the_tool_are_one_line(words: list[str], message: str) -> None:
    done = run_tool('tools/convert_checkpoint.py', *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_authors_weights_load_in_the_toolboxes(tmp_path: Path) -> None:
    """Convert with the tool and load with init_cfg; test the original file with tools/test.py."""
    from mmpretrain.registry import MODELS

    torch.manual_seed(0)
    theirs = {key: torch.randn(shape) for key, shape in SHAPES['inline_deit_t'].items()}
    torch.save({'model': theirs, 'epoch': 299}, tmp_path / 'authors.pth')
    done = run_tool('tools/convert_checkpoint.py', tmp_path / 'authors.pth', tmp_path / 'ours.pth')
    assert done.returncode == 0, done.stderr
    assert 'inline-deit-tiny' in done.stdout
    pretrained = {'type': 'Pretrained', 'checkpoint': str(tmp_path / 'ours.pth'), 'prefix': 'backbone.'}
    backbone = MODELS.build({'type': 'inline.InLineDeiT', 'arch': 'tiny', 'init_cfg': pretrained})
    backbone.init_weights()
    assert torch.equal(backbone.blocks[3].mixer.qkv.weight, theirs['blocks.3.attn.qkv.weight'])
    assert torch.equal(backbone.class_token.position, theirs['pos_embed'][:, :1])
    assert torch.equal(
        backbone.position.weight.flatten(2).transpose(1, 2), theirs['pos_embed'][:, 1:].contiguous()
    )
    head = torch.load(tmp_path / 'ours.pth', weights_only=True)['state_dict']['head.fc.weight']
    assert torch.equal(head, theirs['head.weight'])
    write_all(tmp_path / 'data')
    tested = run_tool(
        'tools/test.py',
        'configs/inline_deit/inline-deit-tiny_8xb512_in1k.py',
        tmp_path / 'authors.pth',
        '--work-dir',
        tmp_path / 'test',
        '--cfg-options',
        'test_dataloader.num_workers=0',
        'test_dataloader.persistent_workers=False',
        INLINE_DATA_ROOT=str(tmp_path / 'data'),
    )
    assert tested.returncode == 0, tested.stderr[-2000:]
    output = tested.stdout + tested.stderr
    assert 'accuracy/top1' in output
    assert 'not in the model' not in output
