"""Files generated from results/: Markdown tables of the README and docs, and OpenMMLab's metafiles."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from inline.benchmark import runtimes
from inline.checkpoints.official import OFFICIAL, find_link
from inline.reproduce import ablation_tables
from inline.reproduce.ablations import find_ablation
from inline.reproduce.measure import find_measured
from inline.reproduce.provenance import PROVENANCE, ROOT
from inline.reproduce.tables import MEASURED, PAPER, TABLES, Row, Table
from inline.utils.errors import UserError
from inline.utils.tables import format_seeds, read_csv

# Columns of results/measured/finetuning.csv, and its starting points.
FINETUNING_COLUMNS = ('dataset', 'start', 'seed', 'metric', 'value', 'minutes', *PROVENANCE)
FINETUNING_STARTS = ('scratch', 'digits', 'packaged')
# Columns of results/measured/linearize.csv.
LINEARIZE_COLUMNS = ('model', 'epochs', 'top1', *PROVENANCE)
CODE = 'https://github.com/LeapLabTHU/InLine'
COLLECTION = {
    'Metadata': {'Architecture': ['Injective linear attention', 'Local residual']},
    'Paper': {
        'URL': 'https://arxiv.org/abs/2412.06590',
        'Title': 'Bridging the Divide: Reconsidering Softmax and Linear Attention',
    },
    'README': 'README.md',
}
DATASETS = {
    'imagenet': ('ImageNet-1k', 'Image Classification'),
    'coco': ('COCO', 'Object Detection'),
    'ade20k': ('ADE20K', 'Semantic Segmentation'),
}


def table_source(source: str) -> list[list[str]]:
    """Return header and rows of the table that a page refers to as `source`.

    Args:
        source: A CSV file of the repository (provenance columns are not shown), the name of a table of
            tools/reproduce.py, ``models`` or ``transfer``, the short tables of the README, ``runtimes``,
            ``ablation/TABLE/DATASET`` or ``verdicts/TABLE/DATASET`` for an ablation, ``finetuning``, or
            ``gpu``, which has no rows until benchmarks/gpu.py has run.
    """
    kind, _, name = source.partition('/')
    if kind in ('ablation', 'verdicts'):
        return _ablation_rows(kind, *name.split('/'))
    if source == 'runtimes':
        return runtimes.table_rows(MEASURED / 'runtimes.csv')
    if source == 'models':
        return model_rows(MEASURED / 'models.csv')
    if source == 'transfer':
        return transfer_rows()
    if source == 'finetuning':
        return finetuning_rows(MEASURED / 'finetuning.csv')
    if source == 'gpu':
        return gpu_rows(MEASURED / 'gpu.csv')
    if source in TABLES:
        return table_rows(TABLES[source], MEASURED)
    path = ROOT / source
    if not path.is_file():
        raise UserError(f'a page names the table {source!r}, which is neither a CSV file nor a known table')
    lines = read_csv(path)
    shown = [column for column in lines[0] if column not in PROVENANCE]
    return [shown, *([line[column] for column in shown] for line in lines)]


def _ablation_rows(kind: str, table: str, dataset: str) -> list[list[str]]:
    ablation = find_ablation(table)
    summaries = ablation_tables.read_summaries(MEASURED, ablation, dataset)
    if kind == 'ablation':
        return ablation_tables.table_rows(summaries)
    return ablation_tables.verdict_rows(ablation, summaries)


def table_rows(table: Table, measured: Path) -> list[list[str]]:
    """Return header and rows with the expected and the measured value of every metric, empty if unknown."""
    header = ['row', 'config']
    for metric in table.metrics:
        header += [f'{metric.title}, expected', f'{metric.title}, measured here']
    lines = [[*header, 'source of expected values']]
    for row in table.rows.values():
        line = find_measured(row, measured) or {}
        cells = [row.name, f'[config](../{row.config.relative_to(ROOT)})']
        for metric in table.metrics:
            cells += [str(row.expected.get(metric.column, '')), line.get(metric.column, '')]
        lines.append([*cells, row.source])
    return lines


def model_rows(counted: Path) -> list[list[str]]:
    """Return header and rows: size and cost of the released models, and their published accuracy."""
    lines = [['model', 'image size', 'params (M)', 'FLOPs (G)', 'top-1, reported', 'with softmax, reported']]
    for model in read_csv(counted):
        row = TABLES['imagenet'].rows[model['model']]
        reported = [str(values.get('top1', '')) for values in (row.expected, row.expected_softmax)]
        lines.append([*(model[key] for key in ('model', *lines[0][1:4])), *reported])
    return lines


def transfer_rows() -> list[list[str]]:
    """Return header and rows: the InLine detectors and segmentors with a published result."""
    lines = [['model', 'metric', 'reported', 'with softmax, reported']]
    for table in (TABLES['coco'], TABLES['ade20k']):
        metric = table.metrics[0]
        for row in table.rows.values():
            reported, softmax = (str(v.get(metric.column, '')) for v in (row.expected, row.expected_softmax))
            if row.name.startswith('inline-') and reported:
                lines.append([row.name, metric.title, reported, softmax])
    return lines


def finetuning_rows(path: Path) -> list[list[str]]:
    """Return header and rows: every dataset, with mean and standard deviation over seeds for each start."""
    values: dict[tuple[str, str], dict[str, list[float]]] = {}
    for line in read_csv(path):
        row = values.setdefault((line['dataset'], line['metric']), {})
        row.setdefault(line['start'], []).append(float(line['value']))
    starts = [start for start in FINETUNING_STARTS if any(start in row for row in values.values())]
    return [
        ['dataset', 'metric', *starts],
        *([*key, *(format_seeds(row.get(start, [])) for start in starts)] for key, row in values.items()),
    ]


def gpu_rows(path: Path) -> list[list[str]]:
    """Return header and rows: the milliseconds of every implementation side by side; [] without rows."""
    lines = read_csv(path)
    if not lines:
        return []
    settings = list(lines[0])[: list(lines[0]).index('implementation')]
    names = list(dict.fromkeys(line['implementation'] for line in lines))
    times: dict[tuple[str, ...], dict[str, str]] = {}
    for line in lines:
        row = times.setdefault(tuple(line[column] for column in settings), {})
        row[line['implementation']] = f'{float(line["median ms"]):.3g}'
    header = [*settings, *(f'{name}, ms' for name in names)]
    return [header, *([*key, *(row.get(name, '') for name in names)] for key, row in times.items())]


def render_metafiles(measured: Path) -> dict[Path, str]:
    """Return the text of every ``metafile.yml`` and of ``model-index.yml`` by path.

    Published values are metadata of a model, with their source. ``Results`` contains only values measured
    with this code.
    """
    counted = {line['model']: line for line in read_csv(MEASURED / 'models.csv')}
    contents: dict[Path, dict[str, Any]] = {}
    for table in (TABLES[name] for name in DATASETS):
        for folder in table.folders:
            rows = [row for row in table.rows.values() if row.config.parent.name == folder]
            # A collection per file: mmpretrain's model hub reads single files.
            collection = f'InLine ({folder})'
            models = [_entry(row, collection, measured, counted.get(row.name)) for row in rows]
            contents[ROOT / 'configs' / folder / 'metafile.yml'] = {
                'Collections': [{'Name': collection, **COLLECTION}],
                'Models': models,
            }
    contents[ROOT / 'model-index.yml'] = {'Import': [str(path.relative_to(ROOT)) for path in contents]}
    return {path: yaml.safe_dump(content, sort_keys=False, width=1000) for path, content in contents.items()}


def _entry(row: Row, collection: str, measured: Path, counted: Mapping[str, str] | None) -> dict[str, Any]:
    dataset, task = DATASETS[row.table.name]
    metadata: dict[str, Any] = {'Training Data': dataset}
    if counted is not None:
        metadata['Parameters'] = round(float(counted['params (M)']) * 1e6)
        metadata['FLOPs'] = round(float(counted['FLOPs (G)']) * 1e9)
    if row.expected:
        published = {m.title: row.expected[m.column] for m in row.metrics if m.column in row.expected}
        metadata['Expected'] = {**published, 'Source': row.source}
    entry: dict[str, Any] = {
        'Name': row.config.stem,
        'In Collection': collection,
        'Config': str(row.config.relative_to(ROOT)),
        'Metadata': metadata,
    }
    line = find_measured(row, measured)
    if line is not None:
        metrics = {metric.title: float(line[metric.column]) for metric in row.metrics}
        entry['Results'] = [{'Dataset': dataset, 'Task': task, 'Metrics': metrics}]
    if row.released:
        link = find_link(OFFICIAL[row.released], PAPER / 'weights.csv')
        entry['Converted From'] = {'Weights': link, 'Code': CODE}
    return entry
