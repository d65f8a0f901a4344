"""Whole detectors: networks for export predict what mmdet predicts, in PyTorch, ONNX Runtime and OpenVINO."""

import copy
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import pytest
import torch
from mmdet.structures import DetDataSample
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from mmengine.structures import InstanceData
from torch import Tensor, nn

from inline import InLineModel
from inline.apis.export import verification
from inline.apis.export.detection import DetectionNetwork, check_detector, paste_masks
from inline.apis.export.detection_ops import nms
from inline.apis.export.formats import FORMATS, example_size, load_onnx, trace
from inline.apis.export.run import ExportOptions, export
from inline.apis.export.tensorrt import OPERATORS, check_tensorrt
from inline.apis.export.verification import (
    Agreement,
    check_detections,
    compare_detections,
    digit_images,
)
from inline.datasets.digits.rendering import DigitScenesOptions, render_scene
from inline.datasets.digits.sources import load_sources
from inline.engine.config import load_config, set_data_root
from inline.utils.errors import UserError
from tests.conftest import ROOT

KINDS = ('retinanet', 'mask-rcnn', 'cascade-mask-rcnn')
AGNOSTIC = 'cascade-mask-rcnn, class-agnostic boxes'
# All our configs of detectors.
CONFIGS = [
    path
    for path in sorted((ROOT / 'configs').glob('*/*inline-*.py'))
    if path.name.startswith(('retinanet', 'mask-rcnn', 'cascade-mask-rcnn'))
]
CASCADE = 'cascade-mask-rcnn_inline-swin-tiny_fpn_ms-crop-1x_coco'
ARCH = {'embed_dims': (16,), 'depths': (1,), 'num_heads': (2,), 'mlp_ratios': (2,)}
# The size of the config, and sizes that neither tracing nor the command's own comparison uses.
SHAPES = [(1, 88, 88), (1, 70, 131), (1, 128, 96), (1, 41, 57)]


def read(kind: str) -> Config:
    """Return a config with one stage, one block and two pyramid levels."""
    name = 'retinanet' if kind == 'retinanet' else 'mask-rcnn'
    cfg = load_config(ROOT / 'configs' / 'digits' / f'{name}_inline-pvt-micro_digits.py')
    model = cfg.model
    model.backbone.update(arch=ARCH, out_indices=(0,))
    model.neck.update(in_channels=[16], num_outs=2, out_channels=16, norm_cfg=None, start_level=0)
    model.neck.add_extra_convs = False
    if kind == 'retinanet':
        model.bbox_head.update(in_channels=16, feat_channels=16, stacked_convs=1, norm_cfg=None)
        model.bbox_head.anchor_generator.strides = [4, 8]
        return cfg
    model.rpn_head.update(in_channels=16, feat_channels=16)
    model.rpn_head.anchor_generator.strides = [4, 8]
    if kind in ('cascade-mask-rcnn', AGNOSTIC):
        # Three stages with heads of convolutions, and adaptive sampling.
        shipped = load_config(ROOT / 'configs' / 'cascade_mask_rcnn' / f'{CASCADE}.py').model
        model.update(type=shipped.type, roi_head=shipped.roi_head, train_cfg=shipped.train_cfg)
        for head in model.roi_head.bbox_head:
            head.update(num_shared_convs=1, conv_out_channels=16, num_classes=10, norm_cfg={'type': 'BN'})
        for head in model.roi_head.bbox_head[1:] if kind == AGNOSTIC else ():
            head.reg_class_agnostic = True
        model.roi_head.mask_head.num_classes = 10
    roi_head = model.roi_head
    # The sizes of the boxes are on both sides of the limit between the levels.
    levels = {'out_channels': 16, 'featmap_strides': [4, 8], 'finest_scale': 12}
    roi_head.bbox_roi_extractor.update(levels)
    roi_head.mask_roi_extractor.update(levels)
    heads = roi_head.bbox_head if isinstance(roi_head.bbox_head, list) else [roi_head.bbox_head]
    for head in heads:
        head.update(in_channels=16, fc_out_channels=32)
    roi_head.mask_head.update(num_convs=1, in_channels=16, conv_out_channels=16, norm_cfg=None)
    return cfg


@cache
def build(kind: str) -> nn.Module:
    """Return a detector whose random heads give boxes of many sizes with scores between 0 and 1."""
    torch.manual_seed(0)
    with DefaultScope.overwrite_default_scope('mmdet'):
        detector = MODELS.build(read(kind).model)
    detector.init_weights()
    scales = {'retina_cls': (25.0, -7), 'retina_reg': (3.0, 0), 'rpn_cls': (3.0, 0), 'rpn_reg': (0.5, 0)}
    scales |= {'fc_cls': (4.0, 0), 'fc_reg': (0.5, 0), 'conv_logits': (2.0, 0)}
    for name, module in detector.named_modules():
        if name.split('.')[-1] in scales:
            weight, bias = scales[name.split('.')[-1]]
            nn.init.normal_(module.weight, std=weight / module.weight[0].numel() ** 0.5)
            nn.init.constant_(module.bias, bias)
    return detector.eval()


@pytest.mark.parametrize('kind', [*KINDS, AGNOSTIC])
def test_network_predicts_the_boxes_and_masks_of_mmdet(kind: str) -> None:
    network = DetectionNetwork(build(kind)).eval()

    def run(image: Tensor) -> list[Tensor]:
        with torch.no_grad():
            return list(network(image))

    shapes = [*SHAPES, (2, 65, 97)] if network.max_batch is None else SHAPES
    agreement = check_detections(network, run, shapes)
    assert agreement.boxes > 100
    assert agreement.iou == 1
    assert agreement.score < 1e-6
    assert agreement.mask < 1e-3
    scores = run(digit_images(network, 1, 88, 88))[1][0]
    assert float(scores.max()) > 0.5
    assert float(scores.min()) < 0.3


@pytest.mark.parametrize('path', CONFIGS, ids=lambda path: path.stem)
def test_the_detectors_of_our_configs_can_be_exported(path: Path) -> None:
    cfg = load_config(path)
    with DefaultScope.overwrite_default_scope('mmdet'), torch.device('meta'):
        detector = MODELS.build(cfg.model)
    check_detector(detector)
    assert ('masks' in DetectionNetwork(detector).outputs) == ('mask-rcnn' in path.stem)
    if 'cascade' in path.stem:
        assert len(detector.roi_head.bbox_head) == len(build('cascade-mask-rcnn').roi_head.bbox_head) == 3


def save(kind: str, path: Path) -> str:
    """Write the weights of a detector with its classes to a checkpoint and return its path."""
    classes = {'dataset_meta': {'classes': tuple('0123456789')}}
    torch.save({'meta': classes, 'state_dict': build(kind).state_dict()}, path)
    return str(path)


@pytest.fixture(scope='module')
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, list[str]]]:
    """Returns the file and the messages of ``inline export --dynamic``, once per detector and format.

    Mask R-CNN has masks of the image, the cascade masks in the boxes.
    """
    folder = tmp_path_factory.mktemp('detectors')

    @cache
    def run(kind: str, name: str = 'onnx') -> tuple[Path, list[str]]:
        checkpoint, out = save(kind, folder / f'{kind}.pth'), folder / f'{kind}{FORMATS[name].suffix}'
        masks = kind == 'mask-rcnn'
        options = ExportOptions(kind, checkpoint, name, dynamic=True, image_masks=masks, out=out)
        return out, list(export(read(kind), options))

    return run


def load_openvino(path: Path) -> Callable[[Tensor], list[Tensor]]:
    import openvino

    core = openvino.Core()
    options = {'INFERENCE_PRECISION_HINT': 'f32', 'INFERENCE_NUM_THREADS': 1}
    model = core.compile_model(core.read_model(path), 'CPU', options)

    def run(image: Tensor) -> list[Tensor]:
        outputs = model(image.numpy())
        return [torch.from_numpy(outputs[index].copy()) for index in range(len(model.outputs))]

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    'kind',
    [pytest.param(kind, marks=() if kind == 'retinanet' else pytest.mark.exhaustive) for kind in KINDS],
)
def test_file_agrees_in_onnx_runtime_and_openvino(kind: str, exported: Any) -> None:
    path, lines = exported(kind)
    assert any(line.startswith('agrees with PyTorch: ') and '1×88×88' in line for line in lines), lines
    assert any('documents support for all operators (not run in TensorRT)' in line for line in lines)
    network = DetectionNetwork(build(kind)).eval()
    shapes = [*SHAPES, (2, 65, 97)] if kind == 'retinanet' else SHAPES
    for load in (load_onnx, load_openvino):
        agreement = check_detections(network, load(path), shapes)
        assert agreement.boxes >= 50 * len(shapes)
        assert agreement.score < 1e-4
    model = onnx.load(path)
    axes = [axis.dim_param or axis.dim_value for axis in model.graph.input[0].type.tensor_type.shape.dim]
    assert axes == ['batch' if kind == 'retinanet' else 1, 3, 'height', 'width']
    assert [out.name for out in model.graph.output] == list(network.outputs)
    assert {node.op_type for node in model.graph.node} >= {'NonMaxSuppression', 'TopK'}
    assert ('RoiAlign' in {node.op_type for node in model.graph.node}) == (kind != 'retinanet')
    assert {node.domain for node in model.graph.node} == {''}


@pytest.mark.slow
def test_dynamic_sizes_begin_above_the_coarsest_stride() -> None:
    """There, maps of a single row or column would need another program."""
    cfg = read('retinanet')
    cfg.model.neck.update(num_outs=6, add_extra_convs='on_output')
    cfg.model.bbox_head.anchor_generator.strides = [4, 8, 16, 32, 64, 128]
    with DefaultScope.overwrite_default_scope('mmdet'):
        network = DetectionNetwork(MODELS.build(cfg.model)).eval()
    assert network.min_size == (129, 129)
    program = trace(network, example_size((160, 160), 160), 3, dynamic=True)
    image = torch.randn(1, 3, 129, 150)
    with torch.no_grad():
        for found, expected in zip(program.module()(image), network(image), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    assert DetectionNetwork(build('mask-rcnn')).min_size == (33, 33)


@pytest.mark.slow
@pytest.mark.parametrize(
    ('kind', 'runtime'),
    [
        ('retinanet', 'onnx'),
        ('mask-rcnn', 'onnx'),
        pytest.param('retinanet', 'openvino', marks=pytest.mark.exhaustive),
    ],
)
def test_inference_with_the_file_finds_what_the_model_finds(
    kind: str, runtime: str, exported: Any, tmp_path: Path
) -> None:
    """From pixels to boxes in the original image, which the test pipeline halves."""
    path, lines = exported(kind, runtime)
    assert any(line.startswith('agrees with PyTorch: ') for line in lines), lines
    assert all(file.is_file() for file in (*FORMATS[runtime].files(path), Path(f'{path}.json')))
    read(kind).dump(tmp_path / 'config.py')
    image = cv2.resize(render_scene(load_sources(0), DigitScenesOptions(), 'val', 0).image, (176, 176))
    (expected,) = InLineModel(tmp_path / 'config.py', path.with_suffix('.pth'), 'cpu')([image])
    model = InLineModel(path)
    assert model.runtime == runtime
    (found,) = model([image])
    count = len(expected.scores)
    assert count >= 20
    assert len(found.scores) == count
    np.testing.assert_allclose(np.sort(found.scores), np.sort(expected.scores), atol=1e-3)
    # Boxes of equal class and place, whatever the order of equal scores.
    distances = np.abs(expected.boxes[:, None] - found.boxes[None]).max(axis=2)
    distances[expected.labels[:, None] != found.labels[None]] = np.inf
    nearest = distances.argmin(axis=1)
    assert distances[np.arange(count), nearest].max() < 0.05
    assert expected.boxes.max() > 100
    if kind == 'mask-rcnn':
        assert expected.masks.any()
        assert (found.masks[nearest] != expected.masks).mean() < 0.01


def test_nms_keeps_what_a_loop_keeps() -> None:
    generator = torch.Generator().manual_seed(0)
    corner = torch.rand(2, 60, 2, generator=generator) * 40
    boxes = torch.cat((corner, corner + torch.rand(2, 60, 2, generator=generator) * 30 + 1), dim=-1)
    scores = torch.rand(2, 60, generator=generator) - 0.2
    for image in range(2):
        kept: list[int] = []
        for index in scores[image].argsort(descending=True).tolist():
            if scores[image, index] <= 0 or len(kept) == 10:
                break
            x1, y1, x2, y2 = boxes[image, index].tolist()
            ious = []
            for other in kept:
                a, b, c, d = boxes[image, other].tolist()
                common = max(min(x2, c) - max(x1, a), 0) * max(min(y2, d) - max(y1, b), 0)
                ious.append(common / ((x2 - x1) * (y2 - y1) + (c - a) * (d - b) - common))
            if all(iou <= 0.4 for iou in ious):
                kept.append(index)
        keep = nms(boxes, scores, 0.4, 10)[image]
        assert keep.nonzero().squeeze(1).tolist() == sorted(kept)
        assert len(kept) == 10


def test_pasted_masks_have_the_size_of_the_image() -> None:
    network = DetectionNetwork(build('mask-rcnn'), image_masks=True).eval()
    image = digit_images(network, 1, 70, 88)
    with torch.no_grad():
        *_, masks = network(image)
        expected = network.predict(image)[0].masks
    assert masks.shape == (1, 100, 70, 88)
    assert masks.dtype == torch.bool
    assert int((masks[0, : len(expected)] != expected).sum()) <= 2
    assert int(expected.sum()) > 1000


def test_masks_are_pasted_by_area() -> None:
    pasted = paste_masks(torch.ones(1, 4, 4), torch.tensor([[2.0, 1.0, 6.0, 5.0]]), (8, 10))
    assert pasted.shape == (1, 8, 10)
    assert pasted[0, 1:5, 2:6].min() == 1
    assert pasted.sum() == 16


def instances(boxes: list[list[float]], scores: list[float], labels: list[int]) -> InstanceData:
    return InstanceData(bboxes=torch.tensor(boxes), scores=torch.tensor(scores), labels=torch.tensor(labels))


BOXES = [[0.0, 0.0, 10.0, 10.0], [20.0, 0.0, 30.0, 10.0]]
DIFFERENT = {
    'missing': (BOXES[:1], [0.9], [1], 'is missing'),
    'additional': ([*BOXES, [0.0, 20.0, 9.0, 29.0]], [0.9, 0.4, 0.2], [1, 2, 3], 'is additional'),
    'moved': ([BOXES[0], [20.0, 0.0, 30.0, 10.02]], [0.9, 0.4], [1, 2], 'is missing'),
    'score': (BOXES, [0.9, 0.402], [1, 2], 'is missing'),
    'label': (BOXES, [0.9, 0.4], [1, 3], 'is missing'),
    'twice': ([BOXES[0], BOXES[0]], [0.9, 0.9], [1, 1], 'is missing'),
}


@pytest.mark.parametrize('case', DIFFERENT)
def test_different_detections_raise(case: str) -> None:
    boxes, scores, labels, message = DIFFERENT[case]
    # A free place at the end: the list is not full.
    outputs = [
        torch.tensor([*boxes, [0.0] * 4]),
        torch.tensor([*scores, 0.0]),
        torch.tensor([*labels, -1]),
    ]
    with pytest.raises(ValueError, match=message):
        compare_detections(outputs, instances(BOXES, [0.9, 0.4], [1, 2]), Agreement())


def test_boxes_next_to_the_threshold_or_the_end_of_a_full_list_may_be_missing() -> None:
    agreement = Agreement()
    outputs = [torch.tensor([BOXES[0], [0.0] * 4]), torch.tensor([0.9, 0.0]), torch.tensor([1, -1])]
    compare_detections(outputs, instances(BOXES, [0.9, 0.0505], [1, 2]), agreement)
    full = [torch.tensor(BOXES[:1]), torch.tensor([0.4]), torch.tensor([1])]
    compare_detections(full, instances(BOXES, [0.4, 0.3995], [1, 2]), agreement)
    assert agreement.boxes == 2
    with pytest.raises(ValueError, match='is missing'):
        compare_detections(full, instances(BOXES, [0.9, 0.4], [2, 1]), agreement)


UNSUPPORTED = {
    'soft-nms': ({'model.test_cfg.nms.type': 'soft_nms'}, "the export needs type='nms'"),
    'nms_pre': ({'model.test_cfg.nms_pre': -1}, 'nms_pre -1 must be positive'),
    'max_per_img': ({'model.test_cfg.max_per_img': -1}, 'max_per_img -1 must be positive'),
}


@pytest.mark.parametrize('case', UNSUPPORTED)
def test_unsupported_settings_raise(case: str) -> None:
    changes, message = UNSUPPORTED[case]
    cfg = read('retinanet')
    cfg.merge_from_dict(changes)
    detector = copy.deepcopy(build('retinanet'))
    detector.bbox_head.test_cfg = cfg.model.test_cfg
    with pytest.raises(UserError, match=message):
        DetectionNetwork(detector)


@pytest.mark.parametrize('name', ['torch-export', 'aoti'])
def test_formats_without_non_maximum_suppression_raise(name: str, tmp_path: Path) -> None:
    options = ExportOptions('net', None, name, out=tmp_path / f'net{FORMATS[name].suffix}')
    with pytest.raises(
        UserError, match=f'--format {name}, .* use --format onnx or openvino, or --what backbone'
    ):
        list(export(read('retinanet'), options))


def test_unsupported_heads_raise() -> None:
    detector = copy.deepcopy(build('mask-rcnn'))
    detector.roi_head.bbox_head = nn.Identity()
    with pytest.raises(UserError, match='box head Identity cannot be exported as a whole model'):
        DetectionNetwork(detector)


def save_onnx(
    path: Path, *nodes: onnx.NodeProto, opset: int = 18, domain: str = '', constants: Any = ()
) -> Path:
    value = onnx.helper.make_tensor_value_info
    names = ('x', onnx.TensorProto.FLOAT, [4]), ('y', onnx.TensorProto.FLOAT, ['n'])
    graph = onnx.helper.make_graph(nodes, 'graph', [value(*names[0])], [value(*names[1])], constants)
    opsets = [onnx.helper.make_opsetid('', opset)]
    if domain:
        opsets.append(onnx.helper.make_opsetid(domain, 1))
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


def test_operators_that_tensorrt_does_not_document_are_reported(tmp_path: Path) -> None:
    make = onnx.helper.make_node
    path = tmp_path / 'model.onnx'
    assert check_tensorrt(save_onnx(path, make('Relu', ['x'], ['y']))) == []
    assert check_tensorrt(save_onnx(path, make('Unique', ['x'], ['y']))) == ['operator Unique']
    own = make('Own', ['x'], ['y'], domain='own')
    assert check_tensorrt(save_onnx(path, own, domain='own')) == ["operator Own of domain 'own'"]
    assert check_tensorrt(save_onnx(path, make('Relu', ['x'], ['y']), opset=8)) == [
        'opset 8, supported are 9 to 24'
    ]
    with pytest.raises(onnx.checker.ValidationError):
        check_tensorrt(save_onnx(path, make('Relu', ['missing'], ['y'])))
    assert 'NonMaxSuppression' in OPERATORS
    assert not OPERATORS & {'Unique', 'MatMulInteger', 'DynamicQuantizeLinear', 'Compress'}


def test_quantisation_that_tensorrt_does_not_document_is_reported(tmp_path: Path) -> None:
    make, tensor = onnx.helper.make_node, onnx.numpy_helper.from_array
    scale = tensor(np.float32(0.5), 's')
    quantize = make('QuantizeLinear', ['x', 's', 'z'], ['q'])
    dequantize = make('DequantizeLinear', ['q', 's', 'z'], ['y'])

    def check(*nodes: onnx.NodeProto, **constants: Any) -> list[str]:
        values = [scale, *(tensor(np.array(value), name) for name, value in constants.items())]
        return check_tensorrt(save_onnx(tmp_path / 'model.onnx', *nodes, constants=values))

    assert check(quantize, dequantize, z=np.int8(0)) == []
    assert check(quantize, dequantize, z=np.int8(3)) == [
        'DequantizeLinear with a zero point other than 0',
        'QuantizeLinear with a zero point other than 0',
    ]
    unsigned = ['DequantizeLinear of UINT8', 'QuantizeLinear of UINT8']
    assert check(quantize, dequantize, z=np.uint8(0)) == unsigned
    # Without a zero point, the quantised values are UINT8.
    plain = make('QuantizeLinear', ['x', 's'], ['q']), make('DequantizeLinear', ['q', 's'], ['y'])
    assert check(*plain) == unsigned[1:]
    bias = make('DequantizeLinear', ['b', 's'], ['c']), make('Add', ['x', 'c'], ['y'])
    assert check(*bias, b=np.arange(4, dtype=np.int32)) == ['DequantizeLinear of INT32']
    assert check(*bias, b=np.arange(4, dtype=np.int8)) == []


# Masks of the image have few pixels here: resized to another size, their borders would differ.
@pytest.mark.parametrize(('as_pixels', 'size'), [(False, (44, 60)), (True, (88, 120))])
def test_evaluation_uses_the_file_at_the_size_of_the_original_image(
    as_pixels: bool, size: tuple[int, int]
) -> None:
    """A file with masks in boxes, and one that takes pixels and returns masks of the image."""
    detector = build('mask-rcnn')
    network = DetectionNetwork(detector).eval()
    exported = network
    if as_pixels:
        preprocessor: Any = detector.data_preprocessor
        exported = DetectionNetwork(detector, preprocessor.mean, preprocessor.std, image_masks=True).eval()

    def run(image: Tensor) -> list[Tensor]:
        with torch.no_grad():
            return list(exported(exported.denormalize(image)))

    image = digit_images(network, 1, 88, 120)
    info = {'img_shape': (88, 120), 'ori_shape': size, 'scale_factor': (120 / size[1], 88 / size[0])}
    samples = [DetDataSample(metainfo=info) for _ in range(2)]
    with torch.no_grad():
        (expected,) = detector.predict(network.pad(image), samples[:1])
    replaced = copy.deepcopy(detector)
    verification._replace_network(read('mask-rcnn'), replaced, run, None)
    (sample,) = replaced.predict(network.pad(image), samples[1:])
    found, reference = sample.pred_instances, expected.pred_instances
    assert found.masks.shape == (len(found), *size)
    outputs = [found.bboxes, found.scores, found.labels, found.masks]
    agreement = Agreement()
    compare_detections(outputs, reference, agreement)
    assert agreement.boxes > 50
    verification._replace_network(read('mask-rcnn'), replaced, run, (88, 88))
    with pytest.raises(UserError, match='the file accepts images of 88×88, but the test images have 88×120'):
        replaced.predict(network.pad(image), samples[1:])


@pytest.mark.exhaustive
def test_int8_file_with_masks_of_the_image_is_evaluated(digit_scenes: Path, tmp_path: Path) -> None:
    cfg, out = read('mask-rcnn'), tmp_path / 'int8.onnx'
    set_data_root(cfg, digit_scenes.parent)
    cfg.test_dataloader.update(num_workers=0, persistent_workers=False)
    checkpoint = save('mask-rcnn', tmp_path / 'model.pth')
    options = ExportOptions(
        'mask-rcnn', checkpoint, 'onnx', image_masks=True, int8=True, evaluate=True, out=out, measure=False
    )
    lines = list(export(cfg, options))
    assert 'on all images of the test data' in lines
    assert any('TensorRT' in line and 'QuantizeLinear of UINT8' in line for line in lines), lines
    accuracy = json.loads(Path(f'{out}.json').read_text())['accuracy']
    assert accuracy['onnx, int8'].keys() == accuracy['float32'].keys() >= {'coco/segm_mAP'}
