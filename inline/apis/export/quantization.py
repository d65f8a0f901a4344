"""Static int8 quantisation of exported files, calibrated on images of the config's training set."""

import copy
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, DefaultScope
from torch import Tensor

from inline.apis.export.openvino_ir import import_openvino
from inline.utils.errors import UserError
from inline.utils.nested import leaf_datasets

# Operators with weights. Products of two activations, as in attention, stay in floating point.
_LAYERS = ('Conv', 'Gemm', 'MatMul')


def calibration_images(
    cfg: Config,
    model: BaseModel,
    count: int,
    fixed_size: tuple[int, int] | None,
) -> list[Tensor]:
    """Return normalised images (1, C, H, W) of the training set, prepared as in testing.

    Args:
        cfg: Config with the training data and the test pipeline.
        model: The toolbox's model, whose preprocessor normalises the images.
        count: Number of images, drawn at random with a fixed seed. A smaller data set is used completely.
        fixed_size: Height and width of the file's input, to which other images are resized; None for dynamic
            shapes.
    """
    dataset = _training_set(cfg)
    chosen = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0))[:count]
    return [_prepare(model, dataset[index], fixed_size) for index in sorted(chosen.tolist())]


def _training_set(cfg: Config) -> Any:
    """Build the training set with the test pipeline: the file will see images prepared in that way."""
    train = next(leaf_datasets((cfg.get('train_dataloader') or {}).get('dataset')), None)
    test = next(leaf_datasets((cfg.get('test_dataloader') or {}).get('dataset')), None) or {}
    if train is None or 'pipeline' not in test:
        raise UserError(
            '--int8 requires train_dataloader, for calibration, and the pipeline of test_dataloader'
        )
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        dataset = DATASETS.build({**copy.deepcopy(train), 'pipeline': copy.deepcopy(test['pipeline'])})
    if not len(dataset):
        raise UserError('--int8: the training set, which calibration needs, is empty')
    return dataset


def _prepare(model: BaseModel, sample: Mapping[str, Any], fixed_size: tuple[int, int] | None) -> Tensor:
    image: Tensor = model.data_preprocessor(pseudo_collate([sample]), False)['inputs'].cpu()
    if fixed_size is not None and image.shape[-2:] != fixed_size:
        image = F.interpolate(image, fixed_size, mode='bilinear', align_corners=False)
    return image


def quantize_onnx(source: Path, target: Path, images: Sequence[Tensor]) -> None:
    """Write an ONNX file whose layers compute in int8, in the QDQ format."""
    import onnx

    from inline.apis.export.formats import import_onnxruntime

    import_onnxruntime()
    from onnxruntime.quantization import (
        CalibrationDataReader,
        CalibrationMethod,
        QuantFormat,
        QuantType,
        quantize_static,
    )

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.images: Iterator[Tensor] = iter(images)

        def get_next(self) -> dict[str, Any] | None:
            image = next(self.images, None)
            return None if image is None else {'image': image.numpy()}

    model = onnx.load(source)
    # The exporter's shapes are not needed, and quantisation transposes weights: stored shapes would be wrong.
    del model.graph.value_info[:]
    dims = {weight.name: len(weight.dims) for weight in model.graph.initializer}
    layers = [
        node.name
        for node in model.graph.node
        # Grouped products have weights of three dimensions, and no scales per channel in ONNX Runtime.
        if node.op_type in _LAYERS
        and len(node.input) > 1
        and dims.get(node.input[1], 0) in ((2,) if node.op_type != 'Conv' else (3, 4))
    ]
    # It advises to run another tool before this one.
    logging.disable(logging.WARNING)
    try:
        quantize_static(
            model,
            target,
            Reader(),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=list(_LAYERS),
            nodes_to_quantize=layers,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            calibrate_method=CalibrationMethod.MinMax,
        )
    finally:
        logging.disable(logging.NOTSET)


def quantize_openvino(source: Path, target: Path, images: Sequence[Tensor]) -> None:
    """Write an IR whose layers compute in int8, quantised with NNCF."""
    openvino = import_openvino()
    import nncf

    model = openvino.Core().read_model(source)
    logging.getLogger('nncf').setLevel(logging.ERROR)
    quantized = nncf.quantize(
        model,
        nncf.Dataset(images, lambda image: image.numpy()),
        subset_size=len(images),
        preset=nncf.QuantizationPreset.MIXED,
        model_type=nncf.ModelType.TRANSFORMER,
    )
    openvino.save_model(quantized, target, compress_to_fp16=False)


QUANTIZERS: dict[str, Callable[[Path, Path, Sequence[Tensor]], None]] = {
    'onnx': quantize_onnx,
    'openvino': quantize_openvino,
}
