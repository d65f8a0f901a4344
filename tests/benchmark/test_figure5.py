"""The models, the table and the drawing of Figure 5."""

from pathlib import Path

import torch

from inline.benchmark.figure5 import (
    Point,
    accuracy_pairs,
    draw_figure5,
    resolution_pairs,
    skipped_sizes,
    window_pairs,
    write_points,
)
from inline.utils.tables import read_csv
from tests.conftest import ROOT

PUBLISHED = ROOT / 'results' / 'paper' / 'imagenet.csv'


def test_models_have_the_requested_window_size() -> None:
    with torch.device('meta'):
        pair = next(window_pairs([14]))
    assert list(pair.models) == ['InLine', 'softmax']
    for model in pair.models.values():
        # The map of the last stage is smaller than the window.
        windows = [stage.blocks[0].mixer.window_size for stage in model.stages]
        assert windows[:3] == [14, 14, 14]


def test_only_models_with_two_published_accuracies_are_compared(tmp_path: Path) -> None:
    table = tmp_path / 'table.csv'
    rows = 'InLine-PVT-T,224,78.2\nPVT-T,224,75.1\nInLine-PVT-S,224,82.0\nInLine-Swin-T,384,80\n'
    table.write_text(f'model,resolution,top1\n{rows}')
    with torch.device('meta'):
        pairs = list(accuracy_pairs(table))
    assert [pair.top1 for pair in pairs] == [{'InLine': 78.2, 'softmax': 75.1}]


def test_softmax_models_have_their_published_heads() -> None:
    with torch.device('meta'):
        pairs = list(accuracy_pairs(PUBLISHED))
        deit = next(resolution_pairs([224]))
    assert [pair.setting for pair in pairs] == [
        *('PVT-T', 'PVT-S', 'PVT-M', 'PVT-L', 'Swin-T', 'Swin-S', 'Swin-B', 'CSwin-T', 'CSwin-S', 'CSwin-B')
    ]
    heads = {
        (pair.setting, attention): [stage.blocks[0].mixer.num_heads for stage in model.stages]
        for pair in pairs
        for attention, model in pair.models.items()
    }
    assert heads['PVT-S', 'InLine'] == [2, 4, 10, 16]
    assert heads['PVT-S', 'softmax'] == [1, 2, 5, 8]
    assert heads['CSwin-B', 'InLine'] == heads['CSwin-B', 'softmax'] == [4, 8, 16, 32]
    assert [model.blocks[0].mixer.num_heads for model in deit.models.values()] == [6, 3]


def test_skipped_sizes_lie_between_two_points() -> None:
    tiny, small, base = (
        Point('a', 'Swin', 'softmax', f'Swin-{letter}', 1.0, 0.1, 80.0, '') for letter in 'TSB'
    )
    assert skipped_sizes(tiny, base) == ['Swin-S']
    assert skipped_sizes(tiny, small) == skipped_sizes(small, base) == []


def test_figure_is_written_as_csv_and_png(tmp_path: Path) -> None:
    points = [
        Point(panel, 'Swin', attention, setting, 10.0 * i, 0.1, 70.0 + i, '1 thread')
        for panel, settings in (('a', ('Swin-T', 'Swin-B')), ('b', ('7', '14')), ('c', ('224', '384')))
        for attention in ('InLine', 'softmax')
        for i, setting in enumerate(settings)
    ]
    write_points(points, tmp_path / 'figure5.csv')
    draw_figure5(points, tmp_path / 'figure5.png')
    rows = read_csv(tmp_path / 'figure5.csv')
    assert len(rows) == 12
    assert rows[0]['conditions'] == '1 thread'
    assert (tmp_path / 'figure5.png').read_bytes().startswith(b'\x89PNG')
