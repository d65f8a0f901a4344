"""Timing in turn, peak memory, and Figure 5 from points that are written down."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from inline.measure import CPU, Timing, describe_machine, interleave, peak_memory
from inline.measure.figure5 import (
    Point,
    accuracy_pairs,
    draw_figure5,
    resolution_pairs,
    sizes_between,
    window_pairs,
    write_points,
)
from inline.measure.models import Settings, measure
from tests.conftest import ROOT
from tests.models.families import build

PUBLISHED = ROOT / 'results' / 'paper' / 'imagenet.csv'


def test_runs_are_made_in_turn_and_as_often() -> None:
    made: list[str] = []
    runs = {name: lambda name=name: made.append(name) for name in 'abc'}
    timings = interleave(runs, repetitions=6, device=CPU, warm_up=1)
    rounds = [made[i : i + 3] for i in range(0, len(made), 3)]
    assert len(rounds) == 7
    assert all(sorted(one) == ['a', 'b', 'c'] for one in rounds)
    # Not always in one order.
    assert len({tuple(one) for one in rounds[1:]}) > 1
    assert list(timings) == ['a', 'b', 'c']
    assert all(len(timing.seconds) == 6 for timing in timings.values())


def test_speedups_are_of_pairs_so_that_a_busy_moment_does_not_count() -> None:
    # In the last two repetitions something else slowed the machine down fourfold.
    ours, theirs = Timing((1.0, 1.0, 1.0, 4.0, 4.0)), Timing((2.0, 2.0, 2.0, 8.0, 8.0))
    assert ours.speedup(theirs) == 2
    assert theirs.speedup(ours) == 0.5
    assert theirs.median == 2
    assert Timing((1.0, 2.0, 3.0)).spread == pytest.approx(0.5)
    assert Timing((1.0,)).spread == 0


def test_peak_memory_is_what_is_held_at_one_time() -> None:
    def run() -> None:
        first = torch.ones(1000, 1000)
        second = first + 1
        del first
        second.add_(1)
        torch.zeros(500, 1000)

    # Two matrices of four megabytes; the last, smaller one comes when one of them is gone.
    assert peak_memory(run, CPU) == pytest.approx(8e6, rel=0.01)


def test_a_model_is_timed_on_one_image_and_on_a_batch() -> None:
    speed = measure({'model': (build('InLineDeiT'), (64, 96))}, Settings(batch=2, repetitions=2))['model']
    assert len(speed.latency.seconds) == 2
    assert speed.images_per_second > 0
    assert speed.peak_bytes > 0


def test_the_machine_is_described_with_its_torch() -> None:
    assert torch.__version__ in describe_machine(CPU)


def test_windows_are_as_large_as_they_are_called() -> None:
    inline, softmax = next(window_pairs([14]))
    assert (inline.attention, softmax.attention) == ('InLine', 'softmax')
    for subject in (inline, softmax):
        # Maps of 14 and 7 tokens have no room for larger ones.
        windows = [stage.blocks[0].mixer.window_size for stage in subject.model.stages]
        assert windows[:3] == [14, 14, 14]


def test_only_models_with_two_published_accuracies_are_compared(tmp_path: Path) -> None:
    table = tmp_path / 'table.csv'
    rows = 'InLine-PVT-T,224,78.2\nPVT-T,224,75.1\nInLine-PVT-S,224,82.0\nInLine-Swin-T,384,80\n'
    table.write_text(f'model,resolution,top1\n{rows}')
    pairs = list(accuracy_pairs(table))
    assert [[(one.attention, one.top1) for one in pair] for pair in pairs] == [
        [('InLine', 78.2), ('softmax', 75.1)]
    ]


def test_softmax_has_the_heads_that_it_was_published_with() -> None:
    with torch.device('meta'):
        pairs = list(accuracy_pairs(PUBLISHED))
    # Of Swin-S there is no published accuracy in the table.
    assert [pair[0].setting for pair in pairs] == [
        *('PVT-T', 'PVT-S', 'PVT-M', 'PVT-L', 'Swin-T', 'Swin-B', 'CSwin-T', 'CSwin-S', 'CSwin-B')
    ]
    heads = {
        (pair[0].setting, subject.attention): [
            stage.blocks[0].mixer.num_heads for stage in subject.model.stages
        ]
        for pair in pairs
        for subject in pair
    }
    assert heads['PVT-S', 'InLine'] == [2, 4, 10, 16]
    assert heads['PVT-S', 'softmax'] == [1, 2, 5, 8]
    assert heads['CSwin-B', 'InLine'] == heads['CSwin-B', 'softmax'] == [4, 8, 16, 32]
    inline, softmax = next(resolution_pairs([224]))
    assert [one.model.blocks[0].mixer.num_heads for one in (inline, softmax)] == [6, 3]


def test_a_line_knows_the_sizes_that_it_leaves_out() -> None:
    tiny, small, base = (
        Point('a', 'Swin', 'softmax', f'Swin-{letter}', 1.0, 0.1, 80.0, '') for letter in 'TSB'
    )
    assert sizes_between(tiny, base) == ['Swin-S']
    assert sizes_between(tiny, small) == sizes_between(small, base) == []


def test_figure_5_is_a_table_and_a_picture(tmp_path: Path) -> None:
    points = [
        Point(panel, 'Swin', attention, setting, 10.0 * i, 0.1, 70.0 + i, '1 thread')
        for panel, settings in (('a', ('Swin-T', 'Swin-B')), ('b', ('7', '14')), ('c', ('224', '384')))
        for attention in ('InLine', 'softmax')
        for i, setting in enumerate(settings)
    ]
    write_points(points, tmp_path / 'figure5.csv')
    draw_figure5(points, tmp_path / 'figure5.png')
    with (tmp_path / 'figure5.csv').open(newline='') as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 12
    assert rows[0]['conditions'] == '1 thread'
    assert (tmp_path / 'figure5.png').read_bytes().startswith(b'\x89PNG')


def test_a_freed_block_stays_with_the_process() -> None:
    """Page faults of a block of 16 MB that is taken and freed again and again: in the end none."""
    code = (
        'import resource, torch\n'
        'from inline.measure import prepare_for_timing\n'
        'prepare_for_timing(1)\n'
        'def take(): torch.ones(4 * 2**20)\n'
        'for _ in range(40): take()\n'
        'before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n'
        'for _ in range(20): take()\n'
        'print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)\n'
    )
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    # 4,096 pages of 4 kB each time, if they were handed back.
    assert int(done.stdout) < 4096


def test_asking_for_memory_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv('KINETO_LOG_LEVEL', raising=False)
    code = (
        'import torch\n'
        'from inline.measure import CPU, peak_memory\n'
        'print(peak_memory(lambda: torch.ones(1000), CPU))\n'
    )
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ('4000\n', '')
