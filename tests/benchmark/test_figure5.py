"""The models, the table and the drawing of Figure 5."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from inline.benchmark.figure5 import (
    Point,
    accuracy_pairs,
    draw_figure5,
    read_paper_points,
    read_points,
    relative_times,
    resolution_pairs,
    skipped_sizes,
    window_pairs,
    write_points,
)
from inline.utils.errors import UserError
from inline.utils.tables import read_csv
from tests.conftest import ROOT

PUBLISHED = ROOT / 'results' / 'paper' / 'imagenet.csv'
PAPER_FIGURE = ROOT / 'results' / 'paper' / 'figure5.csv'


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


def make_point(panel: str, attention: str, setting: str, milliseconds: float) -> Point:
    return Point(panel, 'Swin', attention, setting, milliseconds, 0.1, None, '')


def test_times_are_relative_to_softmax_in_the_smallest_common_setting() -> None:
    ours = [make_point('b', 'InLine', '7', 20.0), make_point('b', 'softmax', '4', 5.0)]
    ours += [make_point('b', 'softmax', '7', 10.0), make_point('b', 'softmax', '14', 40.0)]
    theirs = [make_point('b', 'softmax', '7', 2.0), make_point('b', 'InLine', '14', 3.0)]
    here, paper, reference = relative_times(ours, theirs)
    assert reference == '7'
    assert [point.milliseconds for point in here] == [2.0, 0.5, 1.0, 4.0]
    assert [point.milliseconds for point in paper] == [1.0, 1.5]
    with pytest.raises(UserError, match='no setting of softmax in common'):
        relative_times(ours[:1], theirs)


def test_points_of_the_paper_have_the_names_of_ours() -> None:
    """The speed-ups that the authors print follow from the points read off their figure, to 3 %."""
    points = read_paper_points(PAPER_FIGURE)
    times = {(point.panel, point.attention, point.setting): point.milliseconds for point in points}
    assert times['a', 'InLine', 'Swin-S'] == 1.64
    for panel, setting, speedup in (
        ('b', '28', 1.9),
        ('b', '56', 3.7),
        ('c', '640', 2.4),
        ('c', '1024', 4.8),
    ):
        ratio = times[panel, 'softmax', setting] / times[panel, 'InLine', setting]
        assert ratio == pytest.approx(speedup, rel=0.03)
    accuracies = {(point.family, point.attention, point.setting): point.top1 for point in points}
    assert accuracies['Swin', 'softmax', 'Swin-S'] == 83.0


def test_the_measured_file_can_be_redrawn(tmp_path: Path) -> None:
    points = read_points(ROOT / 'results' / 'measured' / 'figure5.csv')
    write_points(points, tmp_path / 'figure5.csv')
    assert read_points(tmp_path / 'figure5.csv') == points
    draw_figure5(points, read_paper_points(PAPER_FIGURE), tmp_path / 'figure5.png')
    assert (tmp_path / 'figure5.png').read_bytes().startswith(b'\x89PNG')
    with pytest.raises(UserError, match='has no points of Figure 5'):
        read_points(PUBLISHED)


def test_figure_is_written_as_csv_and_png(tmp_path: Path) -> None:
    points = [
        Point(panel, 'Swin', attention, setting, 10.0 * (i + 1), 0.1, 70.0 + i, '1 thread')
        for panel, settings in (('a', ('Swin-T', 'Swin-B')), ('b', ('7', '14')), ('c', ('224', '384')))
        for attention in ('InLine', 'softmax')
        for i, setting in enumerate(settings)
    ]
    write_points(points, tmp_path / 'figure5.csv')
    paper = [replace(point, conditions='read off') for point in points]
    draw_figure5(points, paper, tmp_path / 'figure5.png')
    rows = read_csv(tmp_path / 'figure5.csv')
    assert len(rows) == 12
    assert rows[0]['conditions'] == '1 thread'
    assert (tmp_path / 'figure5.png').read_bytes().startswith(b'\x89PNG')
