"""Backbones by name in plain PyTorch, their weights, and the Hugging Face Hub."""

import copy
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from mmengine.logging.history_buffer import HistoryBuffer
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import inline
from inline import InLineBackbone, create_backbone, list_backbones
from inline.checkpoints.official import rename_keys
from inline.utils.errors import UserError
from tests.checkpoints.formats import build_backbone
from tests.conftest import ROOT
from tests.models.test_golden import DESCRIBED, FILES

SHAPES = json.loads((ROOT / 'tests' / 'data' / 'golden' / 'official_state_dicts.json').read_text())
INLINE = {'type': 'InLine'}
SMALL: dict[str, Any] = {
    'family': 'pvt',
    'arch': {'embed_dims': (8, 16, 32, 48), 'depths': (1, 1, 2, 1), 'num_heads': (1, 2, 4, 4)},
    'img_size': (64, 96),
    'mixers': [INLINE, {'type': 'Softmax'}, [INLINE, {'type': 'Linear'}], INLINE],
    'options': {'out_norm': True, 'absolute_position': True},
}
BLOCK = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in BLOCKED:
            raise ModuleNotFoundError(f'{name} is blocked')

BLOCKED = {'mmengine', 'mmcv', 'mmpretrain', 'mmdet', 'mmseg', *sys.argv[2:]}
sys.meta_path.insert(0, Blocker())
import inline
assert 'torch' not in sys.modules, 'import inline is not light'
assert 'create_backbone' in dir(inline)
"""


def run(code: str, *args: str | Path) -> str:
    words = [sys.executable, '-c', BLOCK + code, *map(str, args)]
    return subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT).stdout


@pytest.fixture(scope='module')
def pvt_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MMEngine checkpoint with MMEngine objects and neck weights."""
    torch.manual_seed(0)
    weights = create_backbone('inline_pvt_tiny', num_classes=7).state_dict()
    content = {
        'state_dict': {**weights, 'neck.x': torch.zeros(1)},
        'optimizer': {'state': {0: {'step': torch.tensor(1.0)}}},
        'message_hub': {'loss': HistoryBuffer([1.0], [1]), 'step': np.int64(3)},
    }
    path = tmp_path_factory.mktemp('hub') / 'iter_1.pth'
    torch.save(content, path)
    return path


def test_openmmlab_is_not_needed(pvt_checkpoint: Path) -> None:
    code = """
import torch
import inline.hub.publish
model = inline.create_backbone('inline_pvt_tiny', features_only=True, pretrained=sys.argv[1])
maps = model(torch.randn(1, 3, 64, 96))
sum(out.mean() for out in maps).backward()
assert all(p.grad is not None for p in model.parameters())
print([tuple(out.shape) for out in maps], model.feature_info.channels(), model.feature_info.reduction())
print(float(model.backbone.stages[3].blocks[1].mlp.fc1.weight.double().sum()))
"""
    shapes, total = run(code, pvt_checkpoint).strip().splitlines()
    maps = '[(1, 64, 16, 24), (1, 128, 8, 12), (1, 320, 4, 6), (1, 512, 2, 3)]'
    assert shapes == f'{maps} [64, 128, 320, 512] [4, 8, 16, 32]'
    weights = torch.load(pvt_checkpoint, weights_only=False)['state_dict']
    assert float(total) == float(weights['backbone.stages.3.blocks.1.mlp.fc1.weight'].double().sum())


def test_missing_optional_packages_are_named(tmp_path: Path) -> None:
    code = """
import torch
from inline.utils.errors import UserError
model = inline.create_backbone('inline_deit_tiny', num_classes=3)
print(tuple(model(torch.randn(2, 3, 32, 48)).shape))
torch.save({'state_dict': model.state_dict()}, sys.argv[1] + '/w.pth')
open(sys.argv[1] + '/w.safetensors', 'wb').close()
inline.create_backbone('inline_deit_tiny', pretrained=sys.argv[1] + '/w.pth')
for action in (
    lambda: model.save_pretrained('x'),
    lambda: inline.InLineBackbone.from_pretrained('user/model'),
    lambda: model.push_to_hub('x'),
    lambda: inline.create_backbone('inline_deit_tiny', pretrained='user/model'),
    lambda: inline.create_backbone('inline_deit_tiny', pretrained=sys.argv[1] + '/w.safetensors'),
):
    try:
        action()
    except UserError as error:
        print(error)
"""
    optional = ('huggingface_hub', 'safetensors', 'numpy', 'yaml', 'tqdm')
    shape, *messages = run(code, tmp_path, *optional).strip().splitlines()
    assert shape == '(2, 3)'
    assert len(messages) == 5
    assert all('pip install' in line for line in messages)


@pytest.mark.parametrize('path', FILES, ids=lambda path: path.stem)
def test_logits_equal_the_authors(path: Path) -> None:
    golden = np.load(path)
    meta = json.loads(bytes(golden['meta']))
    theirs = {key[2:]: torch.from_numpy(golden[key]) for key in golden if key.startswith('w/')}
    head = {f'head.fc.{key}': theirs.pop(f'head.{key}').double() for key in ('weight', 'bias')}
    described = DESCRIBED[meta['family']](meta)
    model = InLineBackbone(meta['family'], **described, num_classes=len(head['head.fc.bias'])).double().eval()
    ours = rename_keys(theirs, model.backbone.state_dict())
    model.load_state_dict({f'backbone.{key}': value.double() for key, value in ours.items()} | head)
    with torch.no_grad():
        logits = model(torch.from_numpy(golden['x']).double())
    torch.testing.assert_close(logits, torch.from_numpy(golden['y/logits']), rtol=0, atol=1e-9)


@pytest.mark.parametrize('suffix', ['.pth', '.safetensors'])
def test_authors_files_load(suffix: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    theirs = {key: torch.randn(shape) * 0.02 for key, shape in SHAPES['inline_deit_t'].items()}
    path = tmp_path / f'authors{suffix}'
    if suffix == '.pth':
        torch.save({'model': theirs, 'epoch': 299}, path)
    else:
        save_file(theirs, path)
    model = create_backbone('inline-deit-tiny', path, num_classes=1000).eval()
    features = create_backbone('inline_deit_tiny', path, features_only=True, img_size=96).eval()
    assert torch.equal(model.backbone.blocks[3].mixer.qkv.weight, theirs['blocks.3.attn.qkv.weight'])
    assert features.backbone.position.weight.shape[2:] == (6, 6)
    x = torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        token = model.backbone(x)[-1]
        expected = token @ theirs['head.weight'].T + theirs['head.bias']
        torch.testing.assert_close(model(x), expected)
        assert features(x)[0].shape == (1, 192, 4, 6)


def test_every_released_and_small_model_has_a_name() -> None:
    names = list_backbones()
    assert len(names) == 20
    assert set(list_backbones('*_micro')) == {f'inline_{f}_micro' for f in ('deit', 'pvt', 'swin', 'cswin')}
    assert list_backbones('*swin*base*') == [
        'inline_swin_base',
        'inline_swin_base_384',
        'inline_cswin_base',
        'inline_cswin_base_384',
    ]
    assert list_backbones('inline-pvt-*')[0] == 'inline_pvt_tiny'
    assert list_backbones('resnet*') == []
    with torch.device('meta'):
        for name in names:
            model = create_backbone(name, num_classes=5, drop_path_rate=0.1)
            assert model.head is not None
            assert model.head.fc.in_features == model.num_features


@pytest.mark.parametrize('family', ['deit', 'pvt', 'swin', 'cswin'])
def test_feature_info_matches_the_outputs(family: str) -> None:
    out_indices = (3, 11) if family == 'deit' else (1, 3)
    model = create_backbone(
        f'inline_{family}_tiny', features_only=True, out_indices=out_indices, in_chans=2
    ).eval()
    with torch.no_grad():
        maps = model(torch.randn(1, 2, 64, 96))
    assert len(maps) == 2
    assert model.feature_info.channels() == [out.shape[1] for out in maps]
    assert model.feature_info.reduction() == [64 // out.shape[2] for out in maps]
    assert model.feature_info.reduction() == [96 // out.shape[3] for out in maps]


def test_without_a_classifier_the_last_stage_is_pooled() -> None:
    model = InLineBackbone(**SMALL).eval()
    x = torch.randn(2, 3, 64, 96)
    with torch.no_grad():
        torch.testing.assert_close(model(x), model.backbone(x)[-1].mean(dim=(2, 3)))


@pytest.mark.parametrize('family', ['pvt', 'swin', 'cswin'])
@pytest.mark.parametrize('stages', [1, 3, 5])
def test_last_stage_is_pooled_for_any_number_of_stages(family: str, stages: int) -> None:
    sizes = {'embed_dims': [8] * stages, 'depths': [1] * stages, 'num_heads': [2] * stages}
    model = InLineBackbone(family, {**sizes, 'mlp_ratios': [2] * stages}, num_classes=3)
    assert model.feature_info.reduction() == [4 * 2**i for i in range(stages)]
    assert model(torch.randn(2, 3, 64, 64)).shape == (2, 3)


def test_classifier_with_other_classes_keeps_its_initial_weights(
    pvt_checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    same = create_backbone('inline_pvt_tiny', pvt_checkpoint, num_classes=7)
    assert not caplog.records
    other = create_backbone('inline_pvt_tiny', pvt_checkpoint, num_classes=9)
    assert '2 with a different shape: head.fc.weight, head.fc.bias' in caplog.text
    assert same.head is not None
    saved = torch.load(pvt_checkpoint, weights_only=False)['state_dict']
    assert torch.equal(same.head.fc.weight, saved['head.fc.weight'])
    name = 'stages.0.downsample.proj.weight'
    for model in (same, other):
        assert torch.equal(model.backbone.state_dict()[name], saved[f'backbone.{name}'])


def test_backbone_weights_without_prefix_load(tmp_path: Path) -> None:
    model = InLineBackbone(**SMALL)
    save_file(model.backbone.state_dict(), tmp_path / 'alone.safetensors')
    other = InLineBackbone(**SMALL)
    other.load_weights(tmp_path / 'alone.safetensors')
    for left, right in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(left, right)


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        ({'name': 'inline_swim_tiny'}, "unknown backbone 'inline_swim_tiny': did you mean inline_swin_tiny"),
        ({'name': 'resnet50'}, 'unknown backbone'),
        ({'pretrained': True}, 'pretrained=True: the package contains inline_pvt_micro; for inline'),
        ({'pretrained': 'gone.pth'}, "checkpoint 'gone.pth' does not exist"),
        ({'pretrained': 'gone.safetensors'}, "checkpoint 'gone.safetensors' does not exist"),
        ({'features_only': True, 'num_classes': 5}, 'num_classes 5: must be 0 with features_only'),
        ({'num_classes': -1}, 'num_classes -1'),
        ({'out_indices': (1,)}, r'out_indices \(1,\): requires features_only=True'),
        ({'options': {'depth': 3}}, "unknown argument 'depth' of InLinePVT"),
    ],
)
def test_invalid_arguments_raise(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message), torch.device('meta'):
        create_backbone(**{'name': 'inline_pvt_tiny', **arguments})


def test_weights_of_another_model_raise(pvt_checkpoint: Path) -> None:
    with pytest.raises(UserError, match='has a different architecture'):
        create_backbone('inline_pvt_small', pvt_checkpoint)


def test_damaged_and_malicious_files_raise(pvt_checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / 'cut.pth').write_bytes(pvt_checkpoint.read_bytes()[:20_000])
    with pytest.raises(UserError, match='damaged or not a checkpoint'):
        create_backbone('inline_pvt_tiny', tmp_path / 'cut.pth')
    (tmp_path / 'bad.safetensors').write_bytes(b'\x10\x00\x00\x00\x00\x00\x00\x00{"no": safetensors')
    with pytest.raises(UserError, match='damaged or not a checkpoint'):
        create_backbone('inline_pvt_tiny', tmp_path / 'bad.safetensors')
    torch.save({'state_dict': {'x': torch.zeros(1)}, 'extra': print}, tmp_path / 'bad.pth')
    with pytest.raises(UserError, match='which is not plain data'):
        create_backbone('inline_pvt_tiny', tmp_path / 'bad.pth')


@pytest.mark.parametrize('name', inline.__all__)
def test_public_names_are_attributes_of_the_package(name: str) -> None:
    assert name in dir(inline)
    assert getattr(inline, name).__name__ == name


def test_unknown_attribute_raises() -> None:
    with pytest.raises(AttributeError, match='create_bone'):
        inline.create_bone  # noqa: B018


def save(folder: Path, **arguments: Any) -> InLineBackbone:
    model = InLineBackbone(**{**SMALL, **arguments})
    with torch.no_grad():
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(folder)
    return model.eval()


def outputs(model: nn.Module, x: Tensor) -> list[Tensor]:
    with torch.no_grad():
        out = model(x)
    return [out] if isinstance(out, Tensor) else list(out)


@pytest.mark.parametrize(
    'arguments',
    [{'num_classes': 4}, {}, {'features_only': True, 'out_indices': (0, 2)}],
    ids=['classifier', 'pooled', 'maps'],
)
def test_save_and_load(arguments: dict[str, Any], tmp_path: Path) -> None:
    model = save(tmp_path / 'model', **arguments)
    assert {path.name for path in (tmp_path / 'model').iterdir()} == {
        'config.json',
        'model.safetensors',
        'README.md',
    }
    again = InLineBackbone.from_pretrained(tmp_path / 'model')
    assert not again.training
    x = torch.randn(2, 3, 96, 64)
    for left, right in zip(outputs(model, x), outputs(again, x), strict=True):
        assert torch.equal(left, right)
    again.save_pretrained(tmp_path / 'again')
    for name in ('config.json', 'README.md'):
        assert (tmp_path / 'model' / name).read_text() == (tmp_path / 'again' / name).read_text()
    card = ModelCard.load(tmp_path / 'model' / 'README.md')
    assert card.data.library_name == 'inline-attention'
    assert 'InLinePVT' in card.text
    assert 'InLine (injective linear attention, with a local residual) in' in card.text
    assert card.data.license is None
    assert card.data.tags == ['image-feature-extraction', 'linear-attention', 'inline']
    softmax = save(tmp_path / 'softmax', **{**arguments, 'mixers': {'type': 'Softmax'}})
    assert 'Attention: Softmax in' in softmax.generate_model_card().text
    assert softmax.generate_model_card().data.tags == ['image-feature-extraction']


def test_deep_copy_can_be_saved(tmp_path: Path) -> None:
    """A moving average (EMA) is a deep copy of the model."""
    model = save(tmp_path / 'model', num_classes=4)
    copy.deepcopy(model).save_pretrained(tmp_path / 'copy')
    for name in ('config.json', 'model.safetensors'):
        assert (tmp_path / 'copy' / name).read_bytes() == (tmp_path / 'model' / name).read_bytes()


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        (lambda config, _: config.update(depth=3), "unknown key 'depth'"),
        (lambda config, _: config.pop('family'), 'has no family'),
        (lambda config, _: config.update(family='vgg'), "unknown family 'vgg'"),
        (lambda config, _: config.update(num_classes=5), 'do not match its config.json'),
        (lambda _, weights: weights.update(extra=torch.zeros(1)), 'not in the model: extra'),
        (lambda _, weights: weights.pop('head.fc.bias'), 'missing from the file: head.fc.bias'),
    ],
    ids=['config key', 'no family', 'family', 'classes', 'weight too many', 'weight missing'],
)
def test_unknown_or_missing_entries_raise(change: Any, message: str, tmp_path: Path) -> None:
    save(tmp_path, num_classes=4)
    config = json.loads((tmp_path / 'config.json').read_text())
    weights = load_file(tmp_path / 'model.safetensors')
    change(config, weights)
    (tmp_path / 'config.json').write_text(json.dumps(config))
    save_file(weights, tmp_path / 'model.safetensors')
    with pytest.raises(UserError, match=message):
        InLineBackbone.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ('{"family": "deit",', 'is not a valid configuration: .*line 1 column'),
        ('\xff', 'is not a valid configuration'),
        ('[' * 100_000, 'is not a valid configuration'),
        ('[1, 2]', 'is not a valid configuration'),
        ('{"num_classes": 1000000000000}', 'num_classes 1000000000000: must be from 0 to 1048576'),
        ('{"num_classes": "5"}', "num_classes '5'.*: must be an integer"),
        ('{"num_classes": 1000000}', 'weights of .* do not match its config'),
        ('{"in_chans": 1000000}', 'in_channels 1000000: must be from 1 to 16384'),
        ('{"img_size": 1000000}', 'img_size 1000000: must be'),
        ('{"arch": {"embed_dims": 1000000}}', 'embed_dims 1000000: must be from'),
        ('{"arch": {"embed_dims": 16384, "depth": 30, "mlp_ratio": 64}}', 'weights of .* do not match'),
        ('{"arch": {"depth": 1000000000}}', 'sum of depth 1000000000: must be from 1 to 1000'),
        ('{"family": "pvt", "arch": {"depths": [9, 9, 9, 999]}}', 'sum of depths 1026: must be'),
        (
            '{"family": "pvt", "arch": {"embed_dims": [8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8]}}',
            '17',
        ),
        ('{"mixers": 5}', 'mixers'),
        ('{"options": {"with_cp": "x"}}', 'with_cp'),
    ],
)
def test_hostile_config_is_one_line_before_anything_is_built(text: str, message: str, tmp_path: Path) -> None:
    """A model of these sizes would need terabytes."""
    build_backbone().save_pretrained(tmp_path)
    path = tmp_path / 'config.json'
    if text.endswith('}'):
        config, changes = json.loads(path.read_text()), json.loads(text)
        changes['arch'] = {**config['arch'], **changes['arch']} if 'arch' in changes else config['arch']
        text = json.dumps({**config, **changes})
    path.write_text(text, encoding='latin1')
    with pytest.raises(UserError, match=message) as raised:
        InLineBackbone.from_pretrained(tmp_path)
    assert '\n' not in str(raised.value)


def test_folder_without_config_raises(tmp_path: Path) -> None:
    save(tmp_path)
    (tmp_path / 'config.json').unlink()
    with pytest.raises(UserError, match='has no config'):
        InLineBackbone.from_pretrained(tmp_path)


def test_push_to_hub_uploads_a_loadable_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake Hub API stores the uploaded folder."""

    class Api:
        def __init__(self, token: str | None = None) -> None:
            self.token = token

        def create_repo(self, repo_id: str, **_: Any) -> Any:
            return type('Repo', (), {'repo_id': repo_id})

        def upload_folder(self, repo_id: str, folder_path: Path, **_: Any) -> str:
            shutil.copytree(folder_path, tmp_path / 'uploaded')
            return f'https://hub/{repo_id}'

    monkeypatch.setattr('huggingface_hub.hub_mixin.HfApi', Api)
    model = save(tmp_path / 'local', num_classes=4)
    assert model.push_to_hub('user/model') == 'https://hub/user/model'
    x = torch.randn(1, 3, 64, 64)
    assert torch.equal(
        outputs(InLineBackbone.from_pretrained(tmp_path / 'uploaded'), x)[0], outputs(model, x)[0]
    )


@pytest.mark.parametrize('name', ['gone', 'out/gone', '/gone', './gone', 'a/b/c'])
def test_missing_folder_raises_without_a_network_request(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'out').mkdir()
    monkeypatch.setattr(
        huggingface_hub.PyTorchModelHubMixin, 'from_pretrained', lambda *_, **__: pytest.fail('network')
    )
    with pytest.raises(UserError, match=f"folder '{name}' does not exist"):
        InLineBackbone.from_pretrained(name)


def test_hf_hub_prefix_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.PyTorchModelHubMixin, 'from_pretrained', lambda name: name)
    assert InLineBackbone.from_pretrained('hf_hub:user/model') == 'user/model'
    assert InLineBackbone.from_pretrained('user/model') == 'user/model'
    assert InLineBackbone.from_pretrained('user/inline-v1.0') == 'user/inline-v1.0'
