"""torch.compile of the backbones: CPU time to compile, agreement with eager mode, recompilations, speed.

python -m benchmarks.compile --output results/measured/compile.csv

Every row is measured in a new process with an empty cache of inductor and one thread. The CPU time includes
the C++ compiler and does not depend on other load. Times of steps are CPU times too.
"""

import csv
import dataclasses
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from inline.benchmark import CPU, describe_machine, interleave, prepare_for_timing
from inline.benchmark.timing import interquartile_range
from inline.models import InLineCSwin, InLineDeiT, InLinePVT, InLineSwin
from inline.utils.arguments import check_choice
from inline.utils.atomic import atomic_file
from inline.utils.environment import describe_commit
from inline.utils.errors import OneLineParser, UserError, exit_on_user_error

MODELS: dict[str, Callable[[], nn.Module]] = {
    'DeiT-T': partial(InLineDeiT, 'tiny'),
    'PVT-T': partial(InLinePVT, 'tiny'),
    'Swin-T': partial(InLineSwin, 'tiny'),
    'CSwin-T': partial(InLineCSwin, 'tiny'),
}
# Permitted CPU seconds to compile.
LIMITS = {'fixed': 120, 'dynamic': 300}
PASSES = ('forward', 'forward+backward')
SIZE, BATCH = 224, 2
TOLERANCE = 1e-4
# Further shapes in dynamic mode: another size, another batch, both, and a size that is no multiple of 32.
NEW_SHAPES = ((2, 256, 256), (3, 224, 224), (4, 192, 320), (2, 250, 198))


@dataclass(frozen=True)
class Measurement:
    """A row of the table.

    Args:
        model: A key of MODELS.
        shapes: 'fixed' or 'dynamic'.
        direction: One of PASSES, which is compiled and timed.
        cpu_seconds: CPU time of the first step, which compiles.
        limit: Permitted CPU time.
        error: Largest relative error of an output or a gradient, against eager mode.
        recompilations: Compilations for the new shapes; empty if shapes are fixed.
        speedup: How many times faster than eager mode, median.
        spread: Interquartile range of the speedup.
        machine: Hardware and version of torch.
        commit, date: Version of the code, and day of the measurement.
    """

    model: str
    shapes: str
    direction: str
    cpu_seconds: float
    limit: int
    error: float
    recompilations: int | str
    speedup: float
    spread: float
    machine: str
    commit: str
    date: str


def cpu_seconds() -> float:
    """Return the CPU time of this process and of the processes that it started and that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def step(model: nn.Module, source: nn.Module, images: Tensor, backward: bool) -> dict[str, Tensor]:
    """Run a forward pass, and a backward pass; return outputs and gradients of ``source`` by name.

    Args:
        model: ``source``, or ``source`` compiled.
        source: The module with the parameters.
        images: (B, 3, H, W).
        backward: Whether to compute gradients.
    """
    if not backward:
        with torch.no_grad():
            return {f'output {i}': out for i, out in enumerate(model(images))}
    source.zero_grad(set_to_none=True)
    outs = model(images)
    # Not the mean square, which is almost constant after a layer norm: gradients would be rounding errors.
    sum(out.sin().mean() for out in outs).backward()
    results = {f'output {i}': out.detach() for i, out in enumerate(outs)}
    for name, parameter in source.named_parameters():
        if parameter.grad is not None:
            results[f'gradient of {name}'] = parameter.grad
    return results


def compare(model: nn.Module, source: nn.Module, images: Tensor, backward: bool) -> float:
    """Return the largest relative error of a compiled model; raise if it exceeds the tolerance."""
    found = {name: tensor.clone() for name, tensor in step(model, source, images, backward).items()}
    expected = step(source, source, images, backward)
    if found.keys() != expected.keys():
        raise UserError(f'the compiled model lacks {sorted(expected.keys() ^ found.keys())}')
    # Gradients of which all numbers are rounding errors, such as those of a bias before a norm, are compared
    # with the largest gradient.
    largest = {
        kind: max(tensor.norm() for name, tensor in expected.items() if name.startswith(kind))
        for kind in {name.split()[0] for name in expected}
    }
    worst = 0.0
    for name, tensor in expected.items():
        scale = torch.maximum(tensor.norm(), 1e-3 * largest[name.split()[0]])
        error = ((found[name] - tensor).norm() / scale).item()
        if not error <= TOLERANCE:
            raise UserError(f'{name} differs by {error:.1e} at {tuple(images.shape)}')
        worst = max(worst, error)
    return worst


def measure(name: str, shapes: str, direction: str, repetitions: int, threads: int) -> Measurement:
    """Measure one row in this process, which must not have compiled anything before."""
    import torch._dynamo
    import torch.fx.experimental._config as shape_config

    prepare_for_timing(threads)
    torch.manual_seed(0)
    backward = direction == 'forward+backward'
    model = MODELS[name]().train(backward)
    # By default, sizes that are equal in the first call are compiled as one size.
    shape_config.use_duck_shape = shapes == 'fixed'
    compiled = torch.compile(model, fullgraph=True, dynamic=shapes == 'dynamic')
    images = torch.randn(BATCH, 3, SIZE, SIZE)
    before = cpu_seconds()
    step(compiled, model, images, backward)
    seconds = cpu_seconds() - before
    error = compare(compiled, model, images, backward)
    recompilations: int | str = ''
    if shapes == 'dynamic':
        graphs = _count_graphs()
        error = max(
            error, *(compare(compiled, model, torch.randn(b, 3, h, w), backward) for b, h, w in NEW_SHAPES)
        )
        recompilations = _count_graphs() - graphs
    timings = interleave(
        {
            'compiled': lambda: step(compiled, model, images, backward),
            'eager': lambda: step(model, model, images, backward),
        },
        repetitions,
        CPU,
        clock=time.process_time if threads == 1 else time.perf_counter,
    )
    speedups = timings['compiled'].speedups(timings['eager'])
    return Measurement(
        model=name,
        shapes=shapes,
        direction=direction,
        cpu_seconds=round(seconds, 1),
        limit=LIMITS[shapes],
        error=float(f'{error:.1e}'),
        recompilations=recompilations,
        speedup=round(timings['compiled'].speedup(timings['eager']), 2),
        spread=round(interquartile_range(speedups), 2),
        machine=describe_machine(CPU),
        commit=describe_commit(),
        date=date.today().isoformat(),
    )


def _count_graphs() -> int:
    return int(torch._dynamo.utils.counters['stats']['unique_graphs'])


def measure_in_new_process(row: Sequence[str], arguments: Sequence[str]) -> Measurement:
    """Measure a row in a process of its own with an empty cache."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, 'TORCHINDUCTOR_CACHE_DIR': folder, 'TORCHINDUCTOR_COMPILE_THREADS': '1'}
        command = [sys.executable, '-m', 'benchmarks.compile', '--row', *row, *arguments]
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise UserError(f'measuring {" ".join(row)} failed, see above')
    return Measurement(**json.loads(done.stdout.splitlines()[-1]))


def read_rows(path: Path) -> dict[tuple[str, ...], dict[str, Any]]:
    """Return the rows of a file by model, shapes and direction."""
    if not path.exists():
        return {}
    with path.open(newline='') as file:
        return {(line['model'], line['shapes'], line['direction']): line for line in csv.DictReader(file)}


def write_rows(path: Path, rows: dict[tuple[str, ...], dict[str, Any]]) -> None:
    """Write the rows in the order of MODELS, LIMITS and PASSES."""
    order = [(model, shapes, direction) for model in MODELS for shapes in LIMITS for direction in PASSES]
    with atomic_file(path) as temporary, temporary.open('w', newline='') as file:
        writer = csv.DictWriter(
            file, [field.name for field in dataclasses.fields(Measurement)], lineterminator='\n'
        )
        writer.writeheader()
        writer.writerows(rows[key] for key in order if key in rows)


def main() -> None:
    parser = OneLineParser(description=__doc__)
    parser.add_argument('models', nargs='*', help=f'models to compile, of {", ".join(MODELS)} (default: all)')
    parser.add_argument('--shapes', choices=LIMITS, help='fixed or dynamic shapes (default: both)')
    parser.add_argument('--pass', dest='direction', choices=PASSES, help='(default: both)')
    parser.add_argument('--repetitions', type=int, default=15, help='timed steps (default: %(default)s)')
    parser.add_argument('--threads', type=int, default=1, help='CPU threads (default: %(default)s)')
    parser.add_argument('--output', type=Path, help='CSV file in which measured rows replace earlier ones')
    parser.add_argument('--row', nargs=3, metavar=('MODEL', 'SHAPES', 'PASS'), help='one row in this process')
    args = parser.parse_args()
    if args.row:
        print(json.dumps(dataclasses.asdict(measure(*args.row, args.repetitions, args.threads))))
        return
    for name in args.models:
        check_choice('unknown model', name, MODELS)
    rows = read_rows(args.output) if args.output else {}
    for name in args.models or MODELS:
        for shapes in [args.shapes] if args.shapes else LIMITS:
            for direction in [args.direction] if args.direction else PASSES:
                flags = ['--repetitions', str(args.repetitions), '--threads', str(args.threads)]
                row = measure_in_new_process((name, shapes, direction), flags)
                print(row, flush=True)
                rows[name, shapes, direction] = dataclasses.asdict(row)
                if args.output:
                    write_rows(args.output, rows)


if __name__ == '__main__':
    with exit_on_user_error():
        main()
