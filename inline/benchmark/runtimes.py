"""Speed of deployment runtimes relative to eager PyTorch in float32.

Every measurement is a process of its own: a runtime is timed alternately with eager PyTorch, and only after
its outputs were compared. Weights are random, so that nothing is downloaded; they do not change the time.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from inline.apis.export.model import ExportNetwork
from inline.benchmark.hardware import CPU, prepare_for_timing
from inline.benchmark.timing import interleave, interquartile_range, make_inference
from inline.utils.environment import describe_commit, describe_hardware
from inline.utils.errors import UserError
from inline.utils.tables import read_csv, write_csv

# Classifiers of :func:`inline.create_backbone` by their name in the paper's tables, and configs of a detector
# and a segmentor.
CLASSIFIERS = {
    'DeiT-T': 'inline_deit_tiny',
    'PVT-S': 'inline_pvt_small',
    'Swin-T': 'inline_swin_tiny',
    'CSwin-T': 'inline_cswin_tiny',
}
CONFIGS = {
    'RetinaNet PVT-S': 'retinanet_inline-pvt-small_fpn_1x_coco',
    'Semantic FPN PVT-S': 'semantic-fpn_inline-pvt-small_8xb4-40k_ade20k-512x512',
}
MODELS = (*CLASSIFIERS, *CONFIGS)
SIZES = (224, 512, 1024)
# Runtimes, and the largest error of their outputs: the norm of the difference relative to that of the outputs
# of eager PyTorch in float32.
TOLERANCES = {
    'eager bf16': 0.05,
    'compiled': 1e-3,
    'ONNX Runtime': 1e-3,
    'OpenVINO': 1e-3,
    'OpenVINO bf16': 0.05,
    # Random weights amplify rounding errors. Unrelated outputs differ by more than 1; the accuracy of int8 is
    # measured with trained models, see docs/export.md.
    'OpenVINO int8': 0.5,
}
COLUMNS = ('model', 'size', 'runtime', 'threads', 'speedup', 'spread', 'ms', 'eager ms', 'error', 'tolerance',
           'note', 'repetitions', 'batch', 'commit', 'hardware', 'versions', 'date')  # fmt: skip
# Large images get fewer repetitions, but not fewer than this.
_MIN_REPETITIONS = 5
# Before each timed call, for the threads of the other runtime to fall asleep.
_PAUSE_SECONDS = 0.02
# Calibration of the int8 files: it affects the accuracy, not the time.
_CALIBRATION_IMAGES = 4
_EXPORT = 'export'


@dataclass(frozen=True)
class Job:
    """A measurement of one process.

    Args:
        model: One of MODELS.
        size: Height and width of the image.
        runtime: A key of TOLERANCES; ``'export'`` writes the files of the others.
        threads: Number of CPU threads.
        repetitions: Maximum number of repetitions.
        seconds: Time to spend on repetitions.
        folder: Folder of the exported files.
        formats: With ``'export'``, the files to write, of ``'onnx'``, ``'openvino'`` and ``'int8'``.
    """

    model: str
    size: int
    runtime: str
    threads: int
    repetitions: int
    seconds: float
    folder: str
    formats: tuple[str, ...] = ()

    def path(self, suffix: str) -> Path:
        """Return the exported file that ends in `suffix`."""
        return Path(self.folder, f'{self.model.replace(" ", "-")}-{self.size}{suffix}')


class RawNetwork(ExportNetwork):
    """A model that returns a tuple of tensors: logits, or what the head of a detector computes before NMS.

    Args:
        module: A classifier (B, 3, H, W) → (B, classes), or a toolbox's detector or segmentor.
        task: ``'classification'``, ``'detection'`` or ``'segmentation'``.
    """

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        if self.task == 'classification':
            return (self.module(image),)
        if self.task == 'segmentation':
            return (self.module(image, mode='tensor'),)
        features = self.module.extract_feat(image)  # type: ignore[operator]
        levels = self.module.bbox_head(features)  # type: ignore[operator]
        return tuple(out for outs in levels for out in outs)


def build_network(name: str, size: int) -> RawNetwork:
    """Build a model for images of a size, with the same random weights in every process."""
    torch.manual_seed(0)
    if name in CLASSIFIERS:
        from inline.hub import create_backbone

        classifier = create_backbone(CLASSIFIERS[name], num_classes=1000, img_size=size)
        return RawNetwork(classifier, 'classification').eval()
    from inline.openmmlab.patches import apply_patches

    apply_patches()
    from mmengine.registry import init_default_scope

    from inline.engine.config import load_config
    from inline.engine.launch import build_untrained_model

    cfg = load_config(CONFIGS[name], {})
    init_default_scope(cfg.default_scope)
    task = 'detection' if cfg.default_scope == 'mmdet' else 'segmentation'
    return RawNetwork(build_untrained_model(cfg), task).eval()


def make_image(size: int) -> Tensor:
    return torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(size))


def export_files(job: Job) -> None:
    """Write the files of a model that the runtimes load."""
    from inline.apis.export import openvino_ir
    from inline.apis.export.formats import trace, write_onnx
    from inline.apis.export.quantization import quantize_openvino

    network = build_network(job.model, job.size)
    with torch.no_grad():
        count = len(network(make_image(job.size)))
    names = [f'output_{i}' for i in range(count)]
    program = trace(network, (job.size, job.size), 3, dynamic=False)
    write_onnx(program, {'outputs': names}, job.path('.onnx'))
    if {'openvino', 'int8'} & {*job.formats}:
        openvino_ir.write(job.path('.onnx'), job.path('.xml'), {'outputs': names})
    if 'int8' in job.formats:
        images = [
            torch.randn(1, 3, job.size, job.size, generator=torch.Generator().manual_seed(i))
            for i in range(_CALIBRATION_IMAGES)
        ]
        quantize_openvino(job.path('.xml'), job.path('-int8.xml'), images)


def load_runtime(job: Job, network: nn.Module) -> Callable[[Tensor], Sequence[Tensor]]:
    """Return a function that runs a model in a runtime."""
    if job.runtime == 'eager bf16':

        def run(image: Tensor) -> Sequence[Tensor]:
            with torch.inference_mode(), torch.autocast('cpu', torch.bfloat16):
                outputs: tuple[Tensor, ...] = network(image)
            return outputs

        return run
    if job.runtime == 'compiled':
        compiled = torch.compile(network)
        return torch.inference_mode()(compiled)
    from inline.apis.export import openvino_ir
    from inline.apis.export.formats import load_onnx

    if job.runtime == 'ONNX Runtime':
        return load_onnx(job.path('.onnx'))
    suffix = '-int8.xml' if job.runtime == 'OpenVINO int8' else '.xml'
    # What is not quantised computes in bfloat16 if the CPU can.
    has_low = job.runtime == 'OpenVINO bf16' or (job.runtime == 'OpenVINO int8' and openvino_ir.has_bf16())
    return openvino_ir.load(job.path(suffix), 'bf16' if has_low else 'fp32', job.threads)


def relative_error(outputs: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return the largest relative error (norm of the difference) of several outputs; infinite for NaN."""
    if [out.shape for out in outputs] != [out.shape for out in expected]:
        return float('inf')
    errors = [
        float((out.float() - reference).norm() / reference.norm().clamp(min=1e-12))
        for out, reference in zip(outputs, expected, strict=True)
    ]
    return max(errors) if all(error == error for error in errors) else float('inf')


def measure(job: Job) -> dict[str, Any]:
    """Compare a runtime with eager PyTorch, then time both alternately; return the cells of a row."""
    prepare_for_timing(job.threads)
    network, image = build_network(job.model, job.size), make_image(job.size)
    eager = make_inference(network, image)
    run = load_runtime(job, network)
    with torch.inference_mode():
        expected = network(image)
    error, tolerance = relative_error(run(image), expected), TOLERANCES[job.runtime]
    row: dict[str, Any] = {'error': f'{error:.1e}', 'tolerance': tolerance}
    if not error <= tolerance:
        return {**row, 'note': f'not timed: outputs differ by {error:.1e}'}
    start = time.perf_counter()
    eager()
    run(image)
    pair = time.perf_counter() - start
    repetitions = max(_MIN_REPETITIONS, min(job.repetitions, int(job.seconds / pair)))
    timings = interleave(
        {'eager': eager, 'runtime': lambda: run(image)}, repetitions, CPU, pause=_PAUSE_SECONDS
    )
    speedups = timings['runtime'].speedups(timings['eager'])
    return {
        **row,
        'speedup': f'{statistics.median(speedups):.2f}',
        'spread': f'{interquartile_range(speedups):.2f}',
        'ms': f'{timings["runtime"].median * 1e3:.1f}',
        'eager ms': f'{timings["eager"].median * 1e3:.1f}',
        'repetitions': repetitions,
    }


@dataclass(frozen=True)
class RuntimeSettings:
    """What to measure.

    Args:
        models, sizes, runtimes: Of MODELS, image sides in pixels, and keys of TOLERANCES.
        threads: Number of CPU threads.
        repetitions: Maximum number of repetitions.
        seconds: Time for the repetitions of a row; fewer are made of slow models, but at least five.
        timeout: Seconds after which a process is ended, for example one that compiles for too long.
    """

    models: tuple[str, ...] = MODELS
    sizes: tuple[int, ...] = (224,)
    runtimes: tuple[str, ...] = tuple(TOLERANCES)
    threads: int = 1
    repetitions: int = 15
    seconds: float = 8.0
    timeout: float = 600.0


def measure_runtimes(
    settings: RuntimeSettings, results: Path, report: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    """Measure all rows, append each to a CSV file when it is finished, and yield it.

    `report` gets a line of progress with the estimated remaining time.
    """
    known = {
        'threads': settings.threads,
        'batch': 1,
        'commit': describe_commit(),
        'hardware': describe_hardware(CPU),
        'versions': ', '.join(
            f'{name} {version(name)}' for name in ('torch', 'onnxruntime', 'openvino', 'nncf')
        ),
        'date': date.today().isoformat(),
    }
    formats = tuple(
        name
        for name, runtimes in (
            ('onnx', ('ONNX Runtime',)),
            ('openvino', ('OpenVINO', 'OpenVINO bf16')),
            ('int8', ('OpenVINO int8',)),
        )
        if {*runtimes} & {*settings.runtimes}
    )
    total = len(settings.models) * len(settings.sizes) * (len(settings.runtimes) + bool(formats))
    done, start = 0, time.monotonic()

    def progress(text: str) -> None:
        nonlocal done
        done += 1
        elapsed = time.monotonic() - start
        left = elapsed / done * (total - done)
        report(f'[{done}/{total}] {text}; {_clock(elapsed)} elapsed, about {_clock(left)} left')

    for size in settings.sizes:
        for model in settings.models:
            with tempfile.TemporaryDirectory(prefix='inline-runtimes-') as folder:
                shared = (settings.threads, settings.repetitions, settings.seconds, folder)
                failed = ''
                if formats:
                    exported = run_job(Job(model, size, _EXPORT, *shared, formats), settings.timeout)
                    failed = exported.get('note', '')
                    progress(f'{model} at {size}: export {failed or "done"}')
                for runtime in settings.runtimes:
                    needs_file = runtime in ('ONNX Runtime', 'OpenVINO', 'OpenVINO bf16', 'OpenVINO int8')
                    if failed and needs_file:
                        cells = {'note': f'not timed: export {failed}'}
                    else:
                        cells = run_job(Job(model, size, runtime, *shared), settings.timeout)
                    row = {'model': model, 'size': size, 'runtime': runtime, **cells, **known}
                    append_row(results, row)
                    result = row.get('note') or f'{row["speedup"]}× eager, spread {row["spread"]}'
                    progress(f'{model} at {size}, {runtime}: {result}')
                    yield row


def run_job(job: Job, timeout: float) -> dict[str, Any]:
    """Run a job in a new process; a failure becomes a note."""
    command = [sys.executable, '-m', 'inline.benchmark.runtimes', json.dumps(asdict(job))]
    threads = str(job.threads)
    env = {**os.environ, 'OMP_NUM_THREADS': threads, 'MKL_NUM_THREADS': threads}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=env, check=False)
    except subprocess.TimeoutExpired:
        return {'note': f'not timed: not ready after {timeout:.0f} seconds'}
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        errors = done.stderr.strip().splitlines() or [f'exit code {done.returncode}']
        return {'note': f'failed: {errors[-1][:200]}'}
    cells: dict[str, Any] = json.loads(lines[-1])
    return cells


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Append a row to the CSV file; the file is replaced atomically."""
    rows = read_rows(path)
    write_csv(path, COLUMNS, [*rows, {name: row.get(name, '') for name in COLUMNS}])


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file, oldest first; none if it does not exist."""
    rows = read_csv(path) if path.is_file() else []
    if rows and tuple(rows[0]) != COLUMNS:
        raise UserError(f'{str(path)!r} has unexpected columns: expected {", ".join(COLUMNS)}')
    return rows


def newest(rows: Sequence[Mapping[str, str]]) -> dict[tuple[str, str, str], dict[str, Mapping[str, str]]]:
    """Return the newest row of each runtime, by threads, size and model."""
    found: dict[tuple[str, str, str], dict[str, Mapping[str, str]]] = {}
    for row in rows:
        found.setdefault((row['threads'], row['size'], row['model']), {})[row['runtime']] = row
    order = {name: i for i, name in enumerate(MODELS)}
    return dict(
        sorted(found.items(), key=lambda item: (int(item[0][0]), int(item[0][1]), order.get(item[0][2], 99)))
    )


def table_rows(path: Path) -> list[list[str]]:
    """Return header and rows of the documentation's table: the speedup of every runtime with its spread."""
    lines = [['model', 'size', 'threads', 'eager float32 (ms)', *TOLERANCES]]
    for (threads, size, model), by_runtime in newest(read_rows(path)).items():
        eager = [float(row['eager ms']) for row in by_runtime.values() if row['eager ms']]
        cells = [_cell(by_runtime.get(runtime)) for runtime in TOLERANCES]
        lines.append([model, size, threads, f'{statistics.median(eager):.0f}' if eager else '', *cells])
    return lines


def _cell(row: Mapping[str, str] | None) -> str:
    if row is None:
        return ''
    return f'{row["speedup"]} ({row["spread"]})' if row['speedup'] else row['note']


def draw_runtimes(path: Path, target: Path) -> None:
    """Draw the speedups of a CSV file: a panel per image size and number of threads, a bar per runtime."""
    from matplotlib.figure import Figure

    from inline.utils.drawing import CHART_COLORS

    by_panel: dict[tuple[str, str], dict[str, dict[str, Mapping[str, str]]]] = {}
    for (threads, size, model), by_runtime in newest(read_rows(path)).items():
        by_panel.setdefault((threads, size), {})[model] = by_runtime
    if not by_panel:
        raise UserError(f'{str(path)!r} has no rows to draw: measure them with `inline benchmark --runtimes`')
    figure = Figure(figsize=(10, 3.2 * len(by_panel)), layout='constrained')
    panels = figure.subplots(len(by_panel), 1, squeeze=False)[:, 0]
    width = 0.8 / len(TOLERANCES)
    for axes, ((threads, size), models) in zip(panels, by_panel.items(), strict=True):
        for index, runtime in enumerate(TOLERANCES):
            timed = [
                (position, row)
                for position, by_runtime in enumerate(models.values())
                if (row := by_runtime.get(runtime)) is not None and row['speedup']
            ]
            if not timed:
                continue
            axes.bar(
                [position + (index - (len(TOLERANCES) - 1) / 2) * width for position, _ in timed],
                [float(row['speedup']) for _, row in timed],
                width,
                yerr=[float(row['spread']) / 2 for _, row in timed],
                color=CHART_COLORS[index % len(CHART_COLORS)],
                label=runtime,
            )
        axes.axhline(1, color='0.4', linewidth=0.8)
        axes.set_xticks(range(len(models)), list(models))
        unit = 'thread' if threads == '1' else 'threads'
        axes.set(title=f'{size}×{size}, {threads} {unit}', ylabel='speed relative to eager float32')
    panels[0].legend(ncols=3, fontsize='small')
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=130)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f'{minutes}:{rest:02d}'


def main() -> None:
    """Run the job in the first argument and print the cells of its row as JSON."""
    arguments = json.loads(sys.argv[1])
    job = Job(**{**arguments, 'formats': tuple(arguments['formats'])})
    if job.runtime == _EXPORT:
        prepare_for_timing(job.threads)
        export_files(job)
        print('{}')
    else:
        print(json.dumps(measure(job)))


if __name__ == '__main__':
    main()
