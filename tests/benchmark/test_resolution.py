"""The sweep over image sizes: limits, extrapolation, one process per point, the table and the figure."""

from pathlib import Path

import pytest
import torch

from inline.benchmark.resolution import (
    EXTRAPOLATED,
    GPU_MEMORY,
    MODELS,
    Limits,
    Point,
    extrapolate_memory,
    measure_in_process,
    measure_resolutions,
    read_points,
    write_points,
)
from inline.benchmark.resolution_figure import draw_resolution
from inline.benchmark.timing import BenchmarkSettings
from inline.models.mixers import SoftmaxMixer
from inline.utils.errors import UserError
from tests.conftest import ROOT, run_tool

LIMITS = Limits(60.0, 20 * 1024)
BASE = 300.0


def fake_measure(name: str, size: int, limits: Limits) -> Point:  # noqa: ARG001 (as measured)
    """Explicit weights grow with the number of tokens squared, all others linearly."""
    tokens = (size / 4) ** 2
    mb = tokens**2 * 1e-5 if 'explicit' in name else tokens * 0.01
    seconds = tokens**2 * 1e-7 if name == 'fused softmax' else tokens * 1e-5
    return Point(name, size, seconds, 0.0, 3, BASE, BASE + mb)


def test_an_attention_ends_at_its_limits_and_is_extrapolated() -> None:
    points = list(measure_resolutions([512, 224, 1024, 2048, 384], LIMITS, fake_measure, 'here'))
    measured = [point for point in points if point.is_measured]
    assert [p.size for p in measured if p.attention == 'InLine'] == [224, 384, 512, 1024, 2048]
    # Points of one size are neighbours.
    assert [p.size for p in measured] == sorted(p.size for p in measured)
    ends = {p.attention: (p.size, p.note) for p in points if p.note.startswith('not run')}
    # 65,536 tokens: 1e-7 · 65536² seconds, and 300 + 1e-5 · 65536² MB.
    assert ends == {
        'fused softmax': (1024, 'not run: about 429 s, limit 60 s'),
        'softmax with explicit weights': (1024, 'not run: about 42 GB, limit 20 GB'),
    }
    crossings = {p.attention: p for p in points if p.note == EXTRAPOLATED}
    explicit = crossings['softmax with explicit weights']
    # Solves 300 + 1e-5 (size / 4)⁴ = 24 · 1024.
    assert explicit.size == round(4 * ((GPU_MEMORY - BASE) / 1e-5) ** 0.25)
    assert explicit.peak_mb == GPU_MEMORY
    assert not explicit.is_measured
    assert {p.conditions for p in points} == {'here'}


def test_memory_is_not_extrapolated_without_growth_or_far_away() -> None:
    first = Point('InLine', 224, 1.0, base_mb=BASE, peak_mb=400.0)
    assert extrapolate_memory([first], GPU_MEMORY) is None
    assert extrapolate_memory([first, Point('InLine', 384, 1.0, base_mb=BASE, peak_mb=400.0)], 500.0) is None
    second = Point('InLine', 448, 1.0, base_mb=BASE, peak_mb=700.0)
    # 100 MB at 224 and 400 MB at 448: 1600 MB at 896.
    assert extrapolate_memory([first, second], BASE + 1600) == pytest.approx(896)
    assert extrapolate_memory([first, second], BASE + 4**2 * 400 + 1) is None


def test_attentions_are_those_of_the_names() -> None:
    with torch.device('meta'):
        models = {name: build() for name, build in MODELS.items()}
    mixers = {
        name: [block.mixer for stage in m.stages for block in stage.blocks] for name, m in models.items()
    }
    assert {name: {m.window_size for m in group} for name, group in mixers.items()} == {
        'InLine': {None},
        'MLLA': {None},
        'softmax in windows of 7': {7},
        'fused softmax': {None},
        'softmax with explicit weights': {None},
    }
    fused, explicit = (mixers[name][0] for name in list(MODELS)[3:])
    assert isinstance(explicit, SoftmaxMixer)
    torch.manual_seed(0)
    fused, explicit = fused.to_empty(device='cpu'), explicit.to_empty(device='cpu')
    for parameter in fused.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    explicit.load_state_dict(fused.state_dict())
    x = torch.randn(1, 12, 96)
    torch.testing.assert_close(explicit(x, (3, 4)), fused(x, (3, 4)))


def test_a_point_is_measured_in_its_own_process() -> None:
    measure = measure_in_process(BenchmarkSettings(repetitions=1), threads=1)
    ours = measure('InLine', 64, LIMITS)
    assert ours.repetitions == 1
    assert ours.seconds is not None
    assert ours.seconds > 0
    assert ours.base_mb is not None
    assert ours.peak_mb is not None
    # Python, torch and the weights, but not what this process holds.
    assert 150 < ours.base_mb <= ours.peak_mb < 900
    # The weights of Swin-T alone are 110 MB.
    assert measure('InLine', 64, Limits(60.0, 100.0)).note == 'out of memory, limit 0 GB'


def test_table_and_figure(tmp_path: Path) -> None:
    points = list(measure_resolutions([224, 384, 512, 1024], LIMITS, fake_measure, '1 thread'))
    write_points(points, tmp_path / 'resolution.csv')
    assert read_points(tmp_path / 'resolution.csv') == points
    draw_resolution(points, tmp_path / 'resolution.png')
    assert (tmp_path / 'resolution.png').read_bytes().startswith(b'\x89PNG')
    with pytest.raises(UserError, match='has no points by resolution'):
        read_points(ROOT / 'results' / 'measured' / 'figure5.csv')


@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        (['--sizes', '224'], '--sizes needs --runtimes or --resolution FOLDER'),
        (['--resolution', 'x', '--sizes', '16'], '--sizes 16: each side must be from 32 to 16384'),
        (['--resolution', 'x', '--time-limit', '0'], '--time-limit 0.0: must be above 0'),
        (
            ['--resolution', 'x', '--figure5', 'y'],
            '--figure5, --resolution and --runtimes: give only one of them',
        ),
        (['--redraw', 'x.csv'], '--redraw needs --figure5 FOLDER or --resolution FOLDER'),
    ],
)
def test_wrong_flags_are_reported_in_one_line(flags: list[str], message: str) -> None:
    run = run_tool('tools/benchmark.py', *flags)
    assert run.returncode == 2
    assert message in run.stderr.strip().splitlines()[-1]
