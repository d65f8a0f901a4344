"""Models without a config, and mean, std and classes that come with the weights."""

import logging
from pathlib import Path

import numpy as np
import pytest
import torch

from inline import InLineBackbone, InLineModel, create_backbone
from inline.apis.export.model import build_export_model
from inline.apis.loading import find_config
from inline.checkpoints import read_checkpoint
from inline.checkpoints.safetensors_format import read_safetensors
from inline.hub.publish import publish
from inline.utils.errors import UserError
from tests.apis.small_models import CLASSES, CONFIGS, read, save_model
from tests.hub.test_packaged import NAMES, packaged

__all__ = ['packaged']
IMAGE = np.random.default_rng(0).integers(0, 256, (64, 64, 3)).astype(np.uint8)
MEAN, STD = (0.2, 0.3, 0.4), (0.1, 0.2, 0.3)


def save_training(task: str, path: Path) -> Path:
    """Save a model with the config of its training, whose mean and std are unusual."""
    cfg = read(task)
    node = cfg.data_preprocessor if task == 'classification' else cfg.model.data_preprocessor
    node.update(mean=[255 * x for x in MEAN], std=[255 * x for x in STD])
    text = cfg.pretty_text
    save_model(cfg, CLASSES[task], path)
    content = torch.load(path, weights_only=False)
    name = Path(CONFIGS[task]).name
    content['meta'] |= {'cfg': text, 'experiment_name': f'{name}_20260102_030405'}
    torch.save(content, path)
    return path


def expected_probabilities(model: InLineBackbone) -> torch.Tensor:
    """Compute the prediction for IMAGE in plain PyTorch, from the model's own mean and std."""
    cfg = model.pretrained_cfg
    mean, std = (torch.tensor(cfg[key]).view(3, 1, 1) for key in ('mean', 'std'))
    rgb = torch.from_numpy(IMAGE[..., ::-1].copy()).permute(2, 0, 1) / 255
    with torch.no_grad():
        return model.eval()(((rgb - mean) / std)[None]).softmax(-1)[0]


@pytest.mark.parametrize('kind', ['checkpoint', 'published', 'saved'])
def test_classifier_without_a_config(kind: str, tmp_path: Path) -> None:
    source = save_training('classification', tmp_path / 'train.pth')
    if kind == 'published':
        source = publish(source, tmp_path / 'out').file
        assert read_safetensors(source)['meta']['pretrained_cfg']['mean'] == pytest.approx(MEAN)
    backbone = InLineBackbone('pvt', 'nano', 64, num_classes=10)
    backbone.load_weights(source)
    assert backbone.pretrained_cfg['mean'] == pytest.approx(MEAN)
    assert backbone.pretrained_cfg['classes'] == CLASSES['classification']
    # The config resizes to 32 pixels.
    assert backbone.pretrained_cfg['input_size'] == (3, 32, 32)
    backbone.update_pretrained_cfg({'input_size': [3, 64, 64]})
    if kind == 'saved':
        backbone.save_pretrained(tmp_path / 'saved')
        source = tmp_path / 'saved'
        again = InLineBackbone.from_pretrained(source)
        assert again.pretrained_cfg == backbone.pretrained_cfg
        assert read_checkpoint(source).dataset_meta['classes'] == list(CLASSES['classification'])
    model = InLineModel(checkpoint=source, device='cpu')
    assert model.task == 'classification'
    assert model.classes.names == CLASSES['classification']
    if kind == 'saved':
        probabilities = model(IMAGE)[0].probs
        np.testing.assert_allclose(probabilities, expected_probabilities(backbone), rtol=1e-4)


def test_published_folder_states_mean_std_and_classes(tmp_path: Path) -> None:
    done = publish(save_training('classification', tmp_path / 'train.pth'), tmp_path / 'out')
    model = InLineBackbone.from_pretrained(done.file.parent)
    assert model.pretrained_cfg['mean'] == pytest.approx(MEAN)
    assert model.pretrained_cfg['std'] == pytest.approx(STD)
    assert model.pretrained_cfg['classes'] == CLASSES['classification']


@pytest.mark.parametrize('task', ['detection', 'segmentation'])
def test_other_tasks_are_found_by_the_name_of_their_config(task: str, tmp_path: Path) -> None:
    source = publish(save_training(task, tmp_path / 'train.pth'), tmp_path / 'out').file
    model = InLineModel(checkpoint=source, device='cpu')
    assert (model.task, model.classes.names) == (task, CLASSES[task])
    torch.testing.assert_close(model.model.data_preprocessor.mean.flatten(), 255 * torch.tensor(MEAN))


def test_mean_and_std_of_the_weights_replace_those_of_the_config(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = save_training('classification', tmp_path / 'train.pth')
    with caplog.at_level(logging.WARNING, 'inline'):
        model = InLineModel(CONFIGS['classification'].split('/')[1], source, 'cpu')
    assert 'mean [51.0, 76.5, 102.0] and std [25.5, 51.0, 76.5], which replace' in caplog.text
    torch.testing.assert_close(model.model.data_preprocessor.mean.flatten(), 255 * torch.tensor(MEAN))
    exported = build_export_model(find_config(read('classification')), str(source), with_preprocessing=True)
    assert exported.image['mean'] == pytest.approx([255 * x for x in MEAN])
    assert exported.image['std'] == pytest.approx([255 * x for x in STD])
    assert exported.classes == CLASSES['classification']
    caplog.clear()
    save_model(read('classification'), CLASSES['classification'], tmp_path / 'plain.pth')
    InLineModel(CONFIGS['classification'].split('/')[1], tmp_path / 'plain.pth', 'cpu')
    assert not caplog.records


@pytest.mark.usefixtures('packaged')
def test_packaged_weights_by_name() -> None:
    model = InLineModel(checkpoint='inline_pvt_micro', device='cpu')
    assert model.classes.names == tuple(NAMES)
    reference = create_backbone('inline_pvt_micro', pretrained=True, num_classes=200)
    np.testing.assert_allclose(model(IMAGE)[0].probs, expected_probabilities(reference), rtol=1e-4)


def test_a_checkpoint_that_does_not_say_what_it_is(tmp_path: Path) -> None:
    plain = save_model(read('segmentation'), CLASSES['segmentation'], tmp_path / 'plain.pth')
    with pytest.raises(UserError, match='does not identify its model: pass a config'):
        InLineModel(checkpoint=plain)
    content = torch.load(plain, weights_only=False)
    for name in ('../evil', '/tmp/evil.py', 'evil.py'):
        content['meta']['experiment_name'] = name
        torch.save(content, plain)
        with pytest.raises(UserError, match='does not identify its model'):
            InLineModel(checkpoint=plain)
    content['meta']['experiment_name'] = 'unknown-model'
    torch.save(content, plain)
    with pytest.raises(UserError, match=r"needs a config: .*'unknown-model'"):
        InLineModel(checkpoint=plain)
    with pytest.raises(UserError, match='needs a config, a checkpoint, or both'):
        InLineModel()


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'mean': [0.5]}, 'mean .* must have one number per channel'),
        ({'mean': 'x'}, "mean 'x'"),
        ({'std': [0.0, 1.0, 1.0]}, 'std must be positive'),
        ({'mean': [float('nan')] * 3}, 'mean .* must have one number per channel'),
        ({'classes': ['a'], 'num_classes': 2}, 'has 1 names for 2 classes'),
        ({'crop_pct': 0.0}, 'crop_pct above 0'),
        ({'crop_mode': 'zoom'}, "crop_mode 'zoom': choose one of center, squash"),
        ({'size': 3}, "unknown key 'size' of pretrained_cfg"),
    ],
)
def test_invalid_settings_are_refused(change: dict[str, object], message: str, tmp_path: Path) -> None:
    model = create_backbone('inline_pvt_nano')
    torch.save({'state_dict': model.state_dict(), 'meta': {'pretrained_cfg': change}}, tmp_path / 'bad.pth')
    with pytest.raises(UserError, match=message) as raised:
        create_backbone('inline_pvt_nano', tmp_path / 'bad.pth')
    assert '\n' not in str(raised.value)
