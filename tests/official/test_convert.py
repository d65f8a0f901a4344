"""The authors' checkpoints: all of them convert, nothing is left over, nothing is executed."""

import argparse
import json
import sys
import types
from pathlib import Path

import pytest
import torch
from torch import Tensor

from inline.errors import UserError
from inline.official.catalogue import OFFICIAL
from inline.official.convert import convert
from inline.weights import read_state_dict
from tests.configs.stand_ins import write_all
from tests.conftest import ROOT, run_tool

SHAPES = json.loads((ROOT / 'tests' / 'data' / 'golden' / 'official_state_dicts.json').read_text())
SIZES = {'t': 'tiny', 's': 'small', 'm': 'medium', 'b': 'base', 'l': 'large'}


def weights(name: str, device: str = 'meta') -> dict[str, Tensor]:
    """Weights of a released model's shapes; zeros where they are on a real device."""
    return {key: torch.zeros(shape, device=device) for key, shape in SHAPES[name].items()}


def expected_name(name: str) -> str:
    _, family, size, *resolution = name.split('_')
    # Their file calls the large PVT "b"; the weights of CSwin-B do not tell 384 from 224.
    size = 'l' if (family, size) == ('pvt', 'b') else size
    suffix = ['384'] if resolution and family == 'swin' else []
    return '-'.join(['inline', family, SIZES[size], *suffix])


@pytest.mark.parametrize('name', SHAPES)
def test_every_released_model_converts_with_nothing_left_over(name: str) -> None:
    theirs = weights(name)
    model, ours = convert(theirs)
    assert model.name == expected_name(name)
    derived = [key for key in theirs if key.endswith(('relative_position_index', 'attn_mask'))]
    # Our class token has its position apart, and nothing else is new or lost.
    count = sum(value.numel() for value in theirs.values()) - sum(theirs[key].numel() for key in derived)
    assert sum(value.numel() for value in ours.values()) == count
    with torch.device('meta'):
        own = {f'backbone.{key}': value.shape for key, value in model.build().state_dict().items()}
    own |= {'head.fc.weight': theirs['head.weight'].shape, 'head.fc.bias': theirs['head.bias'].shape}
    assert {key: value.shape for key, value in ours.items()} == own


def test_there_are_fifteen() -> None:
    assert len(SHAPES) == len(OFFICIAL) == 15


@pytest.mark.parametrize(
    ('change', 'told'),
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
def test_what_does_not_fit_is_listed(change, told: str) -> None:
    theirs = {key: value.cpu() for key, value in weights('inline_pvt_t', 'cpu').items()}
    change(theirs)
    with pytest.raises(UserError, match=f'(?s){told}'):
        convert(theirs)


def test_the_moving_average_comes_before_the_last_step(tmp_path: Path) -> None:
    torch.save({'model': {'a': torch.zeros(1)}, 'state_dict_ema': {'a': torch.ones(1)}}, tmp_path / 'c.pth')
    assert read_state_dict(tmp_path / 'c.pth')['a'].item() == 1


def test_settings_beside_the_weights_do_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts store argparse's namespace or yacs's node; the latter's package need not be installed."""
    module = types.ModuleType('yacs.config')
    module.CfgNode = type('CfgNode', (dict,), {'__module__': 'yacs.config', '__qualname__': 'CfgNode'})
    monkeypatch.setitem(sys.modules, 'yacs', types.ModuleType('yacs'))
    monkeypatch.setitem(sys.modules, 'yacs.config', module)
    settings = module.CfgNode(lr=0.1)
    torch.save(
        {'model': {'module.a': torch.ones(2)}, 'args': argparse.Namespace(lr=0.1), 'config': settings},
        tmp_path / 'c.pth',
    )
    monkeypatch.undo()
    assert read_state_dict(tmp_path / 'c.pth')['a'].tolist() == [1, 1]


class Evil:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return (Path.touch, (self.mark,))


def test_no_code_of_the_file_is_executed(tmp_path: Path) -> None:
    mark = tmp_path / 'executed'
    torch.save({'model': {'a': torch.zeros(1)}, 'evil': Evil(mark)}, tmp_path / 'evil.pth')
    with pytest.raises(UserError, match=r'cannot be read safely: it holds \S+, which is not data'):
        read_state_dict(tmp_path / 'evil.pth')
    assert not mark.exists()


@pytest.mark.parametrize('content', [b'', b'hello', b'PK\x03\x04 no zip'], ids=['empty', 'text', 'zip'])
def test_a_file_that_is_no_checkpoint_gets_one_line(content: bytes, tmp_path: Path) -> None:
    (tmp_path / 'c.pth').write_bytes(content)
    done = run_tool('tools/convert_checkpoint.py', tmp_path / 'c.pth', tmp_path / 'out.pth')
    assert done.returncode == 2
    assert done.stderr.startswith('error: ')
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / 'out.pth').exists()


@pytest.mark.parametrize(
    ('words', 'told'),
    [
        (['nothing.pth', 'out.pth'], "'nothing.pth' cannot be read: No such file or directory"),
        (['inline-swin-huge', 'out.pth'], "'inline-swin-huge' is neither a file nor a released model"),
        (['inline-swin-base-384', 'out.pth'], 'published no weights of inline-swin-base-384'),
        (['weights.pth', 'setup.cfg'], "'setup.cfg' is there already"),
        (['weights.pth'], 'required: OUT'),
    ],
)
def test_mistakes_get_one_line(words: list[str], told: str) -> None:
    done = run_tool('tools/convert_checkpoint.py', *words)
    assert done.returncode == 2
    assert told in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_converted_checkpoint_is_what_the_toolboxes_load(tmp_path: Path) -> None:
    """The command line, then init_cfg with a prefix, then every weight by hand."""
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
        tmp_path / 'ours.pth',
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
    assert 'missing keys' not in output
    assert 'unexpected key' not in output
