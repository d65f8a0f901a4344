"""The tables of the paper: config, expected values and required weights of each row.

Rows are named after their config: ``inline-pvt-small`` on ImageNet, ``inline-pvt-small_mask-rcnn_1x`` on
COCO, ``inline-pvt-tiny_semantic-fpn_40k`` on ADE20K.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from inline.checkpoints.official import OFFICIAL
from inline.engine.config import load_config, starting_checkpoints
from inline.utils.arguments import check_choice
from inline.utils.errors import UserError
from inline.utils.resources import MEASURED_RESULTS, PAPER_RESULTS, ROOT
from inline.utils.tables import read_csv

PAPER, MEASURED = PAPER_RESULTS, MEASURED_RESULTS
SIZES = {'T': 'tiny', 'S': 'small', 'M': 'medium', 'B': 'base', 'L': 'large'}


@dataclass(frozen=True)
class Metric:
    """A metric of a table.

    Args:
        column: Column in the CSV files.
        title: Name in printed tables.
        key: Key in the metrics that tools/test.py writes.
        scale: Factor from the logged value to the value in the table.
    """

    column: str
    title: str
    key: str
    scale: float = 1.0


TOP1 = Metric('top1', 'top-1', 'accuracy/top1')
BOX_AP = Metric('box_ap', 'box AP', 'coco/bbox_mAP', 100)
MASK_AP = Metric('mask_ap', 'mask AP', 'coco/segm_mAP', 100)
MIOU = Metric('miou', 'mIoU', 'mIoU')
MACC = Metric('macc', 'mAcc', 'mAcc')
METRICS = {
    'classifier': (TOP1,),
    'mask-rcnn': (BOX_AP, MASK_AP),
    'cascade-mask-rcnn': (BOX_AP, MASK_AP),
    'retinanet': (BOX_AP,),
    'semantic-fpn': (MIOU, MACC),
    'upernet': (MIOU, MACC),
}


@dataclass(frozen=True)
class Expected:
    """Published values by metric column, and their source. Unknown values are omitted."""

    values: Mapping[str, float]
    source: str


@dataclass(frozen=True)
class Table:
    """A table.

    Args:
        name: Name on the command line, and of the CSV files of expected and measured values.
        folders: Folders below configs/.
        metrics: Metrics of the table; see also :attr:`Row.metrics`.
        expected_dir: Folder of the CSV file of expected values.
    """

    name: str
    folders: tuple[str, ...]
    metrics: tuple[Metric, ...]
    expected_dir: Path = PAPER

    @cached_property
    def expected(self) -> dict[str, Expected]:
        """Expected values by :func:`expected_key`, including models without a config here."""
        expected = {}
        for line in read_csv(self.expected_dir / f'{self.name}.csv'):
            values = {m.column: float(line[m.column]) for m in self.metrics if line.get(m.column)}
            expected[expected_key(line)] = Expected(values, line['source'])
        return expected

    @cached_property
    def rows(self) -> dict[str, 'Row']:
        paths = [path for folder in self.folders for path in sorted((ROOT / 'configs' / folder).glob('*.py'))]
        return {row_name(path.stem): Row(self, row_name(path.stem), path) for path in paths}

    def row(self, name: str) -> 'Row':
        if name not in self.rows:
            raise UserError(f'table {self.name!r} has no row {name!r}: choose one of {", ".join(self.rows)}')
        return self.rows[name]


@dataclass(frozen=True)
class Row:
    """One row of a table."""

    table: Table
    name: str
    config: Path

    @property
    def expected(self) -> Mapping[str, float]:
        """Expected values by metric column; unknown ones are omitted."""
        return self._find_expected(self.name).values

    @property
    def source(self) -> str:
        return self._find_expected(self.name).source

    @property
    def expected_softmax(self) -> Mapping[str, float]:
        """Expected values of the same model with softmax attention, empty for a baseline."""
        name = self.name.removeprefix('inline-')
        return {} if name == self.name else self._find_expected(name).values

    @property
    def released(self) -> str | None:
        """Name of the authors' trained weights, if they published any."""
        return self.name if self.table.name == 'imagenet' and self.name in _released() else None

    @property
    def starts_from(self) -> str | None:
        """The checkpoint that training starts from."""
        return next((path for _, path in starting_checkpoints(load_config(self.config))), None)

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Metrics that apply to the model; for example, RetinaNet has no mask AP."""
        head = self.name.split('_')[1] if '_' in self.name else 'classifier'
        return tuple(metric for metric in self.table.metrics if metric in METRICS[head])

    def _find_expected(self, name: str) -> Expected:
        key = name
        if self.table.name == 'imagenet':
            # Accuracies depend on the resolution.
            resolution = re.search(r'_in1k-(\d+)px$', self.config.stem)
            key = f'{name.removesuffix("-384")}@{resolution[1] if resolution else 224}'
        return self.table.expected.get(key, Expected({}, ''))


TABLES = {
    table.name: table
    for table in (
        Table('imagenet', ('inline_deit', 'inline_pvt', 'inline_swin', 'inline_cswin'), (TOP1,)),
        Table('coco', ('mask_rcnn', 'retinanet', 'cascade_mask_rcnn'), (BOX_AP, MASK_AP)),
        Table('ade20k', ('semantic_fpn', 'upernet'), (MIOU, MACC)),
        # Not from the paper: small models on generated data, to try the tool without GPUs.
        Table('digits', ('digits_quick',), (TOP1, BOX_AP, MIOU), ROOT / 'results' / 'reference'),
    )
}


def find_table(name: str) -> Table:
    check_choice('unknown table', name, TABLES)
    return TABLES[name]


def row_name(stem: str) -> str:
    """Return the row name for a config file name without its suffix."""
    if '_in1k' in stem:
        # Some models have a second config at 384 pixels; all others have one resolution only.
        return stem.split('_')[0] + ('-384' if stem.endswith('-384px') else '')
    head, *rest = stem.split('_')
    if rest == ['digits']:
        return head
    schedule = re.search(r'(?:^|[-_])(\dx|\d+k)(?=_|$)', stem.split('_', 2)[-1])
    return '_'.join([rest[0], head, *([schedule[1]] if schedule else [])])


def expected_key(line: Mapping[str, str]) -> str:
    """Return the key of a line of expected values: a row name, on ImageNet with ``@resolution``."""
    if 'row' in line:
        return line['row']
    if 'model' in line:
        return f'{_slug(line["model"])}@{line["resolution"]}'
    head = line.get('detector') or line['segmentor']
    schedule = line.get('schedule') or line['iterations']
    head = {'SemanticFPN': 'semantic-fpn'}.get(head, head.lower().replace(' ', '-').replace('r-cnn', 'rcnn'))
    return f'{_slug(line["backbone"])}_{head}_{schedule}'


@cache
def _released() -> set[str]:
    """Return the names of the models whose weights the authors published."""
    links = {(line['model'], int(line['resolution'])) for line in read_csv(PAPER / 'weights.csv')}
    return {name for name, model in OFFICIAL.items() if (model.title, model.img_size) in links}


def _slug(model: str) -> str:
    """Convert a name of the paper: InLine-PVT-S → inline-pvt-small."""
    family, size = model.rsplit('-', 1)
    return f'{family.lower()}-{SIZES[size]}'
