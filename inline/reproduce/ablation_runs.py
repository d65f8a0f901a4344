"""Measurements of an ablation: accuracy, collisions and locality of a run, size and speed of a row."""

import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from mmengine.config import Config
from torch import nn

from inline.analysis.commands import measure_injectivity, measure_locality
from inline.analysis.models import load_analysis_model, sample_images
from inline.benchmark.flops import build_runnable, count_flops, default_shape
from inline.benchmark.hardware import choose_device, describe_machine, prepare_for_timing
from inline.benchmark.timing import interleave, make_inference
from inline.engine.config import load_config
from inline.engine.logs import read_scalars, training_minutes
from inline.models.mixers import AttentionMixer
from inline.models.mixers.inline import ResidualKernel
from inline.reproduce.provenance import PROVENANCE
from inline.reproduce.runs import Run, effective_config, parse_options
from inline.utils.errors import UserError
from inline.utils.tables import read_csv, write_csv

METRIC = 'accuracy/top1'
# Images on which collisions and locality are measured, as in tools/claims.py.
ANALYSIS_IMAGES = 40
_TIMING_BATCH, _TIMING_REPETITIONS = 8, 15
_OUTCOME_COLUMNS = (
    'row', 'seed', 'schedule', 'top1', 'collisions', 'locality', 'locality_with_local', 'minutes', *PROVENANCE
)  # fmt: skip
_COST_COLUMNS = ('row', 'params', 'flops', 'convolution', 'milliseconds', 'spread', 'conditions')


@dataclass(frozen=True)
class Outcome:
    """Result of one run of a row.

    Args:
        row: Name of the row.
        seed: Random seed.
        schedule: Length of training, such as ``10 epochs``.
        accuracy: Top-1 of the last validation in percent.
        minutes: Minutes of training.
        provenance: Provenance columns.
        collisions: Colliding query pairs per image, summed over layers and heads; None if not measured.
        locality: Share of attention in the 3×3 neighbourhood in percent, averaged over the layers with more
            than 2×2 tokens.
        locality_with_local: The same with the local terms of the mixer; None if it has none.
    """

    row: str
    seed: int
    schedule: str
    accuracy: float
    minutes: float
    provenance: Mapping[str, str]
    collisions: float | None = None
    locality: float | None = None
    locality_with_local: float | None = None


@dataclass(frozen=True)
class Cost:
    """Size and speed of the model of a row.

    Args:
        row: Name of the row.
        params: Millions of parameters.
        flops: Billions of multiply-adds per image.
        convolution: ``yes`` if the mixer contains a convolution, ``predicted`` if only one whose kernels are
            predicted from the image (InLine's local residual), otherwise ``no``.
        milliseconds: Inference time per image.
        spread: Interquartile range of the time divided by the median.
        conditions: Machine and settings of the timing.
    """

    row: str
    params: float
    flops: float
    convolution: str
    milliseconds: float
    spread: float
    conditions: str


def measure_run(row: str, seed: int, run: Run) -> Outcome:
    """Return the result of a finished run, from its last validation and from its last checkpoint."""
    records = read_scalars(run.folder)
    accuracies = [record[METRIC] for record in records if METRIC in record]
    if not accuracies:
        raise UserError(f'{run.name} logged no {METRIC}: see {run.folder}')
    collisions, locality, with_local = _analyze(run)
    return Outcome(
        row,
        seed,
        _schedule(effective_config(run.config, run.options)),
        accuracies[-1],
        training_minutes(records) or 0.0,
        run.provenance(),
        collisions,
        locality,
        with_local,
    )


def _schedule(cfg: Config) -> str:
    epochs = cfg.train_cfg.get('max_epochs')
    return f'{epochs} epochs' if epochs else f'{cfg.train_cfg.max_iters} steps'


def _analyze(run: Run) -> tuple[float, float, float | None]:
    """Return collisions per image, and the local share in percent without and with local terms."""
    # Worker processes, and sharing the dataset with them, would take longer than reading 40 images.
    workers = {
        'test_dataloader.num_workers': 0,
        'test_dataloader.persistent_workers': False,
        'test_dataloader.dataset.serialize_data': False,
    }
    model = load_analysis_model(
        str(run.config),
        str(run.last_checkpoint()),
        label=run.name,
        options={**parse_options(run.options), **workers},
        data_root=run.data_root,
    )
    shares = measure_locality(model, sample_images(model, ANALYSIS_IMAGES, seed=0, batch_size=8)).values()
    # On maps of up to 2×2 tokens, every token is a neighbour of every other: the share is always 1.
    large_maps = [layer for layer in shares if layer[2] is not None and layer[2] < 1]
    attention, with_local = (
        [100 * share for share in column if share is not None]
        for column in list(zip(*large_maps, strict=True))[:2]
    )
    # Last, because it converts the model to float64.
    found = measure_injectivity(model, sample_images(model, ANALYSIS_IMAGES, seed=0, batch_size=8))
    collisions = sum(float(pairs.double().sum(dim=1).mean()) for pairs, _ in found.values())
    return collisions, statistics.fmean(attention), statistics.fmean(with_local) if with_local else None


class MeasuredRuns:
    """Measures runs as they finish, and adds each to the files at once.

    An interrupted command therefore leaves a partial table, and a repeated one measures nothing again.

    Args:
        keys: Row and seed by folder of the run.
        path: CSV file of the runs of this command.
        results: CSV file to which the runs are added, such as one in results/measured/; None for none.
    """

    def __init__(self, keys: Mapping[Path, tuple[str, int]], path: Path, results: Path | None = None) -> None:
        self.keys, self.path, self.results = keys, path, results
        self._known = {
            _identity(outcome): outcome
            for file in (path, results)
            if file is not None
            for outcome in read_outcomes(file)
        }
        self._found: dict[tuple[str, int], Outcome] = {}

    @property
    def outcomes(self) -> list[Outcome]:
        """The results in the order of the runs."""
        return [self._found[key] for key in self.keys.values() if key in self._found]

    def recall(self, run: Run) -> bool:
        """Use the stored result of a run with the same inputs; return whether there is one."""
        row, seed = self.keys[run.folder]
        outcome = self._known.get((row, seed, run.inputs().short_digest))
        if outcome is not None:
            self._add(outcome)
        return outcome is not None

    def record(self, run: Run) -> None:
        """Measure a finished run."""
        self._add(measure_run(*self.keys[run.folder], run))

    def _add(self, outcome: Outcome) -> None:
        self._found[outcome.row, outcome.seed] = outcome
        write_outcomes(self.outcomes, self.path)
        if self.results is not None:
            append_outcome(outcome, self.results)


def append_outcome(outcome: Outcome, path: Path) -> None:
    """Add a run to a CSV file, which is replaced atomically; a line of the same run is replaced."""
    others = [other for other in read_outcomes(path) if _identity(other) != _identity(outcome)]
    write_outcomes([*others, outcome], path)


def _identity(outcome: Outcome) -> tuple[str, int, str | None]:
    return outcome.row, outcome.seed, outcome.provenance.get('digest')


def latest_outcomes(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return the newest result of every row and seed."""
    return list({(outcome.row, outcome.seed): outcome for outcome in outcomes}.values())


def write_outcomes(outcomes: Sequence[Outcome], path: Path) -> None:
    """Write a CSV file with one line per run."""
    lines = [
        {
            'row': outcome.row,
            'seed': str(outcome.seed),
            'schedule': outcome.schedule,
            'top1': f'{outcome.accuracy:.2f}',
            'collisions': _format(outcome.collisions),
            'locality': _format(outcome.locality),
            'locality_with_local': _format(outcome.locality_with_local),
            'minutes': f'{outcome.minutes:.2f}',
            **outcome.provenance,
        }
        for outcome in outcomes
    ]
    write_csv(path, _OUTCOME_COLUMNS, lines)


def read_outcomes(path: Path) -> list[Outcome]:
    """Return the runs of a CSV file, oldest first.

    Return none if the file does not exist or if an earlier version, without these columns, wrote it.
    """
    lines = read_csv(path) if path.is_file() else []
    if not lines or not set(_OUTCOME_COLUMNS) <= set(lines[0]):
        return []
    return [
        Outcome(
            line['row'],
            int(line['seed']),
            line['schedule'],
            float(line['top1']),
            float(line['minutes']),
            {name: line[name] for name in PROVENANCE},
            *(_parse(line[name]) for name in ('collisions', 'locality', 'locality_with_local')),
        )
        for line in lines
    ]


def measure_costs(configs: Mapping[str, Path]) -> list[Cost]:
    """Count parameters and FLOPs of the models by row, and time them alternately on batches of images."""
    prepare_for_timing(threads=1)
    device = choose_device(None)
    counted, runs = {}, {}
    for row, config in configs.items():
        cfg = load_config(config)
        shape = default_shape(cfg)
        model, forward = build_runnable(cfg, shape)
        image = torch.zeros(1, 3, *shape)
        total = count_flops(model, lambda forward=forward, image=image: forward(image))[-1]  # type: ignore[misc]
        counted[row] = (total.parameters / 1e6, total.multiply_adds / 1e9, find_convolution(model))
        model.to(device).eval()
        runs[row] = make_inference(forward, torch.randn(_TIMING_BATCH, 3, *shape, device=device))
    # CPU time, because other processes may be running.
    clock = time.process_time if device.type == 'cpu' else time.perf_counter
    name = 'CPU time' if device.type == 'cpu' else 'wall-clock time'
    conditions = f'{describe_machine(device)}; {name}, threads: 1, float32, batch: {_TIMING_BATCH}'
    timings = interleave(runs, _TIMING_REPETITIONS, device, clock)
    return [
        Cost(row, *counted[row], timing.median * 1e3 / _TIMING_BATCH, timing.spread, conditions)
        for row, timing in timings.items()
    ]


def find_convolution(model: nn.Module) -> str:
    """Return whether the mixers contain a convolution, as defined in :class:`Cost`."""
    parts = [
        part for mixer in model.modules() if isinstance(mixer, AttentionMixer) for part in mixer.modules()
    ]
    for part in parts:
        if isinstance(part, nn.Conv1d | nn.Conv2d) and max(part.kernel_size) > 1:
            return 'yes'
    return 'predicted' if any(isinstance(part, ResidualKernel) for part in parts) else 'no'


def write_costs(costs: Iterable[Cost], path: Path) -> None:
    """Write a CSV file with one line per row; lines of other rows that it has are kept."""
    lines = {cost.row: cost for cost in [*read_costs(path), *costs]}
    write_csv(
        path,
        _COST_COLUMNS,
        [
            (
                cost.row,
                f'{cost.params:.3f}',
                f'{cost.flops:.4f}',
                cost.convolution,
                f'{cost.milliseconds:.3f}',
                f'{cost.spread:.3f}',
                cost.conditions,
            )
            for cost in lines.values()
        ],
    )


def read_costs(path: Path) -> list[Cost]:
    """Return the lines that :func:`write_costs` wrote; none if the file does not exist."""
    if not path.is_file():
        return []
    return [
        Cost(
            line['row'],
            float(line['params']),
            float(line['flops']),
            line['convolution'],
            float(line['milliseconds']),
            float(line['spread']),
            line['conditions'],
        )
        for line in read_csv(path)
    ]


def _format(value: float | None) -> str:
    return '' if value is None else f'{value:.2f}'


def _parse(text: str) -> float | None:
    return float(text) if text else None
