#!/usr/bin/env python
"""Count all released models and write results/measured/models.csv: parameters and multiply-adds."""

import csv
from pathlib import Path

import torch
from torch import nn

from inline.compat import prepare
from inline.errors import OneLineParser, exit_on_user_error
from inline.official.catalogue import FAMILIES, OFFICIAL, OfficialModel

OUT = Path(__file__).resolve().parents[1] / 'results' / 'measured' / 'models.csv'
NUM_CLASSES = 1000
COLUMNS = ('model', 'backbone', 'arch', 'image size', 'params (M)', 'FLOPs (G)')


def main() -> None:
    OneLineParser(description=__doc__).parse_args()
    prepare()
    with OUT.open('w', newline='') as file:
        csv.writer(file, lineterminator='\n').writerows([COLUMNS, *map(table_row, OFFICIAL.values())])


def table_row(model: OfficialModel) -> list[str]:
    """A model with a classifier of 1000 classes, at the resolution it was trained at."""
    from inline.engine.complexity import count

    with torch.device('meta'):
        backbone = model.build()
        head = nn.Linear(backbone.dims[-1], NUM_CLASSES)
        image = torch.zeros(1, 3, model.img_size, model.img_size)
        cost = count(backbone, lambda: backbone(image))[-1]
    parameters = cost.parameters + sum(p.numel() for p in head.parameters())
    multiply_adds = cost.multiply_adds + head.weight.numel()
    kind = FAMILIES[model.family].__name__
    return [
        model.name,
        f'`inline.{kind}`',
        f'`{model.arch}`',
        str(model.img_size),
        f'{parameters / 1e6:.2f}',
        f'{multiply_adds / 1e9:.1f}',
    ]


if __name__ == '__main__':
    with exit_on_user_error():
        main()
