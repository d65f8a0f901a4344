"""Sliding windows as one batch give mmseg's loop over windows, also in an exported file of any size."""

from pathlib import Path

import onnx
import pytest
import torch
import torch.nn.functional as F
from mmengine.config import Config
from torch import Tensor

from inline.apis.export import openvino_ir
from inline.apis.export.formats import FORMATS, example_size, trace
from inline.apis.export.model import ExportModel, build_export_model, default_size
from inline.apis.export.sliding import slide
from inline.apis.export.verification import TOLERANCE, check_outputs, shapes_to_check
from inline.engine.config import load_config
from tests.apis.small_models import CLASSES, read, save_model
from tests.conftest import ROOT

WEIGHT = torch.randn(4, 3, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def position_dependent(x: Tensor) -> Tensor:
    """Logits that depend on the position in the window: exchanged windows would show."""
    rows, columns = (torch.arange(side, dtype=x.dtype) for side in x.shape[-2:])
    return F.conv2d(x, WEIGHT, padding=1) * (1 + rows[:, None]) + columns


def loop(x: Tensor, crop: tuple[int, int], stride: tuple[int, int]) -> Tensor:
    total = torch.zeros(len(x), 4, *x.shape[2:], dtype=x.dtype)
    count = torch.zeros(x.shape[2:], dtype=x.dtype)
    ends = [
        sorted({min(start + size, side) for start in range(0, max(side - size, 0) + step, step)})
        for side, size, step in zip(x.shape[2:], crop, stride, strict=True)
    ]
    for bottom in ends[0]:
        for right in ends[1]:
            window = slice(max(bottom - crop[0], 0), bottom), slice(max(right - crop[1], 0), right)
            total[:, :, *window] += position_dependent(x[:, :, *window])
            count[window] += 1
    return total / count


@pytest.mark.parametrize('size', [(32, 32), (40, 33), (64, 96), (100, 71), (20, 50), (65, 64)])
@pytest.mark.parametrize(
    ('crop', 'stride'),
    [((32, 32), (21, 21)), ((32, 24), (10, 24)), ((32, 32), (32, 32)), ((32, 32), (7, 5))],
)
def test_windows_as_a_batch_equal_a_loop(
    size: tuple[int, int], crop: tuple[int, int], stride: tuple[int, int]
) -> None:
    x = torch.randn(2, 3, *size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(slide(position_dependent, x, crop, stride), loop(x, crop, stride))


def sliding_config() -> Config:
    cfg = read('segmentation')
    arch = {'embed_dims': (8,), 'depths': (1,), 'num_heads': (2,), 'mlp_ratios': (2,)}
    cfg.model.backbone.update(arch=arch, out_indices=(0,))
    cfg.model.neck.update(in_channels=[8], num_outs=1)
    cfg.model.decode_head.update(in_channels=[64], in_index=[0], feature_strides=[4])
    cfg.model.test_cfg = {'mode': 'slide', 'crop_size': (48, 40), 'stride': (32, 24)}
    return cfg


@pytest.fixture(scope='module')
def model(tmp_path_factory: pytest.TempPathFactory) -> ExportModel:
    cfg, folder = sliding_config(), tmp_path_factory.mktemp('segmentor')
    return build_export_model(cfg, str(save_model(cfg, CLASSES['segmentation'], folder / 'model.pth')))


@pytest.mark.slow
def test_file_slides_like_mmseg(model: ExportModel, tmp_path: Path) -> None:
    network = model.network
    assert network.min_size == (49, 41)
    program = trace(network, example_size((88, 88), 48), 3, dynamic=True)
    path = tmp_path / 'model.onnx'
    FORMATS['onnx'].write(program, {'outputs': network.outputs}, path)
    # What the export to OpenVINO does, without converting the program again.
    openvino_ir.write(path, path.with_suffix('.xml'), {})
    # In these files, one window is possible, too.
    shapes = [(1, 48, 40), (2, 80, 64), (1, 49, 40), (3, 130, 77), (1, 88, 88)]
    for run in (FORMATS['onnx'].load(path), openvino_ir.load(path.with_suffix('.xml'))):
        # The reference is mmseg's inference, not the network that was traced.
        assert check_outputs(network, run, shapes, 3) <= TOLERANCE
    axes = onnx.load(path).graph.output[0].type.tensor_type.shape.dim
    assert [axis.dim_param or axis.dim_value for axis in axes] == ['batch', 11, 'height', 'width']
    assert network.describe() == {'windows': {'size': [48, 40], 'stride': [32, 24]}}


def test_reference_of_windows_is_mmseg(model: ExportModel) -> None:
    image = torch.randn(1, 3, 70, 61, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        (logits,) = model.network(image)
        (expected,) = model.network.reference(image)
        not_sliding = model.network.segment(image)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)
    assert float((logits - not_sliding).abs().max()) > 1e-3


def test_sizes_to_check_are_not_smaller_than_a_window() -> None:
    shapes = shapes_to_check((64, 64), dynamic=True, min_size=(48, 40), max_batch=1)
    assert {batch for batch, *_ in shapes} == {1}
    assert min(height for _, height, _ in shapes) == 48
    assert min(width for *_, width in shapes) == 40


@pytest.mark.parametrize(
    ('config', 'size'),
    [
        ('digits/mask-rcnn_inline-pvt-micro_digits', (88, 88)),
        ('digits/upernet_inline-pvt-micro_digits', (88, 88)),
        ('retinanet/retinanet_inline-pvt-tiny_fpn_1x_coco', (800, 1280)),
        ('upernet/upernet_inline-swin-tiny_8xb2-160k_ade20k-512x512', (512, 819)),
    ],
)
def test_models_are_traced_at_the_size_of_their_test_images(config: str, size: tuple[int, int]) -> None:
    assert default_size(load_config(ROOT / 'configs' / f'{config}.py')) == size
