"""benchmarks/exported_accuracy.py: a row per file and metric, written next to those of other configs."""

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from mmengine.config import Config

from benchmarks import exported_accuracy
from inline.apis.export.run import ExportOptions
from inline.utils.tables import read_csv
from tests.conftest import ROOT

ACCURACY = {
    'inline-pvt-nano_digits': {'accuracy/top1': 90.0},
    'mask-rcnn_inline-pvt-micro_digits': {
        'coco/bbox_mAP': 0.5,
        'coco/segm_mAP': 0.25,
        'coco/bbox_mAP_50': 0.75,
    },
}


@pytest.fixture
def fake_export(monkeypatch: pytest.MonkeyPatch) -> None:
    def export(cfg: Config, options: ExportOptions) -> Iterator[str]:
        assert options.evaluate
        assert options.out is not None
        before = ACCURACY[options.name]
        after = {name: value / 2 for name, value in before.items()} if options.int8 else before
        options.out.write_bytes(b'x' * 2_000_000)
        stored: dict[str, Any] = {'images': 'all', 'float32': before, options.label: after}
        Path(f'{options.out}.json').write_text(json.dumps({'accuracy': stored}))
        yield f'{cfg.default_scope} exported'

    monkeypatch.setattr(exported_accuracy, 'export', export)


@pytest.mark.usefixtures('fake_export')
def test_rows_of_a_config_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint, out = tmp_path / 'weights.pth', tmp_path / 'accuracy.csv'
    checkpoint.write_bytes(b'weights')
    for name, file in [*product(ACCURACY, exported_accuracy.FILES)] * 2:
        config = next((ROOT / 'configs').rglob(f'{name}.py'))
        monkeypatch.setattr(
            'sys.argv', ['x', str(config), str(checkpoint), '--output', str(out), '--files', file]
        )
        exported_accuracy.main()
    rows = read_csv(out)
    assert tuple(rows[0]) == exported_accuracy.COLUMNS
    shown = [[row[name] for name in exported_accuracy.COLUMNS[:7]] for row in rows]
    classifier = next(iter(ACCURACY))
    assert shown[:3] == [
        [classifier, 'openvino, bf16', 'top-1', '90.00', '90.00', 'all', '2.00'],
        [classifier, 'openvino, int8', 'top-1', '90.00', '45.00', 'all', '2.00'],
        [classifier, 'onnx, int8', 'top-1', '90.00', '45.00', 'all', '2.00'],
    ]
    assert [row[2:5] for row in shown[3:5]] == [['box AP', '50.00', '50.00'], ['mask AP', '25.00', '25.00']]
    assert len(shown) == 3 + 2 * 3
    assert rows[0]['weights'].startswith('weights.pth ')
    assert rows[0]['commit']
