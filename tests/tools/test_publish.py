"""Publishing: a file that others can load, and a model card without unmeasured claims."""

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from mmengine.hooks import EMAHook
from mmengine.logging.history_buffer import HistoryBuffer
from mmengine.registry import MODELS, init_default_scope
from torch import nn

from inline import InLineBackbone, create_backbone
from inline.checkpoints import as_checkpoint
from inline.checkpoints.model_card import PublishedModelCard
from inline.checkpoints.safetensors_format import read_safetensors
from inline.engine.config import load_config
from inline.hub.backbones import MODEL_ARGUMENTS
from inline.hub.publish import EMA, LAST_STEP, find_metafile_entry, publish
from inline.openmmlab.backbones import load_pretrained
from inline.utils.errors import UserError
from tests.conftest import ROOT, run_tool

CONFIG = ROOT / 'configs' / 'digits_quick' / 'inline-pvt-nano_digits.py'
NAME = 'inline-pvt-nano_digits'


@pytest.fixture(scope='module')
def classifier() -> nn.Module:
    cfg = load_config(CONFIG)
    init_default_scope(cfg.default_scope)
    torch.manual_seed(0)
    return MODELS.build(cfg.model).eval()


def save(path: Path, classifier: nn.Module, **changes: Any) -> Path:
    """Save a checkpoint like MMEngine at the end of training."""
    cfg = load_config(CONFIG)
    cfg.work_dir = '/home/someone/secret'
    meta = {
        'cfg': cfg.pretty_text,
        'experiment_name': f'{NAME}_20260102_030405',
        'dataset_meta': {'classes': tuple('0123456789'), 'palette': np.zeros((2, 3), np.uint8)},
        'iter': 300,
        'epoch': 0,
        'seed': 0,
        'time': '20260102_030405',
    }
    content = {
        'meta': {**meta, **changes.pop('meta', {})},
        'state_dict': classifier.state_dict(),
        'message_hub': {'log_scalars': {'loss': HistoryBuffer([1.0], [1])}},
        'optimizer': {'state': {0: {'exp_avg': torch.zeros(100_000)}}},
        'param_schedulers': [{'last_step': 300}],
    }
    torch.save({**content, **changes}, path)
    return path


@pytest.fixture(scope='module')
def checkpoint(classifier: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp('train') / 'iter_300.pth', classifier)


@pytest.mark.parametrize('file_format', ['safetensors', 'pth'])
def test_the_file_is_small_reproducible_and_named_by_its_hash(
    file_format: str, checkpoint: Path, tmp_path: Path
) -> None:
    done = publish(checkpoint, tmp_path / 'a', file_format)
    digest = hashlib.sha256(done.file.read_bytes()).hexdigest()
    assert done.file.name == f'{NAME}-{digest[:8]}.{file_format}'
    assert done.weights == LAST_STEP
    assert done.file.stat().st_size < checkpoint.stat().st_size - 300_000
    assert publish(checkpoint, tmp_path / 'b', file_format).file.name == done.file.name
    assert not list(tmp_path.rglob('*.part'))
    content = (
        read_safetensors(done.file)
        if file_format == 'safetensors'
        else torch.load(done.file, weights_only=True)
    )
    assert content.keys() == {'state_dict', 'meta'}
    assert content['meta']['dataset_meta'] == {'classes': list('0123456789'), 'palette': [[0] * 3] * 2}
    assert 'inline.InLinePVT' in content['meta']['cfg']
    assert 'secret' not in content['meta']['cfg']
    assert 'time' not in content['meta']
    assert digest in done.card.read_text()


def test_published_weights_load_in_every_way(checkpoint: Path, classifier: nn.Module, tmp_path: Path) -> None:
    done = publish(checkpoint, tmp_path)
    model = InLineBackbone.from_pretrained(tmp_path)
    x = torch.randn(2, 3, 32, 48)
    with torch.no_grad():
        logits = classifier.head(classifier.extract_feat(x))
        torch.testing.assert_close(model(x), logits)
    config = json.loads((tmp_path / 'config.json').read_text())
    arguments = {name: config[name] for name in MODEL_ARGUMENTS}
    again = InLineBackbone(**arguments, num_classes=3)
    again.load_weights(done.file)
    for left, right in zip(again.backbone.parameters(), model.backbone.parameters(), strict=True):
        assert torch.equal(left, right)
    cfg = load_config(CONFIG)
    backbone = MODELS.build(cfg.model.backbone)
    assert load_pretrained(backbone, str(done.file)).complete
    assert load_pretrained(backbone, str(tmp_path)).complete
    with pytest.raises(UserError, match='different architecture'):
        create_backbone('inline_pvt_tiny', tmp_path)


@pytest.mark.parametrize('file_format', ['safetensors', 'pth'])
def test_publishing_again_replaces_the_weights(
    file_format: str, checkpoint: Path, classifier: nn.Module, tmp_path: Path
) -> None:
    (tmp_path / 'notes-00000000.txt').write_text('a file of the user')
    publish(checkpoint, tmp_path)
    later = {name: value + 1 for name, value in classifier.state_dict().items()}
    path = save(tmp_path / 'later.bin', classifier, state_dict=later)
    done = publish(path, tmp_path, file_format, overwrite=True)
    published = {f'{NAME}-{done.file.stem[-8:]}.{file_format}', 'README.md'}
    published |= {'config.json', 'preprocessor_config.json'}
    assert {path.name for path in tmp_path.iterdir()} == {*published, 'later.bin', 'notes-00000000.txt'}
    model = InLineBackbone.from_pretrained(tmp_path)
    assert torch.equal(model.state_dict()['head.fc.bias'], later['head.fc.bias'])


@pytest.mark.slow
def test_the_tools_publish_and_test(checkpoint: Path, digit_scenes: Path, tmp_path: Path) -> None:
    done = run_tool('tools/publish.py', checkpoint, '--out', tmp_path / 'out')
    assert done.returncode == 0, done.stderr[-2000:]
    assert LAST_STEP in done.stdout
    file = next((tmp_path / 'out').glob('*.safetensors'))
    tested = run_tool(
        'tools/test.py',
        CONFIG,
        file,
        '--data-root',
        digit_scenes.parent,
        '--work-dir',
        tmp_path / 'test',
        '--cfg-options',
        'test_dataloader.num_workers=0',
        'test_dataloader.persistent_workers=False',
    )
    assert tested.returncode == 0, tested.stderr[-2000:]
    assert 'accuracy/top1' in tested.stdout + tested.stderr
    unknown = run_tool(
        'tools/publish.py', checkpoint, '--out', tmp_path / 'b', '--config', 'configs/no/such.py'
    )
    assert unknown.returncode == 2
    assert unknown.stderr.startswith("error: config 'configs/no/such.py' does not exist")
    assert not (tmp_path / 'b').exists()
    again = run_tool('tools/publish.py', checkpoint, '--out', tmp_path / 'out')
    assert again.returncode == 2
    assert 'exists: choose another --out, or pass --overwrite' in again.stderr
    assert len(again.stderr.strip().splitlines()) == 1


def test_the_card_describes_the_attention_of_the_blocks(classifier: nn.Module, tmp_path: Path) -> None:
    text = load_config(CONFIG).pretty_text
    softmax = load_config(CONFIG.parent / 'pvt-nano_digits.py').pretty_text
    inline = 'Attention: InLine (injective linear attention, with a local residual) in'
    cards = {}
    for name, meta in {
        'ours': {'cfg': text},
        'softmax': {'cfg': softmax},
        'another': {'cfg': 'model = dict(backbone=dict(type="ResNet"))'},
        'released': {'cfg': None, 'model': 'inline-swin-tiny'},
    }.items():
        path = save(tmp_path / 'c.pth', classifier, meta=meta)
        if name == 'released':
            content = torch.load(path, weights_only=False)
            del content['meta']['cfg'], content['meta']['experiment_name']
            torch.save(content, path)
        cards[name] = publish(path, tmp_path / name).card.read_text()
    assert inline in cards['ours']
    assert 'Softmax' not in cards['ours']
    assert '- linear-attention\n- inline\n' in cards['ours']
    assert 'Attention: Softmax in' in cards['softmax']
    assert 'linear' not in cards['softmax'].replace('inline', '')
    assert 'Attention' not in cards['another']
    assert inline in cards['released']
    assert 'Softmax in' in cards['released']
    assert all('license' not in text for text in cards.values())


def test_the_moving_average_is_published() -> None:
    """The checkpoint is written by MMEngine's EMAHook."""
    model = nn.Linear(2, 1)
    hook = EMAHook()
    runner = SimpleNamespace(model=model, iter=0, epoch=0)
    hook.before_run(runner)
    nn.init.zeros_(model.weight)
    nn.init.ones_(hook.ema_model.module.weight)
    content: dict[str, Any] = {'state_dict': model.state_dict()}
    hook.before_save_checkpoint(runner, content)
    checkpoint = as_checkpoint(content, 'c.pth')
    assert checkpoint.is_ema
    assert torch.equal(checkpoint.state_dict['weight'], torch.ones(1, 2))


class RunsCode:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, tuple[Path]]:
        return Path.touch, (self.mark,)


def test_unusable_checkpoints_are_refused(classifier: nn.Module, tmp_path: Path) -> None:
    mark, out = tmp_path / 'mark', tmp_path / 'out'
    infinite = {**classifier.state_dict(), 'head.fc.bias': torch.full((10,), torch.nan)}
    damaged = tmp_path / 'damaged.pth'
    damaged.write_bytes(save(tmp_path / 'complete.pth', classifier).read_bytes()[:20_000])
    for path, message in (
        (save(tmp_path / 'code.pth', classifier, extra=RunsCode(mark)), 'which is not plain data'),
        (damaged, 'cannot be read'),
        (save(tmp_path / 'nan.pth', classifier, state_dict=infinite), r'head\.fc\.bias is not finite'),
        (save(tmp_path / 'none.pth', classifier, state_dict={}), 'contains no weights'),
        (tmp_path / 'gone.pth', 'does not exist'),
    ):
        with pytest.raises(UserError, match=message):
            publish(path, out)
    assert not mark.exists()
    assert not out.exists()


def test_the_config_in_a_checkpoint_is_never_run(classifier: nn.Module, tmp_path: Path) -> None:
    mark = tmp_path / 'mark'
    publish(save(tmp_path / 'c.pth', classifier), tmp_path / 'out')
    assert (tmp_path / 'out' / 'config.json').exists()
    for text in (
        f'model = __import__("pathlib").Path({str(mark)!r}).touch()',
        f'model = dict(backbone=open({str(mark)!r}, "w"))',
        'model = dict(backbone=dict(type="ResNet"))',
    ):
        path = save(tmp_path / 'c.pth', classifier, meta={'cfg': text})
        publish(path, tmp_path / 'out', overwrite=True)
        assert not (tmp_path / 'out' / 'config.json').exists()
    assert not mark.exists()


@pytest.mark.parametrize('name', ['../../evil', '..', '/evil', '.hidden'])
def test_the_name_of_a_run_cannot_escape_the_folder(
    name: str, classifier: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = save(tmp_path / 'mine.pth', classifier, meta={'experiment_name': name})
    done = publish(path)
    assert done.file.parent == Path('published', 'mine')
    assert done.file.name.startswith('mine-')


def render(entry: dict[str, Any] | None, license_id: str | None = None) -> str:
    card = PublishedModelCard(
        name='net',
        config='configs/net.py',
        file='net-12345678.safetensors',
        digest='12345678' * 8,
        parameters=1_500_000,
        weights=EMA,
        meta={'cfg': "default_scope = 'mmdet'", 'dataset_meta': {'classes': list('abcdefghijkl')}},
        metafile_entry=entry,
        is_backbone=False,
        attention={'Softmax': 2},
        license_id=license_id,
    )
    return card.render()


def test_the_card_separates_measured_and_expected_results() -> None:
    entry = {
        'Name': 'net',
        'Config': 'configs/net.py',
        'Metadata': {'Training Data': 'COCO', 'Expected': {'box AP': 45.6, 'Source': 'paper'}},
    }
    text = render(entry)
    front = yaml.safe_load(text.split('---')[1])
    assert front['pipeline_tag'] == 'object-detection'
    assert front['tags'] == []
    assert 'license' not in front
    assert yaml.safe_load(render(entry, 'mit').split('---')[1])['license'] == 'mit'
    assert 'Attention: Softmax in 2 blocks.\n' in text
    assert '12 classes: a, b, c, d, e, f, g, h, i, j and 2 more' in text
    assert 'moving average' in text
    assert 'Expected for this config (source: paper), not measured:\n\n| metric | value |' in text
    assert 'No result of this file has been measured' in text
    results = [{'Dataset': 'COCO', 'Task': 'Object Detection', 'Metrics': {'box AP': 44.4}}]
    text = render({**entry, 'Results': results})
    measured, expected = text.split('Expected for this config')
    assert 'Measured with this code and config on COCO' in measured
    assert '44.4' in measured
    assert '45.6' not in measured
    assert '45.6' in expected
    assert 'box AP' not in render(None)


def test_metafile_entries_are_found() -> None:
    by_config = find_metafile_entry('inline-swin-tiny_8xb128_in1k')
    assert by_config is not None
    assert by_config == find_metafile_entry('inline-swin-tiny')
    assert by_config['Metadata']['Expected']['top-1'] == 82.4
    assert (find_metafile_entry('inline-swin-base-384') or {})['Name'] == 'inline-swin-base_8xb64_in1k-384px'
    assert find_metafile_entry('unknown') is None
