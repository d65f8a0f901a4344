"""Small models of every family as files for any size, run at sizes and batches other than the example's."""

import os
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from inline.export.agreement import TOLERANCE, check_agreement
from inline.export.formats import FORMATS, load_onnx, size_of_example, trace
from inline.export.model import Features
from tests.conftest import run_fresh
from tests.models.families import FAMILIES, build

# In Swin a block with InLine, then one with softmax in windows; in CSwin one with softmax in stripes.
STAGE = {'embed_dims': (8,), 'depths': (1,), 'num_heads': (2,), 'mlp_ratios': (2,)}
SMALL = {
    'InLineDeiT': {'embed_dims': 8, 'depth': 1, 'num_heads': 2},
    'InLinePVT': STAGE,
    'InLineSwin': {**STAGE, 'depths': (2,), 'inline_depths': (1,)},
    'InLineCSwin': {**STAGE, 'inline_depths': (0,)},
}
# At 40 pixels a window of Swin is the whole map, at the others one of many.
SHAPES = [(1, 40, 40), (3, 70, 99), (1, 128, 96), (2, 33, 150)]


def small(family: str) -> nn.Module:
    torch.manual_seed(0)
    return Features(
        build(
            family,
            arch=SMALL[family],
            img_size=64,
            **({} if family == 'InLineDeiT' else {'out_indices': (0,)}),
        )
    ).eval()


@pytest.mark.slow
@pytest.mark.parametrize('family', FAMILIES)
def test_onnx_runtime_agrees_at_any_size(family: str, tmp_path: Path) -> None:
    network, path = small(family), tmp_path / 'model.onnx'
    program = trace(network, size_of_example((64, 64), 64), 3, dynamic=True)
    FORMATS['onnx'].write(program, network.outputs, {'classes': ['a', 'b']}, path)
    assert check_agreement(network, load_onnx(path), SHAPES, 3) <= TOLERANCE
    # The program itself, saved and loaded.
    FORMATS['torch-export'].write(program, network.outputs, {}, tmp_path / 'model.pt2')
    run = FORMATS['torch-export'].load(tmp_path / 'model.pt2')
    assert check_agreement(network, run, SHAPES, 3) <= TOLERANCE


def test_onnx_runtime_leaves_no_id_of_the_machine(tmp_path: Path) -> None:
    env = {**os.environ, 'HOME': str(tmp_path)}
    env.pop('ORT_DISABLE_TELEMETRY')
    code = 'from inline.export.formats import import_runtime; print(import_runtime().__version__)'
    done = run_fresh([sys.executable, '-c', code], env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert [path for path in tmp_path.rglob('*') if path.is_file()] == []
