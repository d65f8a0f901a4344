"""tools/export.py on small untrained models: files run in ONNX Runtime and torch, and errors are clear."""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from mmengine.dataset import pseudo_collate
from mmengine.registry import DATASETS, DefaultScope
from torch import Tensor

from inline import InLineModel
from inline.apis.export import verification
from inline.apis.export.formats import FORMATS
from inline.apis.export.run import ExportOptions, default_path
from inline.commands import export
from inline.datasets.digits.scenes import DigitScenesOptions, write_digit_scenes
from inline.engine.config import load_config, set_data_root
from tests.apis.small_models import CLASSES, CONFIGS, read, save_model
from tests.conftest import ROOT, run_tool
from tests.tools.conftest import Run

# Shapes that are not used for tracing or verification.
SHAPES = ((1, 81, 57), (4, 128, 160), (2, 49, 200))
# Two stages instead of four: tracing with dynamic shapes is slow.
ARCH = {'embed_dims': (16, 32), 'depths': (1, 1), 'num_heads': (2, 4), 'mlp_ratios': (2, 2)}
Model = tuple[Path, Path]


@pytest.fixture(scope='module')
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    """Return config and checkpoint of a classifier, a detector and a segmentor."""
    folder = tmp_path_factory.mktemp('models')
    created = {}
    for task in CONFIGS:
        cfg = read(task)
        cfg.model.backbone.arch = ARCH
        if task == 'classification':
            cfg.model.backbone.out_indices = (1,)
            cfg.model.head.in_channels = 32
        elif task == 'detection':
            cfg.model.backbone.arch = {key: values[:1] for key, values in ARCH.items()}
            cfg.model.backbone.out_indices = (0,)
            cfg.model.neck.update(in_channels=[16], num_outs=1)
        else:
            cfg.model.backbone.out_indices = (0, 1)
            cfg.model.neck.update(in_channels=[16, 32], num_outs=2)
            cfg.model.decode_head.update(in_channels=[64, 64], in_index=[0, 1], feature_strides=[4, 8])
        cfg.dump(folder / f'{task}.py')
        created[task] = folder / f'{task}.py', save_model(cfg, CLASSES[task], folder / f'{task}.pth')
    return created


def images(shape: tuple[int, int, int]) -> Tensor:
    batch, height, width = shape
    return torch.randn(batch, 3, height, width, generator=torch.Generator().manual_seed(height))


def assert_close(outs: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    assert len(outs) == len(expected)
    for out, reference in zip(outs, expected, strict=True):
        torch.testing.assert_close(out, reference, rtol=0, atol=1e-4 * max(1.0, float(reference.abs().max())))


@pytest.mark.slow
def test_classifier_runs_in_onnx_runtime_at_any_size(models: dict[str, Model], tmp_path: Path) -> None:
    out = tmp_path / 'new' / 'digits.onnx'
    done = run_tool('tools/export.py', *models['classification'], '--dynamic', '--out', out)
    assert done.returncode == 0, done.stderr[-3000:]
    model = InLineModel(*models['classification'], 'cpu').model
    parameters = sum(weight.numel() for weight in model.parameters()) / 1e6
    for pattern in (
        r'agrees with PyTorch to \S+ at 1×33×33, 1×65×97, ',
        rf'parameters +{parameters:.2f}  M',
        r'FLOPs +0\.\d{3}  G multiply-adds at 33×33',
        r'latency, PyTorch +[\d.]+  ms, one image of 33×33',
        r'latency, onnx +[\d.]+  ms',
        re.escape(f'wrote {out} and {out}.json'),
    ):
        assert re.search(pattern, done.stdout), f'{pattern} is not in\n{done.stdout}'
    session = onnxruntime.InferenceSession(out)
    for shape in SHAPES:
        image = images(shape)
        with torch.no_grad():
            expected = model(image, mode='tensor')
        (logits,) = session.run(['logits'], {'image': image.numpy()})
        assert_close([torch.from_numpy(logits)], [expected])
    metadata = json.loads(Path(f'{out}.json').read_text())
    assert metadata['task'] == 'classification'
    assert metadata['classes'] == list(CLASSES['classification'])
    assert metadata['input']['batch'] == 'any'
    stored = session.get_modelmeta().custom_metadata_map
    assert {key: json.loads(text) for key, text in stored.items()} == metadata
    assert sorted(path.name for path in out.parent.iterdir()) == ['digits.onnx', 'digits.onnx.json']


@pytest.mark.exhaustive
def test_segmentor_returns_logits_per_pixel(models: dict[str, Model], tmp_path: Path) -> None:
    out = tmp_path / 'scenes.onnx'
    args = ['--dynamic', '--with-preprocessing', '--out', out]
    done = run_tool('tools/export.py', *models['segmentation'], *args)
    assert done.returncode == 0, done.stderr[-3000:]
    model = InLineModel(*models['segmentation'], 'cpu').model
    session = onnxruntime.InferenceSession(out)
    for shape in SHAPES:
        pixels = (images(shape) * 60 + 120).clamp(0, 255)
        normalised = (pixels - model.data_preprocessor.mean) / model.data_preprocessor.std
        with torch.no_grad():
            metas = [{'img_shape': shape[1:], 'ori_shape': shape[1:]}] * shape[0]
            expected = model.encode_decode(normalised, metas)
        outs = [torch.from_numpy(array) for array in session.run(None, {'image': pixels.numpy()})]
        assert outs[0].shape == (shape[0], 11, *shape[1:])
        assert_close(outs, [expected])


@pytest.mark.slow
def test_backbone_of_a_detector_is_exported(models: dict[str, Model], tmp_path: Path) -> None:
    out = tmp_path / 'backbone.pt2'
    args = ['--format', 'torch-export', '--what', 'backbone', '--dynamic', '--size', '64x96', '--out', out]
    done = run_tool('tools/export.py', *models['detection'], *args)
    assert done.returncode == 0, done.stderr[-3000:]
    assert 'at 1×64×96, ' in done.stdout
    backbone = InLineModel(*models['detection'], 'cpu').model.backbone
    program = torch.export.load(out).module()
    for shape in SHAPES:
        image = images(shape)
        with torch.no_grad():
            assert_close(program(image), backbone(image))
    metadata = json.loads(Path(f'{out}.json').read_text())
    assert metadata['outputs'] == ['features_0']
    assert metadata['input']['height'] == {'from': 33, 'to': 16384}


@pytest.fixture
def trained(models: dict[str, Model], tmp_path: Path) -> Model:
    """Return the classifier overfitted to its 200 test images, so that a loss of accuracy shows."""
    options = DigitScenesOptions(
        num_classification_train=10, num_classification_val=200, num_scenes_train=1, num_scenes_val=1
    )
    write_digit_scenes(tmp_path / 'data' / 'digit_scenes', options)
    path, checkpoint = models['classification']
    cfg = load_config(path)
    set_data_root(cfg, tmp_path / 'data')
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        dataset = DATASETS.build(cfg.test_dataloader.dataset)
    model = InLineModel(path, checkpoint, 'cpu').model
    batch = model.data_preprocessor(pseudo_collate([dataset[i] for i in range(len(dataset))]), False)
    labels = torch.cat([sample.gt_label for sample in batch['data_samples']])
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    torch.manual_seed(0)
    for _ in range(40):
        for chosen in torch.randperm(len(labels)).split(50):
            loss = F.cross_entropy(model(batch['inputs'][chosen], mode='tensor'), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    content = {**torch.load(checkpoint, weights_only=True), 'state_dict': model.state_dict()}
    torch.save(content, tmp_path / 'trained.pth')
    return path, tmp_path / 'trained.pth'


@pytest.mark.slow
def test_int8_reports_the_accuracy_of_model_and_file(trained: Model, tmp_path: Path) -> None:
    out = tmp_path / 'small.onnx'
    args = ['--int8', '--data-root', tmp_path / 'data', '--out', out]
    # Evaluation must not need a visualizer.
    done = run_tool('tools/export.py', *trained, *args, '--cfg-options', 'visualizer=None')
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    header = next(i for i, line in enumerate(lines) if line.split() == ['test', 'PyTorch', 'onnx,', 'int8'])
    name, of_model, of_file = lines[header + 1].split()
    assert name == 'accuracy/top1'
    tested = run_tool(
        'tools/test.py', *trained, '--work-dir', tmp_path / 'test', '--data-root', tmp_path / 'data',
        '--allow-other-classes',
    )  # fmt: skip
    assert f'accuracy/top1: {float(of_model):.4f}' in tested.stdout + tested.stderr
    assert float(of_model) >= 90
    assert abs(float(of_model) - float(of_file)) <= 3
    types = {weight.data_type for weight in onnx.load(out).graph.initializer if len(weight.dims) == 2}
    assert onnx.TensorProto.INT8 in types
    assert any(line.startswith('largest difference') for line in lines)
    model = InLineModel(*trained, 'cpu').model
    image = images((1, 32, 32))
    with torch.no_grad():
        expected = model(image, mode='tensor').numpy()
    (logits,) = onnxruntime.InferenceSession(out).run(None, {'image': image.numpy()})
    assert 0 < np.abs(logits - expected).max() < 0.5 * np.abs(expected).max()
    metadata = json.loads(Path(f'{out}.json').read_text())
    assert metadata['input']['height'] == 32
    assert metadata['accuracy'] == {
        'images': 'all',
        'float32': {'accuracy/top1': pytest.approx(float(of_model), abs=0.01)},
        'onnx, int8': {'accuracy/top1': pytest.approx(float(of_file), abs=0.01)},
    }
    assert metadata['weights'] == 'int8 in layers'
    stored = onnxruntime.InferenceSession(out).get_modelmeta().custom_metadata_map
    assert {key: json.loads(text) for key, text in stored.items()} == metadata
    # The int8 file in inference.
    found = InLineModel(out)
    assert (found.runtime, found.precision, found.classes.names) == (
        'onnx',
        'int8',
        CLASSES['classification'],
    )


@pytest.mark.slow
def test_program_for_one_size_loads_in_torch(models: dict[str, Model], tmp_path: Path, run_here: Run) -> None:
    out = tmp_path / 'digits.pt2'
    args = ['--format', 'torch-export', '--size', '40x56', '--out', out]
    code, _, errors = run_here('export', *models['classification'], *args)
    assert code == 0, errors
    model, image = InLineModel(*models['classification'], 'cpu').model, images((1, 40, 56))
    with torch.no_grad():
        assert_close(torch.export.load(out).module()(image), [model(image, mode='tensor')])


@pytest.mark.slow
def test_file_with_different_outputs_is_not_written(
    models: dict[str, Model], tmp_path: Path, run_here: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, 'TOLERANCE', -1.0)
    out = tmp_path / 'digits.pt2'
    out.write_bytes(b'previous')
    args = ['--format', 'torch-export', '--size', '32', '--out', out]
    code, lines, errors = run_here('export', *models['classification'], *args)
    assert (code, lines) == (2, ['tracing at 32×32 …', 'writing …', 'comparing with PyTorch …'])
    assert 'differ from the model by' in errors[-1]
    assert [path.name for path in tmp_path.iterdir()] == ['digits.pt2']
    assert out.read_bytes() == b'previous'


INVALID = {
    'format': ('classification', ['--format', 'tflite'], "argument --format: invalid choice: 'tflite'"),
    'size': ('classification', ['--size', 'big'], "--size 'big': must be one side or HEIGHTxWIDTH"),
    'small': ('classification', ['--size', '16'], '--size 16x16: each side must be from 32 to 16384 pixels'),
    'small and open': (
        'classification',
        ['--size', '32x16', '--dynamic'],
        '--size 32x16: each side must be from 33 to 16384 pixels with --dynamic',
    ),
    'suffix': ('classification', ['--out', 'a.pt2'], "--out 'a.pt2': files of --format onnx end in .onnx"),
    'folder': ('classification', ['--out', 'README.md/a.onnx'], "--out 'README.md/a.onnx': "),
    'int8': (
        'classification',
        ['--int8', '--format', 'aoti'],
        '--int8 requires --format onnx or openvino, not aoti',
    ),
    'precision': (
        'classification',
        ['--precision', 'bf16'],
        '--precision bf16 requires --format openvino, not onnx',
    ),
    'no training data': (
        'classification',
        ['--int8', '--eval-images', '0', '--data-root', 'no/such'],
        'no/such',
    ),
    'detector': (
        'detection',
        ['--format', 'aoti'],
        'a detector cannot be exported as a whole model with --format aoti',
    ),
    'masks': ('classification', ['--image-masks'], '--image-masks is for whole detectors'),
    'evaluate': ('detection', ['--what', 'backbone', '--evaluate'], '--evaluate excludes --what backbone, '),
    'another model': ('segmentation', [], 'does not match the model: '),
}


@pytest.mark.parametrize('case', INVALID)
def test_invalid_arguments_give_one_error_line(case: str, models: dict[str, Model], run_here: Run) -> None:
    task, args, expected = INVALID[case]
    config, checkpoint = models[task]
    if case == 'another model':
        checkpoint = models['classification'][1]
    code, _, errors = run_here('export', config, checkpoint, *args)
    assert code == 2
    assert len([line for line in errors if 'error: ' in line]) == 1
    assert expected in errors[-1]


def test_folder_as_output_raises(models: dict[str, Model], tmp_path: Path, run_here: Run) -> None:
    for name in ('a.pt2', 'b.pt2.json'):
        (tmp_path / name).mkdir()
        out = tmp_path / name.removesuffix('.json')
        args = ['--format', 'torch-export', '--out', out]
        code, lines, errors = run_here('export', *models['classification'], *args)
        assert (code, lines) == (2, [])
        assert errors[-1] == (f"error: --out '{out}': '{tmp_path / name}' is a folder, give a file name")
    assert sorted(path.name for path in tmp_path.iterdir()) == ['a.pt2', 'b.pt2.json']


def test_test_images_of_another_size_raise_before_the_export(
    models: dict[str, Model], digit_scenes: Path, run_here: Run
) -> None:
    args = ['--format', 'torch-export', '--evaluate', '--data-root', digit_scenes.parent]
    for more, expected in (
        (['--dynamic'], 'accepts images of at least 33 pixels per side, but the test images have 32×32'),
        (['--size', '48'], 'the file accepts images of 48×48, but the test images have 32×32'),
    ):
        code, lines, errors = run_here('export', *models['classification'], *args, *more)
        assert code == 2
        assert not any(line.startswith('tracing') for line in lines)
        assert expected in errors[-1]


def test_checkpoint_from_a_url_is_exported_to_the_current_folder() -> None:
    assert default_path(ExportOptions('net', 'https://host/a/b.pth', 'onnx')) == Path('net.onnx')
    assert default_path(ExportOptions('net', 'runs/b.pth', 'aoti', what='backbone')) == Path(
        'runs/net-backbone.aoti.pt2'
    )


@pytest.mark.slow
def test_sigterm_leaves_no_files(models: dict[str, Model], tmp_path: Path) -> None:
    args = [*models['classification'], '--dynamic', '--out', tmp_path / 'out' / 'digits.onnx']
    process = subprocess.Popen(
        [sys.executable, 'tools/export.py', *args], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b'tracing')
    assert [path.name.startswith('.export-') for path in (tmp_path / 'out').iterdir()] == [True]
    process.terminate()
    assert process.wait(timeout=60) == 130
    assert list((tmp_path / 'out').iterdir()) == []


def test_the_tool_offers_all_formats() -> None:
    assert tuple(FORMATS) == export.FORMATS


def test_missing_checkpoint_raises(run_here: Run) -> None:
    code, _, errors = run_here('export', CONFIGS['classification'], 'gone.pth')
    assert code == 2
    assert "checkpoint 'gone.pth' does not exist" in errors[-1]
