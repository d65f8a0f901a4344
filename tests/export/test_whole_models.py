"""Whole models for any size as programs that torch loads and as compiled packages, a family each.

Swin and CSwin, which take minutes to compile for open sizes, are run as programs in ``test_formats.py``.
"""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from torch.export import ExportedProgram

from inline.export.agreement import TOLERANCE, check_agreement
from inline.export.formats import FORMATS, size_of_example, trace
from inline.export.model import Subject, build_subject
from tests.export.test_formats import SMALL
from tests.inference.small_models import CLASSES, read, save_model

# Not the size that files are traced at.
SHAPES = [(1, 81, 57), (4, 128, 160), (2, 49, 200)]
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
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A whole model of a task and its program, traced once."""
    folder = tmp_path_factory.mktemp('models')

    @cache
    def make(task: str) -> tuple[Subject, ExportedProgram]:
        cfg = read(task)
        cfg.model.backbone = BACKBONES[task]
        if task == 'classification':
            cfg.model.neck = None
            cfg.model.head.in_channels = 8
        else:
            cfg.model.neck.update(in_channels=[8], num_outs=1)
            cfg.model.decode_head.update(in_channels=[64], in_index=[0], feature_strides=[4])
        subject = build_subject(cfg, str(save_model(cfg, CLASSES[task], folder / f'{task}.pth')))
        return subject, trace(subject.network, size_of_example((64, 64), 64), 3, dynamic=True)

    return make


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['torch-export', 'aoti'])
@pytest.mark.parametrize('task', BACKBONES)
def test_a_whole_model_agrees_at_any_size(task: str, kind: str, made: Any, tmp_path: Path) -> None:
    subject, program = made(task)
    assert subject.task == task
    path = tmp_path / f'model{FORMATS[kind].ending}'
    FORMATS[kind].write(program, subject.network.outputs, {}, path)
    assert check_agreement(subject.network, FORMATS[kind].load(path), SHAPES, 3) <= TOLERANCE
