"""The formats of an exported file: how each is written, and how it is run."""

import json
import logging
import os
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from inline.errors import UserError
from inline.export.traceable import make_traceable
from inline.models.backbones.common import MIN_SIZE

# With one pixel more than the stride of 32 the last map has two places on each side. torch.export takes an
# open size to be at least two.
MIN_OPEN_SIZE = MIN_SIZE + 1
MAX_OPEN_SIZE = 16384
MAX_BATCH = 4096

Run = Callable[[Tensor], list[Tensor]]


@dataclass(frozen=True)
class Format:
    """A kind of file.

    Args:
        ending: How its name ends.
        write: Writes a program, the names of its outputs and what is known of it to a path.
        load: Makes what runs the file at a path on a tensor of images.
        while_writing: What is told while it is written.
    """

    ending: str
    write: Callable[[ExportedProgram, Sequence[str], Mapping[str, Any], Path], None]
    load: Callable[[Path], Run]
    while_writing: str = 'writing …'


def trace(network: nn.Module, size: tuple[int, int], channels: int, dynamic: bool) -> ExportedProgram:
    """The network as a program for one image of a size, or with `dynamic` for any batch and size.

    The example must be a case like any other then: see :func:`size_of_example`.
    """
    image = torch.randn(2 if dynamic else 1, channels, *size)
    shapes = None
    if dynamic:
        height, width = (Dim(name, min=MIN_OPEN_SIZE, max=MAX_OPEN_SIZE) for name in ('height', 'width'))
        shapes = ({0: Dim('batch', min=1, max=MAX_BATCH), 2: height, 3: width},)
    try:
        with torch.no_grad():
            # What torch cannot prove of all sizes, such as that 1 is no multiple of 2h, the program checks.
            return torch.export.export(
                make_traceable(network),
                (image,),
                dynamic_shapes=shapes,
                prefer_deferred_runtime_asserts_over_guards=dynamic,
            )
    except (torch._dynamo.exc.UserError, RuntimeError, ValueError, TypeError) as error:
        if not dynamic:
            raise
        reason = ' '.join(str(error).split())[:300]
        raise UserError(
            f'the model cannot be exported for any size, leave out --dynamic: {reason}'
        ) from error


def size_of_example(size: tuple[int, int], own_size: int) -> tuple[int, int]:
    """Height and width to trace at for any size: near `size`, and larger than what the model is made for.

    At its own size a model may have one window where others have several, and torch.export takes a
    size of one for a case of its own.
    """
    return max(size[0], own_size) + 2 * MIN_SIZE, max(size[1], own_size) + 4 * MIN_SIZE


def write_onnx(
    program: ExportedProgram, outputs: Sequence[str], facts: Mapping[str, Any], path: Path
) -> None:
    # What its optimizer leaves as it is, it tells operator by operator.
    logging.getLogger('onnxscript').setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        exported = torch.onnx.export(
            program, input_names=['image'], output_names=list(outputs), dynamo=True, verbose=False
        )
    assert exported is not None
    # ONNX keeps texts only.
    exported.model.metadata_props.update({key: json.dumps(value) for key, value in facts.items()})
    exported.save(path, external_data=False)


def import_runtime() -> Any:
    """ONNX Runtime, told before its import not to give the machine an id and report its use."""
    os.environ.setdefault('ORT_DISABLE_TELEMETRY', '1')
    import onnxruntime

    return onnxruntime


def load_onnx(path: Path) -> Run:
    onnxruntime = import_runtime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=['CPUExecutionProvider'])
    return lambda image: [torch.from_numpy(out) for out in session.run(None, {'image': image.numpy()})]


def write_program(
    program: ExportedProgram,
    outputs: Sequence[str],  # noqa: ARG001 (a program's outputs have no names)
    facts: Mapping[str, Any],
    path: Path,
) -> None:
    torch.export.save(program, path, extra_files={'inline.json': json.dumps(facts)})


def load_program(path: Path) -> Run:
    module = torch.export.load(path).module()
    return lambda image: list(module(image))


def write_compiled(
    program: ExportedProgram,
    outputs: Sequence[str],  # noqa: ARG001 (a program's outputs have no names)
    facts: Mapping[str, Any],  # noqa: ARG001 (they stand in the file beside it)
    path: Path,
) -> None:
    compiler = os.environ.get('CXX', 'g++')
    if shutil.which(compiler) is None:
        raise UserError(f'--format aoti needs a C++ compiler: {compiler!r} was not found, set CXX to another')
    torch._inductor.aoti_compile_and_package(program, package_path=str(path))


def load_compiled(path: Path) -> Run:
    package = torch._inductor.aoti_load_package(str(path))

    def run(image: Tensor) -> list[Tensor]:
        outs = package(image)
        return [outs] if isinstance(outs, Tensor) else list(outs)

    return run


FORMATS = {
    'onnx': Format('.onnx', write_onnx, load_onnx),
    'torch-export': Format('.pt2', write_program, load_program),
    'aoti': Format('.aoti.pt2', write_compiled, load_compiled, 'compiling, which can take minutes …'),
}


def write_int8(path: Path, quantised: Path) -> None:
    """An ONNX file whose linear layers have int8 weights; inputs of a layer are rounded as they come."""
    import onnx

    import_runtime()
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(path)
    # Quantising transposes weights, and the shapes that the file tells of them would contradict that.
    del model.graph.value_info[:]
    matrices = {weight.name for weight in model.graph.initializer if len(weight.dims) == 2}
    # Linear layers alone: convolutions hold few of a backbone's weights, and a product by groups has no
    # scale for each channel.
    linear = [
        node.name
        for node in model.graph.node
        if node.op_type in ('MatMul', 'Gemm') and len(node.input) > 1 and node.input[1] in matrices
    ]
    # It advises shape inference, which the exporter did.
    logging.disable(logging.WARNING)
    try:
        quantize_dynamic(
            model, quantised, nodes_to_quantize=linear, weight_type=QuantType.QInt8, per_channel=True
        )
    finally:
        logging.disable(logging.NOTSET)
