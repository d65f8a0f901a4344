"""Exported files with dynamic shapes agree with the model at other shapes than the traced one.

Backbones of all families are exported as ONNX and as programs, complete models as programs. Only one is
compiled: AOTInductor takes half a minute for the smallest model, and minutes for Swin and CSwin.
"""

import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import ExportedProgram

from inline.apis.export.formats import FORMATS, example_size, trace
from inline.apis.export.model import ExportModel, ExportNetwork, build_export_model
from inline.apis.export.verification import TOLERANCE, check_outputs
from tests.apis.small_models import CLASSES, read, save_model
from tests.conftest import run_fresh
from tests.models.families import FAMILIES, build

# Swin has an InLine block and a softmax block with windows; CSwin a softmax block with stripes.
STAGE = {'embed_dims': (8,), 'depths': (1,), 'num_heads': (2,), 'mlp_ratios': (2,)}
SMALL = {
    'InLineDeiT': {'embed_dims': 8, 'depth': 1, 'num_heads': 2},
    'InLinePVT': STAGE,
    'InLineSwin': {**STAGE, 'depths': (2,), 'inline_depths': (1,)},
    'InLineCSwin': {**STAGE, 'inline_depths': (0,)},
}
# At 40 pixels Swin has a single window, at the other sizes several. The last one is large enough for the fast
# paths of inference, whose conditions must not become part of a program.
SHAPES = [(1, 40, 40), (3, 70, 99), (1, 128, 96), (2, 33, 150), (2, 160, 224)]


def small_backbone(family: str) -> ExportNetwork:
    torch.manual_seed(0)
    stages = {} if family == 'InLineDeiT' else {'out_indices': (0,)}
    return ExportNetwork(build(family, arch=SMALL[family], img_size=64, **stages), 'features').eval()


@pytest.mark.slow
@pytest.mark.parametrize(
    'family',
    [
        pytest.param(family, marks=() if family == 'InLinePVT' else pytest.mark.exhaustive)
        for family in FAMILIES
    ],
)
def test_backbones_agree_in_onnx_runtime_and_as_programs(family: str, tmp_path: Path) -> None:
    network = small_backbone(family)
    program = trace(network, example_size((64, 64), 64), 3, dynamic=True)
    for name in ('onnx', 'torch-export'):
        path = tmp_path / f'model{FORMATS[name].suffix}'
        FORMATS[name].write(program, {'outputs': network.outputs, 'classes': ['a', 'b']}, path)
        assert check_outputs(network, FORMATS[name].load(path), SHAPES, 3) <= TOLERANCE


BACKBONES: dict[str, dict[str, Any]] = {
    'classification': {
        'type': 'inline.InLineDeiT',
        'arch': SMALL['InLineDeiT'],
        'img_size': 32,
        'out_type': 'cls_token',
    },
    'segmentation': {
        'type': 'inline.InLinePVT',
        'arch': SMALL['InLinePVT'],
        'img_size': 64,
        'out_indices': (0,),
    },
}


@pytest.fixture(scope='module')
def traced(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Returns a complete model for a task and its program, traced once."""
    folder = tmp_path_factory.mktemp('models')

    @cache
    def build_and_trace(task: str) -> tuple[ExportModel, ExportedProgram]:
        cfg = read(task)
        cfg.model.backbone = BACKBONES[task]
        if task == 'classification':
            cfg.model.neck = None
            cfg.model.head.in_channels = 8
        else:
            cfg.model.neck.update(in_channels=[8], num_outs=1)
            cfg.model.decode_head.update(in_channels=[64], in_index=[0], feature_strides=[4])
        model = build_export_model(cfg, str(save_model(cfg, CLASSES[task], folder / f'{task}.pth')))
        return model, trace(model.network, example_size((64, 64), 64), 3, dynamic=True)

    return build_and_trace


@pytest.mark.slow
@pytest.mark.parametrize(
    ('task', 'name'),
    [
        ('classification', 'torch-export'),
        ('segmentation', 'torch-export'),
        pytest.param('classification', 'aoti', marks=pytest.mark.exhaustive),
    ],
)
def test_complete_models_agree(task: str, name: str, traced: Any, tmp_path: Path) -> None:
    model, program = traced(task)
    assert model.network.task == task
    path = tmp_path / f'model{FORMATS[name].suffix}'
    # The optimisation level of the C++ wrapper changes the compile time only.
    with torch._inductor.config.patch({'aot_inductor.compile_wrapper_opt_level': 'O0'}):
        FORMATS[name].write(program, {'outputs': model.network.outputs}, path)
    shapes = [(1, 81, 57), (4, 128, 160), (2, 49, 200)]
    assert check_outputs(model.network, FORMATS[name].load(path), shapes, 3) <= TOLERANCE


@pytest.mark.exhaustive
def test_onnx_runtime_telemetry_is_disabled(tmp_path: Path) -> None:
    env = {**os.environ, 'HOME': str(tmp_path)}
    env.pop('ORT_DISABLE_TELEMETRY', None)
    code = (
        'from inline.apis.export.formats import import_onnxruntime; print(import_onnxruntime().__version__)'
    )
    done = run_fresh([sys.executable, '-c', code], env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert [path for path in tmp_path.rglob('*') if path.is_file()] == []
