"""OpenVINO IR files: conversion from ONNX, metadata, and compiled models."""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

# Precisions of the operators that are not quantised, by the names that OpenVINO uses.
HINTS = {'fp32': 'f32', 'bf16': 'bf16'}
# Section of the IR's rt_info.
_SECTION = 'inline'


def import_openvino() -> Any:
    """Import OpenVINO without its telemetry, which sends usage data and writes an id to the home folder."""
    # The import of a module fails if it is None here; OpenVINO and NNCF then use a stub.
    sys.modules.setdefault('openvino_telemetry', None)  # type: ignore[arg-type]
    import openvino

    return openvino


def write(source: Path, target: Path, metadata: Mapping[str, Any]) -> None:
    """Write an ONNX file or an IR as IR with metadata: `target`, a .xml file, and the weights in .bin."""
    openvino = import_openvino()
    model = openvino.Core().read_model(source)
    for key, value in metadata.items():
        model.set_rt_info(json.dumps(value), [_SECTION, key])
    openvino.save_model(model, target, compress_to_fp16=False)


def read_metadata(path: Path) -> dict[str, str]:
    """Return the metadata of an IR as JSON texts; `{}` if it has none of ours."""
    model = import_openvino().Core().read_model(path)
    if not model.has_rt_info([_SECTION]):
        return {}
    stored = model.get_rt_info([_SECTION]).astype(dict)
    return {key: value.astype(str) for key, value in stored.items()}


def load(path: Path, precision: str = 'fp32', threads: int | None = None) -> Callable[[Tensor], list[Tensor]]:
    """Compile an IR for the CPU and return a function that runs it on images (B, C, H, W).

    Args:
        path: The .xml file.
        precision: A key of HINTS, for the operators that are not quantised.
        threads: Number of threads; torch's by default.
    """
    compiled = compile_model(path, precision, threads)
    request = compiled.create_infer_request()

    def run(image: Tensor) -> list[Tensor]:
        results = request.infer({'image': image.contiguous().numpy()}, share_inputs=True)
        # Copied: the next call overwrites the buffers.
        return [torch.from_numpy(results[output].copy()) for output in compiled.outputs]

    return run


def compile_model(path: Path, precision: str, threads: int | None = None, **options: Any) -> Any:
    """Compile an IR for the CPU; arguments as in :func:`load`, and further options of OpenVINO."""
    settings = {
        'INFERENCE_PRECISION_HINT': HINTS[precision],
        'PERFORMANCE_HINT': 'LATENCY',
        'INFERENCE_NUM_THREADS': threads or torch.get_num_threads(),
        # Pinned threads start at the first core: several processes would share it.
        'ENABLE_CPU_PINNING': False,
    }
    return import_openvino().Core().compile_model(path, 'CPU', {**settings, **options})


def has_bf16() -> bool:
    """Return whether the CPU computes in bfloat16."""
    return 'BF16' in import_openvino().Core().get_property('CPU', 'OPTIMIZATION_CAPABILITIES')
