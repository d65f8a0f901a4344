#!/usr/bin/env python
"""Write results/measured/models.csv: parameters and multiply-adds of all released models."""

from pathlib import Path

import torch
from torch import nn

from inline.checkpoints.official import FAMILIES, OFFICIAL, OfficialModel
from inline.openmmlab.patches import apply_patches
from inline.utils.errors import OneLineParser, exit_on_user_error
from inline.utils.tables import write_csv

OUT = Path(__file__).resolve().parents[1] / 'results' / 'measured' / 'models.csv'
NUM_CLASSES = 1000
COLUMNS = ('model', 'backbone', 'arch', 'image size', 'params (M)', 'FLOPs (G)')


def main() -> None:
    OneLineParser(description=__doc__).parse_args()
    apply_patches()
    write_csv(OUT, COLUMNS, map(table_row, OFFICIAL.values()))


def table_row(model: OfficialModel) -> list[str]:
    """Return the row of a model with a classifier of 1000 classes, at its training resolution."""
    from inline.benchmark.flops import count_flops

    with torch.device('meta'):
        backbone = model.build()
        head = nn.Linear(backbone.dims[-1], NUM_CLASSES)
        image = torch.zeros(1, 3, model.img_size, model.img_size)
        cost = count_flops(backbone, lambda: backbone(image))[-1]
    parameters = cost.parameters + sum(p.numel() for p in head.parameters())
    multiply_adds = cost.multiply_adds + head.weight.numel()
    backbone_type = FAMILIES[model.family].__name__
    return [
        model.name,
        f'`inline.{backbone_type}`',
        f'`{model.arch}`',
        str(model.img_size),
        f'{parameters / 1e6:.2f}',
        f'{multiply_adds / 1e9:.1f}',
    ]


if __name__ == '__main__':
    with exit_on_user_error():
        main()
