"""The benchmark of torch.compile, with a small model and without code generation."""

import csv
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.fx.experimental._config as shape_config

from benchmarks import compile as benchmark
from inline.models import InLinePVT
from inline.utils.errors import UserError

ARCH = {'embed_dims': (8,), 'depths': (1,), 'num_heads': (2,), 'mlp_ratios': (2,)}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    build = partial(InLinePVT, ARCH, img_size=64, out_indices=(0,))
    monkeypatch.setattr(benchmark, 'MODELS', {'PVT-T': build})
    monkeypatch.setattr(benchmark, 'SIZE', 64)
    monkeypatch.setattr(benchmark, 'NEW_SHAPES', ((3, 96, 70),))
    monkeypatch.setattr(torch, 'compile', partial(torch.compile, backend='aot_eager'))
    torch.compiler.reset()
    with shape_config.patch(use_duck_shape=True):
        yield


@pytest.mark.slow
@pytest.mark.usefixtures('small')
def test_a_row_has_time_agreement_and_recompilations() -> None:
    row = benchmark.measure('PVT-T', 'dynamic', 'forward', repetitions=2, threads=1)
    assert 0 < row.cpu_seconds < row.limit == 300
    assert row.error <= 1e-4
    assert row.recompilations == 0
    assert row.speedup > 0


@pytest.mark.slow
@pytest.mark.usefixtures('small')
def test_a_wrong_gradient_ends_the_benchmark() -> None:
    torch.manual_seed(0)
    model, other = benchmark.MODELS['PVT-T'](), benchmark.MODELS['PVT-T']()
    images = torch.randn(1, 3, 32, 32)
    assert benchmark.compare(model, model, images, backward=True) == 0
    with pytest.raises(UserError, match=r'output 0 differs by \S+ at \(1, 3, 32, 32\)'):
        benchmark.compare(other, model, images, backward=False)


def test_rows_of_a_file_are_replaced_in_order(tmp_path: Path) -> None:
    path = tmp_path / 'compile.csv'
    line = dict.fromkeys((field.name for field in benchmark.dataclasses.fields(benchmark.Measurement)), '1')
    later = ('PVT-T', 'fixed', 'forward')
    first = ('DeiT-T', 'dynamic', 'forward')
    rows = {key: {**line, 'model': key[0], 'shapes': key[1], 'direction': key[2]} for key in (later, first)}
    benchmark.write_rows(path, rows)
    assert benchmark.read_rows(path) == rows
    with path.open(newline='') as file:
        assert [row['model'] for row in csv.DictReader(file)] == ['DeiT-T', 'PVT-T']
