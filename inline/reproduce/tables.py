"""The rows of each table: a config, the figures expected of it, and the weights it needs.

A row is named after its config: ``inline-pvt-small`` on ImageNet, ``inline-pvt-small_mask-rcnn_1x`` on COCO,
``inline-pvt-tiny_semantic-fpn_40k`` on ADE20K.
"""

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from inline.engine.config import load_config, walk_dicts
from inline.engine.runs import ROOT
from inline.errors import UserError
from inline.official.catalogue import OFFICIAL

SIZES = {'T': 'tiny', 'S': 'small', 'M': 'medium', 'B': 'base', 'L': 'large'}


@dataclass(frozen=True)
class Metric:
    """A figure of a table: the column in the data, what people call it, and where a test writes it."""

    column: str
    title: str
    key: str
    scale: float = 1.0


TOP1 = Metric('top1', 'top-1', 'accuracy/top1')
BOX_AP = Metric('box_ap', 'box AP', 'coco/bbox_mAP', 100)
MASK_AP = Metric('mask_ap', 'mask AP', 'coco/segm_mAP', 100)
MIOU = Metric('miou', 'mIoU', 'mIoU')
MACC = Metric('macc', 'mAcc', 'mAcc')


@dataclass(frozen=True)
class Table:
    """One table: the folders of its configs, its figures, and the file of the expected ones."""

    name: str
    folders: tuple[str, ...]
    metrics: tuple[Metric, ...]
    expected: Path

    @cached_property
    def rows(self) -> dict[str, 'Row']:
        figures = _read_expected(self)
        rows = {}
        for folder in self.folders:
            for path in sorted((ROOT / 'configs' / folder).glob('*.py')):
                name = row_name(path.stem)
                values, source = figures.get(name, ({}, ''))
                rows[name] = Row(self, name, path, values, source)
        return rows

    def row(self, name: str) -> 'Row':
        if name not in self.rows:
            raise UserError(f'table {self.name!r} has no row {name!r}: choose one of {", ".join(self.rows)}')
        return self.rows[name]


@dataclass(frozen=True)
class Row:
    """One row: expected values by the column of their metric, those known."""

    table: Table
    name: str
    config: Path
    expected: Mapping[str, float]
    source: str

    @property
    def released(self) -> str | None:
        """The authors' weights that can be tested as they are, by name."""
        return self.name if self.table.name == 'imagenet' and self.name in _released() else None

    @property
    def starts_from(self) -> str | None:
        """The weights that training starts from."""
        cfg = load_config(self.config)
        for _, part in walk_dicts(cfg.model):
            if part.get('type') == 'Pretrained' and part.get('checkpoint'):
                return str(part['checkpoint'])
        return str(cfg.load_from) if cfg.get('load_from') else None

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The figures of this row: a detector of boxes has none of masks, a classifier no mIoU."""
        scope = load_config(self.config).default_scope
        own = {'mmpretrain': (TOP1,), 'mmdet': (BOX_AP, MASK_AP), 'mmseg': (MIOU, MACC)}[scope]
        if 'retinanet' in self.name:
            own = (BOX_AP,)
        return tuple(metric for metric in self.table.metrics if metric in own)


PAPER = ROOT / 'results' / 'paper'
TABLES = {
    table.name: table
    for table in (
        Table(
            'imagenet',
            ('inline_deit', 'inline_pvt', 'inline_swin', 'inline_cswin'),
            (TOP1,),
            PAPER / 'imagenet.csv',
        ),
        Table(
            'coco',
            ('mask_rcnn', 'retinanet', 'cascade_mask_rcnn'),
            (BOX_AP, MASK_AP),
            PAPER / 'coco.csv',
        ),
        Table('ade20k', ('semantic_fpn', 'upernet'), (MIOU, MACC), PAPER / 'ade20k.csv'),
        # Not of the paper: small models on the embedded data, to try everything on.
        Table(
            'digits',
            ('digits_quick',),
            (TOP1, BOX_AP, MIOU),
            ROOT / 'results' / 'reference' / 'digits.csv',
        ),
    )
}


def find_table(name: str) -> Table:
    if name not in TABLES:
        raise UserError(f'unknown table {name!r}: choose one of {", ".join(TABLES)}')
    return TABLES[name]


def row_name(stem: str) -> str:
    """From the name of a config file without its suffix to the name of its row."""
    if '_in1k' in stem:
        # Only 384 is a second size of a model: others are the size it was designed for.
        return stem.split('_')[0] + ('-384' if stem.endswith('-384px') else '')
    head, *rest = stem.split('_')
    if rest == ['digits']:
        return head
    schedule = re.search(r'(?:^|[-_])(\dx|\d+k)(?=_|$)', stem.split('_', 2)[-1])
    return '_'.join([rest[0], head, *([schedule[1]] if schedule else [])])


@cache
def _released() -> set[str]:
    """The models whose weights the authors published."""
    with (PAPER / 'weights.csv').open(newline='') as file:
        links = {(line['model'], int(line['resolution'])) for line in csv.DictReader(file)}
    return {name for name, model in OFFICIAL.items() if (model.title, model.img_size) in links}


def _read_expected(table: Table) -> dict[str, tuple[dict[str, float], str]]:
    """By row, the figures that are known and where they were read."""
    with table.expected.open(newline='') as file:
        lines = list(csv.DictReader(file))
    figures = {}
    for line in lines:
        values = {m.column: float(line[m.column]) for m in table.metrics if line.get(m.column)}
        figures[_expected_name(line)] = (values, line['source'])
    return figures


def _expected_name(line: Mapping[str, str]) -> str:
    """The row that a line of results/paper/ is about."""
    if 'row' in line:
        return line['row']
    if 'model' in line:
        return _slug(line['model']) + ('-384' if line['resolution'] == '384' else '')
    head = line.get('detector') or line['segmentor']
    schedule = line.get('schedule') or line['iterations']
    head = {'SemanticFPN': 'semantic-fpn'}.get(head, head.lower().replace(' ', '-').replace('r-cnn', 'rcnn'))
    return f'{_slug(line["backbone"])}_{head}_{schedule}'


def _slug(model: str) -> str:
    """InLine-PVT-S → inline-pvt-small."""
    family, size = model.rsplit('-', 1)
    return f'{family.lower()}-{SIZES[size]}'
