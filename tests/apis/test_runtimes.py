"""InLineModel in ONNX Runtime and OpenVINO: the same results as in PyTorch."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from mmengine.config import Config
from torch import Tensor

from inline import InLineModel
from inline.apis.export.formats import FORMATS, REPLACE_METADATA
from inline.apis.export.portable import config_of_metadata, read_metadata
from inline.apis.export.run import ExportOptions, export
from inline.apis.runtimes import ExportedModel, fixed_size
from inline.engine.config import load_config
from inline.utils.errors import UserError
from tests.apis.small_models import CLASSES, read, save_model, write_images

# One stage: tracing is slow.
ARCH = {'embed_dims': (8,), 'depths': (1,), 'num_heads': (2,), 'mlp_ratios': (2,)}
Model = tuple[Config, Path]


@pytest.fixture(scope='module')
def small(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path]]:
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
def exported(
    small: Callable[[str], tuple[Path, Path]], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """Returns an exported file, written once."""
    folder = tmp_path_factory.mktemp('exported')

    def write(task: str, runtime: str, **options: Any) -> Path:
        name = '-'.join([task, *(f'{key}-{value}' for key, value in options.items())])
        out = folder / f'{name}{FORMATS[runtime].suffix}'
        if not out.exists():
            config, checkpoint = small(task)
            options = {'name': task, 'measure': False, **options}
            chosen = ExportOptions(checkpoint=str(checkpoint), format=runtime, out=out, **options)
            list(export(load_config(config), chosen))
        return out

    return write


@pytest.fixture(scope='module')
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp('pictures'))


@pytest.mark.slow
@pytest.mark.parametrize(
    ('runtime', 'options', 'tolerance'),
    [
        ('onnx', {}, 1e-5),
        ('onnx', {'with_preprocessing': True}, 1e-5),
        ('openvino', {}, 1e-5),
        ('openvino', {'precision': 'bf16'}, 2e-3),
    ],
)
def test_classifier_files_predict_as_pytorch_does(
    runtime: str,
    options: dict[str, Any],
    tolerance: float,
    small: Callable[[str], tuple[Path, Path]],
    exported: Callable[..., Path],
    pictures: Path,
) -> None:
    expected = InLineModel(*small('classification'), 'cpu')
    model = InLineModel(exported('classification', runtime, **options))
    assert (model.runtime, model.precision) == (runtime, options.get('precision', 'fp32'))
    assert model.task == 'classification'
    assert model.classes.names == CLASSES['classification']
    assert model.classes.palette == expected.classes.palette
    results = list(model(pictures, batch_size=3, progress=False))
    references = list(expected(pictures, progress=False))
    assert len(results) == len(references) == 5
    for result, reference in zip(results, references, strict=True):
        np.testing.assert_allclose(result.probs, reference.probs, atol=tolerance)
        assert type(result.sample) is type(reference.sample)
        assert (result.name, result.shape) == (reference.name, reference.shape)
        assert result.to_dict().keys() == reference.to_dict().keys()
        assert result.top1 == int(result.probs.argmax()) == int(result.sample.pred_label)


@pytest.mark.slow
def test_segmentor_files_predict_as_pytorch_does_at_any_size(
    small: Callable[[str], tuple[Path, Path]], exported: Callable[..., Path], pictures: Path
) -> None:
    expected = InLineModel(*small('segmentation'), 'cpu')
    model = InLineModel(exported('segmentation', 'openvino', dynamic=True))
    for options in ({}, {'full_size': True}, {'tile': 48, 'overlap': 16}):
        results = list(model(pictures, progress=False, keep_logits=True, **options))
        references = list(expected(pictures, progress=False, keep_logits=True, **options))
        for result, reference in zip(results, references, strict=True):
            assert result.label_map.shape == reference.shape
            assert (result.label_map == reference.label_map).mean() > 0.999
            torch.testing.assert_close(result.seg_logits.data, reference.seg_logits.data, rtol=0, atol=1e-4)


def slide(cfg: Config) -> Config:
    cfg.model.test_cfg = {'mode': 'slide', 'crop_size': (48, 48), 'stride': (32, 32)}
    return cfg


@pytest.mark.slow
def test_sliding_window_runs_a_file_of_the_window_size(
    small: Callable[[str], tuple[Path, Path]], tmp_path: Path, pictures: Path
) -> None:
    config, checkpoint = small('segmentation')
    out = tmp_path / 'slide.onnx'
    options = ExportOptions('slide', str(checkpoint), 'onnx', size=(48, 48), out=out, measure=False)
    list(export(slide(load_config(config)), options))
    expected = InLineModel(slide(load_config(config)), checkpoint, 'cpu')(pictures / 'f.bmp')
    found = InLineModel(out)(pictures / 'f.bmp')
    assert (found.label_map == expected.label_map).mean() > 0.999
    plain = InLineModel(config, checkpoint, 'cpu')(pictures / 'f.bmp')
    assert (plain.label_map != expected.label_map).any()


@pytest.mark.slow
def test_checkpoint_is_exported_once_and_cached(
    small: Callable[[str], tuple[Path, Path]],
    tmp_path: Path,
    pictures: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(tmp_path))
    config, checkpoint = small('classification')
    model = InLineModel(config, checkpoint, runtime='onnx')
    assert 'export for onnx, fp32: tracing' in capsys.readouterr().err
    expected = InLineModel(config, checkpoint, 'cpu')(pictures / 'f.bmp')
    np.testing.assert_allclose(model(pictures / 'f.bmp').probs, expected.probs, atol=1e-5)
    (first,) = tmp_path.rglob('*.onnx')
    written = first.stat().st_mtime_ns
    InLineModel(config, checkpoint, runtime='onnx')
    assert 'export' not in capsys.readouterr().err
    assert [path.stat().st_mtime_ns for path in tmp_path.rglob('*.onnx')] == [written]
    # Other weights are another file.
    content = torch.load(checkpoint, weights_only=True)
    content['state_dict']['head.fc.bias'] += 1.0
    torch.save(content, tmp_path / 'other.pth')
    InLineModel(config, tmp_path / 'other.pth', runtime='onnx')
    assert len(list(tmp_path.rglob('*.onnx'))) == 2


def test_bfloat16_in_torch_changes_little(small: Callable[[str], tuple[Path, Path]], pictures: Path) -> None:
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
def test_wrong_runtime_raises(
    options: dict[str, str], message: str, small: Callable[[str], tuple[Path, Path]]
) -> None:
    with pytest.raises(UserError, match=message):
        InLineModel(*small('classification'), **options)


@pytest.mark.slow
def test_wrong_use_of_a_file_raises(
    small: Callable[[str], tuple[Path, Path]],
    exported: Callable[..., Path],
    tmp_path: Path,
    pictures: Path,
) -> None:
    path = exported('classification', 'onnx')
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
    exported: Callable[..., Path], tmp_path: Path
) -> None:
    path = exported('classification', 'onnx')
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
def test_image_of_another_size_than_the_file_raises(exported: Callable[..., Path], pictures: Path) -> None:
    model = InLineModel(exported('segmentation', 'onnx', size=(88, 88)))
    assert model(pictures / 'f.bmp').label_map.shape == (88, 88)
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
    assert seen == [(1, 3, 96, 64)]
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


def test_full_size_masks_lose_their_padding() -> None:
    masks = torch.zeros(1, 1, 96, 64)
    masks[..., 20:40, 10:30] = 1
    outputs = [torch.ones(1, 1, 4), torch.ones(1, 1), torch.zeros(1, 1, dtype=torch.int64), masks]
    model = detector(lambda _: outputs, ['boxes', 'scores', 'labels', 'masks'])
    (sample,) = model.test_step(detector_batch())
    expected = torch.zeros(40, 30, dtype=torch.bool)
    expected[10:20, 5:15] = True
    assert torch.equal(sample.pred_instances.masks[0], expected)
