"""InLineModel in ONNX Runtime and OpenVINO: the same results as in PyTorch."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmpretrain.structures import DataSample
from torch import Tensor

from inline import InLineModel
from inline.apis.export import openvino_ir, run
from inline.apis.export.formats import REPLACE_METADATA
from inline.apis.export.portable import config_of_metadata, read_metadata
from inline.apis.export.run import ExportOptions
from inline.apis.runtimes import ExportedModel, fixed_size
from inline.engine.config import load_config, set_data_root
from inline.utils.errors import UserError
from tests.apis.small_models import CLASSES, read, save_model, write_images

# One stage: tracing is slow.
ARCH = {'embed_dims': (8,), 'depths': (1,), 'num_heads': (2,), 'mlp_ratios': (2,)}
Small = Callable[[str], tuple[Path, Path]]


@pytest.fixture(scope='module')
def small(tmp_path_factory: pytest.TempPathFactory) -> Small:
    """Returns config and checkpoint of a small classifier or segmentor."""
    folder = tmp_path_factory.mktemp('models')

    def build(task: str) -> tuple[Path, Path]:
        config, checkpoint = folder / f'{task}.py', folder / f'{task}.pth'
        if not checkpoint.exists():
            cfg = read(task)
            cfg.model.backbone.update(arch=ARCH, out_indices=(0,))
            if task == 'classification':
                cfg.model.head.in_channels = 8
            else:
                cfg.model.neck.update(in_channels=[8], num_outs=1)
                cfg.model.decode_head.update(in_channels=[64], in_index=[0], feature_strides=[4])
            cfg.dump(config)
            save_model(cfg, CLASSES[task], checkpoint)
        return config, checkpoint

    return build


@pytest.fixture(scope='module')
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in place of torch's cache."""
    folder = tmp_path_factory.mktemp('cache')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.hub, 'get_dir', lambda: str(folder))
        yield folder


@pytest.fixture(scope='module')
def files(small: Small, cache: Path) -> dict[tuple[str, str], Path]:
    """Exported files by task and runtime: a classifier of one size, a segmentor with dynamic shapes."""
    found = {}
    for task in ('classification', 'segmentation'):
        before = set(cache.rglob('*.onnx'))
        InLineModel(*small(task), runtime='onnx')
        (path,) = set(cache.rglob('*.onnx')) - before
        found[task, 'onnx'] = path
        found[task, 'openvino'] = path.with_suffix('.xml')
        # What the export to OpenVINO does, without tracing again.
        openvino_ir.write(path, path.with_suffix('.xml'), read_metadata(path))
    return found


@pytest.fixture(scope='module')
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp('pictures'))


def with_metadata(path: Path, target: Path, **changes: Any) -> Path:
    """Copy an ONNX file with other metadata."""
    REPLACE_METADATA['onnx'](path, target, {**read_metadata(path), **changes})
    return target


@pytest.mark.slow
@pytest.mark.parametrize(
    ('runtime', 'precision', 'tolerance'),
    [('onnx', None, 1e-5), ('openvino', None, 1e-5), ('openvino', 'bf16', 2e-3)],
)
def test_classifier_files_predict_as_pytorch_does(
    runtime: str,
    precision: str | None,
    tolerance: float,
    small: Small,
    files: dict[tuple[str, str], Path],
    pictures: Path,
) -> None:
    if precision == 'bf16' and not openvino_ir.has_bf16():
        pytest.skip('the CPU has no bfloat16')
    expected = InLineModel(*small('classification'), 'cpu')
    model = InLineModel(files['classification', runtime], precision=precision)
    assert (model.runtime, model.precision) == (runtime, precision or 'fp32')
    assert model.task == 'classification'
    assert model.classes.names == CLASSES['classification']
    assert model.classes.palette == expected.classes.palette
    results = list(model(pictures, batch_size=3, progress=False))
    references = list(expected(pictures, progress=False))
    assert len(results) == len(references) == 5
    differences = []
    for result, reference in zip(results, references, strict=True):
        assert result.probs is not None
        assert reference.probs is not None
        differences.append(np.abs(result.probs - reference.probs).max())
        assert type(result.sample) is type(reference.sample)
        assert (result.name, result.shape) == (reference.name, reference.shape)
        assert result.to_dict().keys() == reference.to_dict().keys()
        assert result.top1 == int(result.probs.argmax()) == int(result.sample.pred_label)
    assert max(differences) < tolerance
    assert precision is None or max(differences) > 1e-6


@pytest.mark.slow
@pytest.mark.parametrize('precision', ['fp32', pytest.param('int8', marks=pytest.mark.exhaustive)])
def test_a_config_is_exported_to_openvino(
    precision: str, small: Small, cache: Path, digit_scenes: Path, pictures: Path
) -> None:
    config, checkpoint = small('classification')
    cfg = load_config(config)
    # For the calibration of int8.
    set_data_root(cfg, digit_scenes.parent)
    expected = InLineModel(cfg, checkpoint, 'cpu')(pictures / 'f.bmp').probs
    before = set(cache.rglob('*.xml'))
    model = InLineModel(cfg, checkpoint, runtime='openvino', precision=precision)
    assert (model.runtime, model.precision) == ('openvino', precision)
    (path,) = set(cache.rglob('*.xml')) - before
    assert sorted(file.name for file in path.parent.iterdir()) == [
        'model.bin', 'model.xml', 'model.xml.json',
    ]  # fmt: skip
    probs = model(pictures / 'f.bmp').probs
    assert probs is not None
    difference = np.abs(probs - expected).max()
    assert difference < (1e-5 if precision == 'fp32' else 0.01)
    assert precision == 'fp32' or difference > 1e-6
    # The file without its config.
    again = InLineModel(path)
    assert (again.runtime, again.precision) == ('openvino', precision)
    np.testing.assert_array_equal(again(pictures / 'f.bmp').probs, probs)


@pytest.mark.slow
@pytest.mark.parametrize('runtime', ['onnx', 'openvino'])
def test_segmentor_files_predict_as_pytorch_does_at_any_size(
    runtime: str, small: Small, files: dict[tuple[str, str], Path], pictures: Path
) -> None:
    expected = InLineModel(*small('segmentation'), 'cpu')
    model = InLineModel(files['segmentation', runtime])
    assert model.classes.palette == expected.classes.palette
    for options in ({}, {'full_size': True}, {'tile': 48, 'overlap': 16}):
        results = list(model(pictures, progress=False, keep_logits=True, **options))
        references = list(expected(pictures, progress=False, keep_logits=True, **options))
        for result, reference in zip(results, references, strict=True):
            assert result.label_map is not None
            assert result.label_map.shape == reference.shape
            assert (result.label_map == reference.label_map).mean() > 0.999
            torch.testing.assert_close(result.seg_logits.data, reference.seg_logits.data, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_windows_slide_outside_of_a_file_that_does_not_slide_them(
    small: Small, files: dict[tuple[str, str], Path], tmp_path: Path, pictures: Path
) -> None:
    config, checkpoint = small('segmentation')
    cfg, path = load_config(config), files['segmentation', 'onnx']
    cfg.model.test_cfg = {'mode': 'slide', 'crop_size': (48, 48), 'stride': (32, 32)}
    expected = InLineModel(cfg, checkpoint, 'cpu')(pictures / 'f.bmp')
    post = {**read_metadata(path)['postprocessing'], 'test_cfg': dict(cfg.model.test_cfg)}
    sliding = with_metadata(path, tmp_path / 'slide.onnx', postprocessing=post)
    whole = InLineModel(path)(pictures / 'f.bmp')
    assert (InLineModel(sliding)(pictures / 'f.bmp').label_map == expected.label_map).mean() > 0.999
    assert (whole.label_map != expected.label_map).any()
    inside = with_metadata(path, tmp_path / 'inside.onnx', postprocessing=post, windows={'size': [48, 48]})
    assert (InLineModel(inside)(pictures / 'f.bmp').label_map == whole.label_map).all()


@pytest.mark.slow
def test_a_file_that_normalises_gets_pixels(files: dict[tuple[str, str], Path]) -> None:
    """Padding is zero after the normalisation, as in the toolbox: the file gets the mean there."""
    metadata = read_metadata(files['classification', 'onnx'])
    metadata['input'] |= {'values': '0 to 255', 'width': 40, 'height': 40}
    cfg = Config({'default_scope': 'mmpretrain', 'model': {'data_preprocessor': {'pad_size_divisor': 40}}})
    seen: list[torch.Tensor] = []

    def run(images: torch.Tensor) -> list[torch.Tensor]:
        seen.append(images)
        return [torch.zeros(len(images), 2)]

    model = ExportedModel(run, metadata, cfg)
    image = torch.randint(256, (3, 32, 36), dtype=torch.uint8)
    model.test_step(pseudo_collate([{'inputs': image, 'data_samples': DataSample()}]))
    expected = torch.tensor(metadata['input']['mean']).view(3, 1, 1).expand(3, 40, 40).clone()
    expected[:, :32, :36] = image
    torch.testing.assert_close(seen[0], expected[None], rtol=0, atol=1e-3)


@pytest.mark.slow
def test_exports_are_cached_by_weights_and_config(
    small: Small,
    files: dict[tuple[str, str], Path],
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config, checkpoint = small('classification')
    exported = []

    def fake_export(_: Config, options: ExportOptions) -> list[str]:
        assert options.out is not None
        exported.append(options.out)
        raise UserError('exports again')

    monkeypatch.setattr(run, 'export', fake_export)
    InLineModel(config, checkpoint, runtime='onnx')
    assert exported == []
    # Other weights, another config, another precision.
    content = torch.load(checkpoint, weights_only=True)
    content['state_dict']['head.fc.bias'] += 1.0
    torch.save(content, tmp_path / 'other.pth')
    changed = load_config(config)
    changed.test_dataloader.dataset.pipeline[1].scale = (40, 40)
    for arguments, options in (
        ((config, tmp_path / 'other.pth'), {}),
        ((changed, checkpoint), {}),
        ((config, checkpoint), {'precision': 'int8'}),
        ((config,), {}),
    ):
        with pytest.raises(UserError, match='exports again'):
            InLineModel(*arguments, runtime='onnx', **options)
    assert len({files['classification', 'onnx'], *exported}) == 5
    # Random weights are not kept.
    assert [path.is_relative_to(cache) for path in exported] == [True, True, True, False]
    assert not exported[-1].parent.exists()


def test_bfloat16_in_torch_changes_little(small: Small, pictures: Path) -> None:
    for task, attribute in (('classification', 'probs'), ('segmentation', 'label_map')):
        exact, rounded = (
            getattr(InLineModel(*small(task), 'cpu', precision=precision)(pictures / 'f.bmp'), attribute)
            for precision in ('fp32', 'bf16')
        )
        assert exact.dtype == rounded.dtype
        if task == 'classification':
            assert 0 < np.abs(exact - rounded).max() < 5e-3
        else:
            assert (exact == rounded).mean() > 0.8


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ({'runtime': 'tensorrt'}, "runtime 'tensorrt': choose one of torch, onnx, openvino"),
        ({'precision': 'fp16'}, "precision 'fp16': choose one of fp32, bf16, int8"),
        ({'runtime': 'torch', 'precision': 'int8'}, "runtime 'torch' has no precision 'int8'"),
        ({'runtime': 'onnx', 'precision': 'bf16'}, "runtime 'onnx' has no precision 'bf16'"),
    ],
)
def test_wrong_runtime_raises(options: dict[str, str], message: str, small: Small) -> None:
    with pytest.raises(UserError, match=message):
        InLineModel(*small('classification'), **options)


@pytest.mark.slow
def test_wrong_use_of_a_file_raises(
    small: Small,
    files: dict[tuple[str, str], Path],
    tmp_path: Path,
    pictures: Path,
) -> None:
    path = files['classification', 'onnx']
    config, checkpoint = small('classification')
    for arguments, options, message in (
        ((path,), {'runtime': 'openvino'}, "runtime 'openvino': .* is a file for 'onnx'"),
        ((path,), {'precision': 'int8'}, "precision 'int8': .* has float32 weights"),
        ((path,), {'precision': 'bf16'}, "runtime 'onnx' has no precision 'bf16'"),
        ((path,), {'device': 'cuda:0'}, 'exported models run on the CPU'),
        ((path, checkpoint), {}, 'it takes no checkpoint'),
        ((tmp_path / 'gone.onnx',), {}, 'does not exist'),
        ((small('segmentation')[0], path), {}, 'is for classification, but the config is for segmentation'),
    ):
        with pytest.raises(UserError, match=message):
            InLineModel(*arguments, **options)
    assert InLineModel(config, path)(pictures / 'f.bmp').probs is not None
    (tmp_path / 'text.onnx').write_text('no model')
    (tmp_path / 'text.xml').write_text('no model')
    for name in ('text.onnx', 'text.xml'):
        with pytest.raises(UserError, match='is not a readable model'):
            InLineModel(tmp_path / name)


@pytest.mark.slow
def test_untrusted_metadata_build_only_known_transforms(
    files: dict[tuple[str, str], Path], tmp_path: Path
) -> None:
    path = files['classification', 'onnx']
    metadata = read_metadata(path)
    for step in ({'type': 'os.system'}, {'type': 'Resize', 'scale': 3, 'code': 'x'}, {'type': ['a']}, {}):
        changed = json.loads(json.dumps(metadata))
        changed['preprocessing']['pipeline'].insert(0, step)
        REPLACE_METADATA['onnx'](path, tmp_path / 'bad.onnx', changed)
        with pytest.raises(UserError, match='of the test pipeline is not supported'):
            InLineModel(tmp_path / 'bad.onnx')
    for key, value in (('type', 'os.system'), ('batch_augments', {'type': 'os.system'})):
        changed = json.loads(json.dumps(metadata))
        changed['preprocessing']['data_preprocessor'][key] = value
        with pytest.raises(UserError, match='data_preprocessor has unknown arguments'):
            config_of_metadata(changed, path)
    # A file of another program.
    model = onnx.load(path)
    del model.metadata_props[:]
    onnx.save(model, tmp_path / 'foreign.onnx')
    with pytest.raises(UserError, match=r'has no classes, input, .* in its metadata'):
        InLineModel(tmp_path / 'foreign.onnx')


@pytest.mark.slow
def test_image_of_another_size_than_the_file_raises(
    files: dict[tuple[str, str], Path], pictures: Path, tmp_path: Path
) -> None:
    path = files['segmentation', 'onnx']
    stated = {**read_metadata(path)['input'], 'height': 88, 'width': 88, 'batch': 1}
    model = InLineModel(with_metadata(path, tmp_path / 'fixed.onnx', input=stated))
    label_map = model(pictures / 'f.bmp').label_map
    assert label_map is not None
    assert label_map.shape == (88, 88)
    with pytest.raises(UserError, match=r'takes images of 88×88 pixels, and this image has \d+×\d+ after'):
        model(pictures / 'c' / 'b.png')


def test_fixed_size_is_known_if_the_pipeline_has_one() -> None:
    assert fixed_size(read('classification')) == (32, 32)
    assert fixed_size(read('segmentation')) is None
    assert fixed_size(read('detection')) is None


def detector(run: Callable[[Tensor], list[Tensor]], outputs: list[str]) -> ExportedModel:
    """Return the model of a file that detects, with any function in place of the file."""
    metadata = {
        'task': 'detection',
        'input': {
            'mean': [0.0] * 3, 'std': [1.0] * 3, 'values': '', 'batch': 'any',
            'height': {'from': 33, 'to': 999}, 'width': {'from': 33, 'to': 999},
        },
        'outputs': outputs,
        'classes': ['a', 'b'],
        'postprocessing': {'mask_threshold': 0.5},
    }  # fmt: skip
    preprocessor = {'type': 'DetDataPreprocessor', 'pad_size_divisor': 32}
    return ExportedModel(
        run, metadata, Config({'default_scope': 'mmdet', 'model': {'data_preprocessor': preprocessor}})
    )


def detector_batch() -> dict[str, Any]:
    from mmdet.structures import DetDataSample

    # An image of 40×30 pixels, enlarged by two.
    meta = {'ori_shape': (40, 30), 'img_shape': (80, 60), 'scale_factor': (2.0, 2.0)}
    return {'inputs': [torch.zeros(3, 80, 60)], 'data_samples': [DetDataSample(metainfo=meta)]}


def test_detections_are_scaled_to_the_image_and_padding_is_dropped() -> None:
    seen = []
    boxes = torch.tensor([[[10.0, 20, 30, 60], [0, 0, 4, 4], [2, 2, 8, 8]]])
    scores, labels = torch.tensor([[0.9, 0.0, 0.4]]), torch.tensor([[1, 0, 0]])

    def run(image: Tensor) -> list[Tensor]:
        seen.append(tuple(image.shape))
        return [boxes, scores, labels]

    (sample,) = detector(run, ['boxes', 'scores', 'labels']).test_step(detector_batch())
    # Not padded: the file pads the image.
    assert seen == [(1, 3, 80, 60)]
    found = sample.pred_instances
    torch.testing.assert_close(found.bboxes, boxes[0, [0, 2]] / 2)
    assert found.labels.tolist() == [1, 0]
    assert found.scores.tolist() == pytest.approx([0.9, 0.4])
    assert 'masks' not in found


def test_masks_are_pasted_as_mmdet_does() -> None:
    from mmdet.models.roi_heads.mask_heads import FCNMaskHead

    logits = torch.randn(1, 2, 28, 28, generator=torch.Generator().manual_seed(0)) * 3
    boxes = torch.tensor([[[10.0, 20, 50, 60], [0, 0, 59, 79]]])
    outputs = [boxes, torch.full((1, 2), 0.9), torch.zeros(1, 2, dtype=torch.int64), logits.sigmoid()]
    batch = detector_batch()
    (sample,) = detector(lambda _: outputs, ['boxes', 'scores', 'labels', 'masks']).test_step(batch)
    reference = FCNMaskHead(num_convs=0, num_classes=1)._predict_by_feat_single(
        logits[0][:, None],
        boxes[0].clone(),
        torch.zeros(2, dtype=torch.int64),
        batch['data_samples'][0].metainfo,
        SimpleNamespace(mask_thr_binary=0.5),
        rescale=True,
    )
    assert sample.pred_instances.masks.shape == (2, 40, 30)
    assert torch.equal(sample.pred_instances.masks, reference)
    assert 0.1 < sample.pred_instances.masks.float().mean() < 0.9


def test_masks_of_the_input_are_resized_to_the_image() -> None:
    masks = torch.zeros(1, 1, 80, 60)
    masks[..., 20:40, 10:30] = 1
    outputs = [torch.ones(1, 1, 4), torch.ones(1, 1), torch.zeros(1, 1, dtype=torch.int64), masks]
    model = detector(lambda _: outputs, ['boxes', 'scores', 'labels', 'masks'])
    (sample,) = model.test_step(detector_batch())
    expected = torch.zeros(40, 30, dtype=torch.bool)
    expected[10:20, 5:15] = True
    assert torch.equal(sample.pred_instances.masks[0], expected)
