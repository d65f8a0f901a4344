"""OpenMMLab's ``metafile.yml`` of each config folder, and the ``model-index.yml`` that names them all.

Figures of the paper stand in a model's metadata with their source; ``Results`` has what was measured with
this code, and nothing else.
"""

import csv
from pathlib import Path
from typing import Any

import yaml

from inline.engine.runs import ROOT
from inline.official.catalogue import OFFICIAL
from inline.official.download import find_link
from inline.reproduce.measured import find_measured
from inline.reproduce.tables import PAPER, TABLES, Row

CODE = 'https://github.com/LeapLabTHU/InLine'
COLLECTION = {
    'Name': 'InLine',
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


def render_all(measured: Path) -> dict[Path, str]:
    """The text of every file, by its path in the repository."""
    models = _counted_models()
    files: dict[Path, str] = {}
    for table in TABLES.values():
        if table.name not in DATASETS:
            continue
        for folder in table.folders:
            entries = [
                _entry(row, measured, models)
                for row in table.rows.values()
                if row.config.parent.name == folder
            ]
            content: dict[str, Any] = {'Models': entries}
            if not files:
                content = {'Collections': [COLLECTION], **content}
            files[ROOT / 'configs' / folder / 'metafile.yml'] = _dump(content)
    index = {'Import': [str(path.relative_to(ROOT)) for path in files]}
    return {**files, ROOT / 'model-index.yml': _dump(index)}


def _entry(row: Row, measured: Path, models: dict[str, dict[str, str]]) -> dict[str, Any]:
    dataset, task = DATASETS[row.table.name]
    metadata: dict[str, Any] = {'Training Data': dataset}
    if row.name in models:
        counted = models[row.name]
        metadata['Parameters'] = round(float(counted['params (M)']) * 1e6)
        metadata['FLOPs'] = round(float(counted['FLOPs (G)']) * 1e9)
    if row.expected:
        metadata['Expected'] = {
            **{
                metric.title: row.expected[metric.column]
                for metric in row.metrics
                if metric.column in row.expected
            },
            'Source': row.source,
        }
    entry: dict[str, Any] = {
        'Name': row.config.stem,
        'In Collection': COLLECTION['Name'],
        'Config': str(row.config.relative_to(ROOT)),
        'Metadata': metadata,
    }
    line = find_measured(row, measured)
    if line is not None:
        figures = {metric.title: float(line[metric.column]) for metric in row.metrics}
        entry['Results'] = [{'Dataset': dataset, 'Task': task, 'Metrics': figures}]
    if row.released:
        link = find_link(OFFICIAL[row.released], PAPER / 'weights.csv')
        entry['Converted From'] = {'Weights': link, 'Code': CODE}
    return entry


def _counted_models() -> dict[str, dict[str, str]]:
    with (ROOT / 'results' / 'measured' / 'models.csv').open(newline='') as file:
        return {line['model']: line for line in csv.DictReader(file)}


def _dump(content: Any) -> str:
    return yaml.safe_dump(content, sort_keys=False, width=1000)
