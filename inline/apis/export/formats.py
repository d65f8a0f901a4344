"""Export formats: tracing a network, and writing and loading the file of each format."""

import json
import logging
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram

from inline.apis.export import openvino_ir
from inline.apis.export.detection_ops import onnx_translations
from inline.apis.export.model import MIN_DYNAMIC_SIZE as MIN_DYNAMIC_SIZE
from inline.apis.export.model import ExportNetwork, make_traceable
from inline.models.backbones.common import MIN_SIZE
from inline.utils.errors import UserError

MAX_SIZE = 16384
MAX_BATCH = 4096
# Names of the dynamic axes of the images.
AXES = {0: 'batch', 2: 'height', 3: 'width'}

# Runs an exported file on images (B, C, H, W).
InferenceFn = Callable[[Tensor], list[Tensor]]


@dataclass(frozen=True)
class Format:
    """An export format.

    Args:
        suffix: Suffix of the file.
        write: Writes a program with its metadata to a path. ``metadata['outputs']`` names its outputs.
        load: Loads a file and returns a function that runs it.
        message: Progress message while writing.
        companion: Suffix of a second file with the weights, which replaces `suffix`; empty if there is none.
    """

    suffix: str
    write: Callable[[ExportedProgram, Mapping[str, Any], Path], None]
    load: Callable[[Path], InferenceFn]
    message: str = 'writing …'
    companion: str = ''

    def files(self, path: Path) -> list[Path]:
        """Return all files of an exported model, that of `path` last."""
        return [*([path.with_suffix(self.companion)] if self.companion else []), path]


def trace(network: ExportNetwork, size: tuple[int, int], channels: int, dynamic: bool) -> ExportedProgram:
    """Trace a network with ``torch.export``.

    Args:
        network: The network to trace.
        size: Height and width of the example; for `dynamic`, see :func:`example_size`.
        channels: Number of input channels.
        dynamic: Trace for any batch size, height and width, instead of one image of `size`.
    """
    one_image = not dynamic or network.max_batch == 1
    image = torch.randn(1 if one_image else 2, channels, *size)
    shapes = None
    if dynamic:
        axes = {
            axis: Dim(AXES[axis], min=smallest, max=MAX_SIZE)
            for axis, smallest in zip((2, 3), network.min_size, strict=True)
        }
        shapes = (axes if one_image else {0: Dim(AXES[0], min=1, max=MAX_BATCH), **axes},)
    try:
        with torch.no_grad():
            return torch.export.export(
                make_traceable(network),
                (image,),
                dynamic_shapes=shapes,
                # Conditions that torch cannot prove for all sizes are checked when the program runs.
                prefer_deferred_runtime_asserts_over_guards=dynamic,
            )
    except (torch._dynamo.exc.UserError, RuntimeError, ValueError, TypeError) as error:
        if not dynamic:
            raise
        reason = ' '.join(str(error).split())[:300]
        raise UserError(f'the model cannot be exported with --dynamic: {reason}') from error


def example_size(size: tuple[int, int], model_size: int) -> tuple[int, int]:
    """Return height and width of the example for dynamic shapes, larger than the size of the model.

    At that size a model may have a single window, and torch.export specialises dimensions of size one.
    """
    return max(size[0], model_size) + 2 * MIN_SIZE, max(size[1], model_size) + 4 * MIN_SIZE


def write_onnx(program: ExportedProgram, metadata: Mapping[str, Any], path: Path) -> None:
    # The ONNX optimizer logs every operator that it does not change.
    logging.getLogger('onnxscript').setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        exported = torch.onnx.export(
            program,
            input_names=['image'],
            output_names=list(metadata['outputs']),
            dynamo=True,
            verbose=False,
            custom_translation_table=onnx_translations(),
        )
    assert exported is not None
    _name_axes(exported.model)
    # ONNX metadata are strings.
    exported.model.metadata_props.update({key: json.dumps(value) for key, value in metadata.items()})
    exported.save(path, external_data=False)


def _name_axes(model: Any) -> None:
    """Rename the symbols of torch.export to the names of the axes, in all shapes of an ONNX model."""
    shape = model.graph.inputs[0].shape
    names = {shape[axis].value: name for axis, name in AXES.items() if not isinstance(shape[axis], int)}
    if not names:
        return
    symbol = re.compile('|'.join(rf'\b{re.escape(str(name))}\b' for name in names))

    def rename(value: Any) -> None:
        if value is None or value.shape is None:
            return
        for axis, size in enumerate(value.shape):
            if not isinstance(size, int) and size.value is not None:
                value.shape[axis] = symbol.sub(lambda match: names[match[0]], size.value)

    for value in (*model.graph.inputs, *model.graph.outputs):
        rename(value)
    for node in model.graph:
        for value in node.outputs:
            rename(value)


def import_onnxruntime() -> Any:
    """Import ONNX Runtime without its telemetry, which would write a machine id to a file."""
    os.environ.setdefault('ORT_DISABLE_TELEMETRY', '1')
    import onnxruntime

    return onnxruntime


def load_onnx(path: Path) -> InferenceFn:
    onnxruntime = import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    # Idle threads would wait for the next call in a busy loop and slow down everything else in the process.
    options.add_session_config_entry('session.intra_op.allow_spinning', '0')
    session = onnxruntime.InferenceSession(path, options, providers=['CPUExecutionProvider'])
    return lambda image: [torch.from_numpy(out) for out in session.run(None, {'image': image.numpy()})]


def replace_onnx_metadata(source: Path, target: Path, metadata: Mapping[str, Any]) -> None:
    """Copy an ONNX file and replace its metadata."""
    import onnx

    model = onnx.load(source)
    onnx.helper.set_model_props(model, {key: json.dumps(value) for key, value in metadata.items()})
    onnx.save(model, target)


def write_openvino(program: ExportedProgram, metadata: Mapping[str, Any], path: Path) -> None:
    """Convert a program to ONNX and that to OpenVINO's IR, a .xml and a .bin file."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        converted = Path(folder) / 'model.onnx'
        write_onnx(program, metadata, converted)
        openvino_ir.write(converted, path, metadata)


def write_program(program: ExportedProgram, metadata: Mapping[str, Any], path: Path) -> None:
    torch.export.save(program, path, extra_files={'inline.json': json.dumps(metadata)})


def load_program(path: Path) -> InferenceFn:
    module = torch.export.load(path).module()
    return lambda image: list(module(image))


def write_compiled(program: ExportedProgram, _: Mapping[str, Any], path: Path) -> None:
    """Compile a program. AOTInductor packages hold no metadata; the JSON file has them."""
    compiler = os.environ.get('CXX', 'g++')
    if shutil.which(compiler) is None:
        raise UserError(f'--format aoti requires a C++ compiler: {compiler!r} not found, set CXX to another')
    torch._inductor.aoti_compile_and_package(program, package_path=str(path))


def load_compiled(path: Path) -> InferenceFn:
    package = torch._inductor.aoti_load_package(str(path))
    return lambda image: list(package(image))


FORMATS = {
    'onnx': Format('.onnx', write_onnx, load_onnx),
    'openvino': Format('.xml', write_openvino, openvino_ir.load, companion='.bin'),
    'torch-export': Format('.pt2', write_program, load_program),
    'aoti': Format('.aoti.pt2', write_compiled, load_compiled, 'compiling, which can take minutes …'),
}
# Formats that store metadata in the file, and how to replace them.
REPLACE_METADATA = {'onnx': replace_onnx_metadata, 'openvino': openvino_ir.write}


def load_exported(name: str, path: Path, precision: str) -> InferenceFn:
    """Load a file of a format. In OpenVINO, `precision` is that of the operators that are not quantised."""
    return openvino_ir.load(path, precision) if name == 'openvino' else FORMATS[name].load(path)
