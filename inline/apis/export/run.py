"""Export of a config and a checkpoint to a verified file, with a summary of its size and speed."""

import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config

from inline.apis.export.detection import DetectionNetwork
from inline.apis.export.formats import (
    FORMATS,
    MAX_SIZE,
    MIN_DYNAMIC_SIZE,
    REPLACE_METADATA,
    InferenceFn,
    example_size,
    load_exported,
    trace,
)
from inline.apis.export.model import ExportModel, ExportNetwork, build_export_model, default_size
from inline.apis.export.portable import describe_inference
from inline.apis.export.quantization import QUANTIZERS, calibration_images
from inline.apis.export.tensorrt import VERSION as TENSORRT_VERSION
from inline.apis.export.tensorrt import check_tensorrt
from inline.apis.export.verification import (
    MIN_SCORE,
    Shape,
    check_detections,
    check_outputs,
    check_test_size,
    choose_test_images,
    evaluate,
    relative_difference,
    shapes_to_check,
)
from inline.benchmark import CPU, describe_machine, interleave
from inline.benchmark.flops import count_flops
from inline.checkpoints import Checkpoint
from inline.datasets.validation.checks import check_paths
from inline.engine.config import image_size
from inline.models.backbones.common import MIN_SIZE
from inline.utils.arguments import check_positive
from inline.utils.errors import UserError
from inline.utils.tables import align

REPETITIONS = 7


@dataclass(frozen=True)
class ExportOptions:
    """Options of an export.

    Args:
        name: Name of the model.
        checkpoint: Path or URL of the weights, or a checkpoint that was read; None for random weights.
        format: A key of ``FORMATS``.
        dynamic: Export for any batch size, height and width.
        size: Height and width to compare and measure at, and to trace at unless `dynamic`; by default those
            of the config.
        what: ``'model'`` or ``'backbone'``.
        with_preprocessing: Export a network that takes pixel values of 0 to 255.
        image_masks: Masks of a detector have the size of the image instead of 28×28 in the box.
        precision: ``'fp32'`` or, in OpenVINO, ``'bf16'``: a hint for the program that runs the file.
        int8: Quantise layers with weights to int8.
        calibration_images: Number of training images to calibrate the quantisation with.
        evaluate: Evaluate the model and the file on the config's test data.
        eval_images: Evaluate on this many random test images only; None for all.
        out: File to write; by default next to the checkpoint.
        measure: Print the size and the speed of the file.
    """

    name: str
    checkpoint: str | Checkpoint | None
    format: str
    dynamic: bool = False
    size: tuple[int, int] | None = None
    what: str = 'model'
    with_preprocessing: bool = False
    image_masks: bool = False
    precision: str = 'fp32'
    int8: bool = False
    calibration_images: int = 128
    evaluate: bool = False
    eval_images: int | None = None
    out: Path | None = None
    measure: bool = True

    @property
    def label(self) -> str:
        """The format with its precision, for tables."""
        if self.int8:
            return f'{self.format}, int8'
        return self.format if self.precision == 'fp32' else f'{self.format}, {self.precision}'


def export(cfg: Config, options: ExportOptions) -> Iterator[str]:
    """Write the exported file and a JSON file with its metadata, and yield progress messages.

    Nothing is written to the final path unless the outputs of the exported file agree with the model's.
    """
    size = options.size or default_size(cfg)
    if options.dynamic and options.size is None:
        # A model for smaller images can be exported for larger ones.
        size = (max(size[0], MIN_DYNAMIC_SIZE), max(size[1], MIN_DYNAMIC_SIZE))
    out = options.out or default_path(options)
    check_options(cfg, options, size, out)
    model = build_export_model(
        cfg,
        options.checkpoint,
        what=options.what,
        with_preprocessing=options.with_preprocessing,
        image_masks=options.image_masks,
    )
    network = model.network
    if options.dynamic and options.size is None:
        size = (max(size[0], network.min_size[0]), max(size[1], network.min_size[1]))
    if options.dynamic and (size[0] < network.min_size[0] or size[1] < network.min_size[1]):
        raise UserError(
            f'--size {size[0]}x{size[1]}: with --dynamic, images of this model must have at least '
            f'{network.min_size[0]}x{network.min_size[1]} pixels'
        )
    fixed_size = None if options.dynamic else size
    if options.evaluate:
        check_test_size(cfg, model.toolbox_model, fixed_size)
    file_format, channels = FORMATS[options.format], int(model.image['channels'])
    metadata = describe(model, options, size)
    if model.labels is not None:
        metadata.update(describe_inference(cfg, model.toolbox_model, model.labels))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f'--out {str(out)!r}: {error.strerror}') from error
    # In the same folder: the final rename is atomic.
    with tempfile.TemporaryDirectory(dir=out.parent, prefix='.export-') as folder:
        exported = Path(folder) / f'float{file_format.suffix}'
        example = example_size(size, max(image_size(cfg))) if options.dynamic else size
        yield f'tracing at {example[0]}×{example[1]} …'
        program = trace(network, example, channels, options.dynamic)
        yield file_format.message
        file_format.write(program, metadata, exported)
        run = file_format.load(exported)
        yield 'comparing with PyTorch …'
        shapes = shapes_to_check(size, options.dynamic, network.min_size, network.max_batch)
        yield compare(network, run, shapes, channels)
        if options.int8:
            images = calibration_images(cfg, model.toolbox_model, options.calibration_images, fixed_size)
            images = [network.denormalize(image) for image in images]
            yield f'quantising to int8, calibrated on {len(images)} training images …'
            quantized = Path(folder) / f'int8{file_format.suffix}'
            QUANTIZERS[options.format](exported, quantized, images)
            exported = quantized
        if options.format == 'onnx':
            yield describe_tensorrt(exported)
        run = load_exported(options.format, exported, options.precision)
        if options.measure:
            size_bytes = sum(path.stat().st_size for path in file_format.files(exported))
            yield from summarize(network, run, options, size, size_bytes, channels)
        if options.evaluate:
            chosen = choose_test_images(cfg, options.eval_images)
            before = evaluate(cfg, model.toolbox_model, images=chosen)
            after = evaluate(
                cfg,
                model.toolbox_model,
                lambda image: run(network.denormalize(image)),
                fixed_size,
                images=chosen,
            )
            rows = [(name, f'{before[name]:.2f}', f'{value:.2f}') for name, value in after.items()]
            yield from align([('test', 'PyTorch', options.label), *rows], right=[1, 2])
            count = 'all' if chosen is None else f'{len(chosen)} random'
            yield f'on {count} images of the test data'
            metadata['accuracy'] = {'images': count, 'float32': before, options.label: after}
        if options.format in REPLACE_METADATA and (options.int8 or options.evaluate):
            described = Path(folder) / f'described{file_format.suffix}'
            REPLACE_METADATA[options.format](exported, described, metadata)
            exported = described
        metadata_file = Path(folder) / 'metadata.json'
        metadata_file.write_text(json.dumps(metadata, indent=2, ensure_ascii=False) + '\n')
        for source, target in zip(file_format.files(exported), file_format.files(out), strict=True):
            os.replace(source, target)
        os.replace(metadata_file, f'{out}.json')
    yield f'wrote {" and ".join(str(path) for path in [*reversed(file_format.files(out)), f"{out}.json"])}'


def compare(network: ExportNetwork, run: InferenceFn, shapes: list[Shape], channels: int) -> str:
    """Compare a file with the model and return a line about their agreement."""
    checked = ', '.join(f'{batch}×{height}×{width}' for batch, height, width in shapes)
    checked = f'at {checked} (batch×height×width)'
    if not isinstance(network, DetectionNetwork):
        return f'agrees with PyTorch to {check_outputs(network, run, shapes, channels):.1e} {checked}'
    agreement = check_detections(network, run, shapes)
    if not agreement.boxes:
        return (
            f'warning: neither PyTorch nor the file found boxes above {MIN_SCORE} in scenes of digits '
            f'{checked}: compare them on your data with --evaluate'
        )
    return (
        f'agrees with PyTorch: {agreement.boxes} boxes in scenes of digits, IoU ≥ {agreement.iou:.6f}, '
        f'scores to {agreement.score:.1e} {checked}'
    )


def describe_tensorrt(path: Path) -> str:
    """Check an ONNX file and return a line about what TensorRT documents."""
    problems = check_tensorrt(path)
    if problems:
        return f'TensorRT {TENSORRT_VERSION} does not support: {"; ".join(problems)}'
    return f'TensorRT {TENSORRT_VERSION} documents support for all operators (not run in TensorRT)'


def check_options(cfg: Config, options: ExportOptions, size: tuple[int, int], out: Path) -> None:
    """Raise for invalid options before a model is built."""
    minimum = MIN_DYNAMIC_SIZE if options.dynamic else MIN_SIZE
    if not minimum <= min(size) <= max(size) <= MAX_SIZE:
        raise UserError(
            f'--size {size[0]}x{size[1]}: each side must be from {minimum} to {MAX_SIZE} pixels'
            + (' with --dynamic' if options.dynamic else '')
        )
    detector = cfg.default_scope == 'mmdet' and options.what == 'model'
    if detector and options.format in ('torch-export', 'aoti'):
        raise UserError(
            f'a detector cannot be exported as a whole model with --format {options.format}, which has no '
            'non-maximum suppression: use --format onnx or openvino, or --what backbone'
        )
    if options.image_masks and not detector:
        raise UserError('--image-masks is for whole detectors with masks')
    if options.int8 and options.format not in QUANTIZERS:
        raise UserError(f'--int8 requires --format {" or ".join(QUANTIZERS)}, not {options.format}')
    if options.precision != 'fp32' and options.format != 'openvino':
        raise UserError(f'--precision {options.precision} requires --format openvino, not {options.format}')
    check_positive('--calibration-images', options.calibration_images)
    check_positive('--eval-images', options.eval_images)
    if options.int8:
        check_paths(cfg, ('train_dataloader',))
    suffix = Path(f'model{FORMATS[options.format].suffix}').suffix
    if options.out is not None and options.out.suffix != suffix:
        raise UserError(f'--out {str(options.out)!r}: files of --format {options.format} end in {suffix}')
    for path in (out, Path(f'{out}.json')):
        if path.is_dir():
            raise UserError(f'--out {str(out)!r}: {str(path)!r} is a folder, give a file name')
    if options.evaluate:
        if options.what == 'backbone':
            raise UserError('--evaluate excludes --what backbone, as does --eval-images')
        if cfg.get('test_dataloader') is None or cfg.get('test_evaluator') is None:
            raise UserError(
                'the evaluation requires test_dataloader and test_evaluator in the config: with --int8, '
                '--eval-images 0 skips it'
            )
        check_paths(cfg, ('test_dataloader',))


def default_path(options: ExportOptions) -> Path:
    """Return a path next to the checkpoint, or in the current folder if the checkpoint is a URL."""
    backbone = '-backbone' if options.what == 'backbone' else ''
    int8 = '-int8' if options.int8 else ''
    source = (
        options.checkpoint.source if isinstance(options.checkpoint, Checkpoint) else options.checkpoint or ''
    )
    folder = Path() if '://' in source else Path(source).parent
    return folder / f'{options.name}{backbone}{int8}{FORMATS[options.format].suffix}'


def describe(model: ExportModel, options: ExportOptions, size: tuple[int, int]) -> dict[str, Any]:
    """Return the metadata that a program needs to run the file."""
    network = model.network
    height, width = ({'from': side, 'to': MAX_SIZE} for side in network.min_size)
    return {
        'model': options.name,
        'task': network.task,
        'input': {
            **model.image,
            'batch': 'any' if options.dynamic and network.max_batch is None else 1,
            'height': height if options.dynamic else size[0],
            'width': width if options.dynamic else size[1],
        },
        'outputs': list(network.outputs),
        **network.describe(),
        'weights': 'int8 in layers' if options.int8 else 'float32',
        'precision': options.precision,
        'classes': list(model.classes),
        'made with': f'torch {torch.__version__}',
    }


def summarize(
    network: ExportNetwork,
    run: InferenceFn,
    options: ExportOptions,
    size: tuple[int, int],
    file_bytes: int,
    channels: int,
) -> Iterator[str]:
    """Yield a table of parameters, multiply-adds, file size and latency."""
    image = torch.randn(1, channels, *size, generator=torch.Generator().manual_seed(0))
    cost = count_flops(network, lambda: network(image))[-1]
    timings = interleave(
        {'PyTorch': torch.inference_mode()(lambda: network(image)), options.label: lambda: run(image)},
        REPETITIONS,
        CPU,
    )
    shape = f'{size[0]}×{size[1]}'
    rows = [
        ('parameters', f'{cost.parameters / 1e6:.2f}', 'M'),
        ('FLOPs', f'{cost.multiply_adds / 1e9:.3f}', f'G multiply-adds at {shape}'),
        ('file', f'{file_bytes / 1e6:.2f}', 'MB'),
    ]
    for name, timing in timings.items():
        rows.append((f'latency, {name}', f'{timing.median * 1e3:.1f}', f'ms, one image of {shape}'))
    if (options.int8 or options.precision != 'fp32') and network.task != 'detection':
        with torch.no_grad():
            difference = relative_difference(run(image), network(image))
        rows.append(('largest difference', f'{100 * difference:.1f}', '% of the largest output'))
    yield from align(rows, right=[1])
    yield f'on {describe_machine(CPU)}, threads: {torch.get_num_threads()}'
