"""OpenVINO files and int8 quantisation: metadata, calibration images, and what is quantised."""

import json
import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
import torch
from torch import Tensor, nn

from inline.apis.export import openvino_ir
from inline.apis.export.formats import FORMATS, REPLACE_METADATA, load_exported, trace
from inline.apis.export.model import build_export_model
from inline.apis.export.quantization import QUANTIZERS, calibration_images
from inline.apis.export.tensorrt import check_tensorrt
from inline.apis.export.verification import choose_test_images, relative_difference
from inline.engine.config import set_data_root
from inline.utils.errors import UserError
from tests.apis.small_models import read, save_checkpoint
from tests.conftest import ROOT

METADATA = {'outputs': ['logits', 'doubled'], 'classes': ['Ä "<&>\'', '猫']}


class Net(nn.Module):
    """A convolution, a linear layer, a product of activations and a grouped product."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 8, 4, 4)
        self.linear = nn.Linear(8, 6)
        self.groups = nn.Parameter(torch.randn(2, 3, 3))

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        x = self.linear(self.conv(image).flatten(2).mT).relu()
        covariance = x.mT @ x / x.shape[1]
        grouped = x.mean(1).view(-1, 2, 1, 3) @ self.groups
        logits = covariance.flatten(1) + grouped.flatten(1).repeat(1, 6)
        return logits, 2 * x


def images(count: int) -> list[Tensor]:
    return [torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(i)) for i in range(count)]


@pytest.fixture(scope='module')
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp('net')
    program = trace(Net().eval(), (32, 32), 3, dynamic=False)
    files = {}
    for name in ('onnx', 'openvino'):
        files[name] = folder / f'net{FORMATS[name].suffix}'
        FORMATS[name].write(program, METADATA, files[name])
    assert sorted(path.name for path in folder.iterdir()) == ['net.bin', 'net.onnx', 'net.xml']
    return files


@pytest.mark.parametrize('name', ['onnx', 'openvino'])
def test_files_agree_and_int8_is_close(name: str, exported: dict[str, Path], tmp_path: Path) -> None:
    (image,) = images(1)
    with torch.no_grad():
        expected = Net().eval()(image)
    assert relative_difference(load_exported(name, exported[name], 'fp32')(image), expected) < 1e-5
    target = tmp_path / f'int8{FORMATS[name].suffix}'
    QUANTIZERS[name](exported[name], target, images(8))
    difference = relative_difference(load_exported(name, target, 'fp32')(image), expected)
    assert 1e-5 < difference < 0.1


def test_bf16_differs_from_fp32_within_its_precision(exported: dict[str, Path]) -> None:
    if not openvino_ir.has_bf16():
        pytest.skip('the CPU has no bfloat16')
    (image,) = images(1)
    exact, rounded = (openvino_ir.load(exported['openvino'], name)(image) for name in ('fp32', 'bf16'))
    assert 1e-5 < relative_difference(rounded, exact) < 0.03


def test_a_result_is_not_overwritten_by_the_next_call(exported: dict[str, Path]) -> None:
    run = openvino_ir.load(exported['openvino'])
    first, second = images(2)
    results = run(first)
    copies = [out.clone() for out in results]
    run(second)
    assert all(torch.equal(out, copy) for out, copy in zip(results, copies, strict=True))


def test_onnx_quantises_layers_but_no_products_of_activations(
    exported: dict[str, Path], tmp_path: Path
) -> None:
    QUANTIZERS['onnx'](exported['onnx'], tmp_path / 'int8.onnx', images(2))
    graph = onnx.load(tmp_path / 'int8.onnx').graph
    dequantized = {out for node in graph.node if node.op_type == 'DequantizeLinear' for out in node.output}
    products = [node for node in graph.node if node.op_type in ('Conv', 'MatMul', 'Gemm')]
    quantized = [node for node in products if dequantized.issuperset(node.input[:2])]
    # The convolution and the linear layer, not the covariance and the grouped product.
    assert len(products) == 4
    assert len(quantized) == 2
    assert {weight.data_type for weight in graph.initializer} >= {onnx.TensorProto.INT8}
    # Not a file for TensorRT.
    assert check_tensorrt(exported['onnx']) == []
    problems = check_tensorrt(tmp_path / 'int8.onnx')
    assert {'QuantizeLinear of UINT8', 'QuantizeLinear with a zero point other than 0'} < set(problems)


@pytest.mark.parametrize('name', ['onnx', 'openvino'])
def test_metadata_are_stored_and_replaced(name: str, exported: dict[str, Path], tmp_path: Path) -> None:
    def read_texts(path: Path) -> dict[str, str]:
        if name == 'openvino':
            return openvino_ir.read_metadata(path)
        return {entry.key: entry.value for entry in onnx.load(path).metadata_props}

    assert {key: json.loads(text) for key, text in read_texts(exported[name]).items()} == METADATA
    target = tmp_path / f'new{FORMATS[name].suffix}'
    changed = {**METADATA, 'accuracy': {'float32': {'top1': 91.5}}}
    REPLACE_METADATA[name](exported[name], target, changed)
    assert {key: json.loads(text) for key, text in read_texts(target).items()} == changed
    (image,) = images(1)
    same = (load_exported(name, path, 'fp32')(image) for path in (exported[name], target))
    assert relative_difference(*same) == 0


def test_calibration_uses_training_images_prepared_as_in_testing(digit_scenes: Path, tmp_path: Path) -> None:
    cfg = read('classification')
    set_data_root(cfg, digit_scenes.parent)
    checkpoint = str(save_checkpoint('classification', tmp_path / 'a.pth'))
    built = build_export_model(cfg, checkpoint, with_preprocessing=True)
    model = built.toolbox_model
    chosen = calibration_images(cfg, model, 7, None)
    again = calibration_images(cfg, model, 7, None)
    assert [image.shape for image in chosen] == [(1, 3, 32, 32)] * 7
    assert all(torch.equal(first, second) for first, second in zip(chosen, again, strict=True))
    assert len({float(image.sum()) for image in chosen}) == 7
    (resized, *_) = calibration_images(cfg, model, 7, (40, 48))
    assert resized.shape == (1, 3, 40, 48)
    # What a file that normalises its images is calibrated with.
    pixels = built.network.denormalize(resized)
    assert pixels.min() >= -1e-3
    assert 100 < pixels.max() <= 255.01
    torch.testing.assert_close(built.network.normalize(pixels), resized)
    assert len(calibration_images(cfg, model, 1000, None)) == 120
    cfg.train_dataloader = None
    with pytest.raises(UserError, match='--int8 requires train_dataloader'):
        calibration_images(cfg, model, 7, None)


def test_test_images_are_drawn_at_random_with_a_fixed_seed(digit_scenes: Path) -> None:
    cfg = read('classification')
    set_data_root(cfg, digit_scenes.parent)
    chosen = choose_test_images(cfg, 8)
    assert chosen is not None
    assert chosen == sorted(set(chosen)) == choose_test_images(cfg, 8)
    assert len(chosen) == 8
    # Data sets are sorted by class: the first images would have few classes.
    assert chosen != list(range(8))
    assert choose_test_images(cfg, 20) is None
    assert choose_test_images(cfg, None) is None


@pytest.mark.exhaustive
def test_openvino_and_nncf_write_no_files_to_the_home_folder(tmp_path: Path) -> None:
    # NNCF's own telemetry is off in a process that has imported pytest.
    code = (
        'from inline.apis.export.openvino_ir import import_openvino; import_openvino(); '
        'import nncf.telemetry.wrapper; import nncf; print(type(nncf.telemetry.wrapper.telemetry).__name__)'
    )
    env = {**os.environ, 'HOME': str(tmp_path)}
    env.pop('PYTEST_CURRENT_TEST', None)
    done = subprocess.run(
        [sys.executable, '-c', code], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == 'MagicMock'
    assert [path for path in tmp_path.rglob('*') if path.is_file()] == []
