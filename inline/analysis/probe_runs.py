"""Probe runs in several processes, with results saved as they finish; their table and figure."""

import csv
import json
import signal
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, stdev

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from tqdm import tqdm

from inline.analysis.probes import MIXER_ROWS, PROBES, SETTINGS, Score, run_probe
from inline.utils.arguments import check_choice, check_positive
from inline.utils.drawing import CHART_COLORS
from inline.utils.errors import UserError
from inline.utils.tables import format_mean_std, write_csv

COLUMNS = ('task', 'mixer', 'seed', 'steps', 'accuracy', 'chance', 'best', 'config', 'settings')
QUESTIONS = {'length': 'How long is the query?', 'neighbour': 'What is to the right of a token?'}
# By prefix of the row's name; the empty prefix matches all other mixers.
COLORS = {'InLine': CHART_COLORS[0], 'Linear': CHART_COLORS[1], '': '#7b8794'}
GROUPS = {'InLine': 'InLine', 'Linear': 'plain linear attention', '': 'softmax and other linear attention'}


@dataclass(frozen=True)
class ProbeRun:
    """One training run.

    Args:
        task: A key of :data:`PROBES`.
        mixer: A key of :data:`MIXER_ROWS`.
        seed: Random seed.
        steps: Training steps.
    """

    task: str
    mixer: str
    seed: int
    steps: int

    def key(self) -> dict[str, str]:
        """Return everything that the score depends on, as columns of the CSV file."""
        return {
            **{name: str(value) for name, value in asdict(self).items()},
            'config': json.dumps(MIXER_ROWS[self.mixer], sort_keys=True),
            'settings': json.dumps(asdict(SETTINGS), sort_keys=True),
        }


# Mean and standard deviation in percent; None for a single seed.
Accuracy = tuple[float, float | None]
# By mixer and task.
Accuracies = dict[tuple[str, str], Accuracy]


def plan_runs(tasks: Sequence[str], mixers: Sequence[str], seeds: int, steps: int) -> list[ProbeRun]:
    """Return one run per task, mixer and seed (0, 1, …); repeated names count once."""
    for task in tasks:
        check_choice('unknown task', task, PROBES)
    for mixer in mixers:
        check_choice('unknown mixer', mixer, MIXER_ROWS)
    check_positive('seeds', seeds)
    check_positive('steps', steps)
    return [
        ProbeRun(task, mixer, seed, steps)
        for seed in range(seeds)
        for mixer in dict.fromkeys(mixers)
        for task in dict.fromkeys(tasks)
    ]


def run_probes(runs: Sequence[ProbeRun], path: Path, workers: int) -> dict[ProbeRun, Score]:
    """Return the scores of all runs. Scores in the file at `path` are reused, others are trained and added.

    Args:
        runs: The runs to score.
        path: CSV file with one line per run. Lines of other settings are kept.
        workers: Number of processes, each with one thread.
    """
    check_positive('workers', workers)
    lines = _read_lines(path)
    scores = {run: score for run in runs if (score := _find_score(run, lines)) is not None}
    remaining = [run for run in runs if run not in scores]
    if not remaining:
        return scores
    # A forked process could deadlock on a lock held by one of torch's threads.
    pool = ProcessPoolExecutor(
        min(workers, len(remaining)), get_context('spawn'), initializer=_initialize_worker
    )
    try:
        pending = {pool.submit(_train_and_score, run): run for run in remaining}
        for future in tqdm(as_completed(pending), total=len(pending), desc='probes', unit='run'):
            run = pending[future]
            scores[run] = future.result()
            lines.append({**run.key(), **{name: repr(value) for name, value in asdict(scores[run]).items()}})
            write_csv(path, COLUMNS, lines)
    finally:
        pool.shutdown(cancel_futures=True)
    return scores


def _initialize_worker() -> None:
    # Ctrl-C reaches all processes; the main process shuts the workers down.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)


def _train_and_score(run: ProbeRun) -> Score:
    return run_probe(run.task, MIXER_ROWS[run.mixer], seed=run.seed, steps=run.steps)


def _find_score(run: ProbeRun, lines: Sequence[dict[str, str]]) -> Score | None:
    key = run.key()
    for line in lines:
        if all(line[name] == value for name, value in key.items()):
            return Score(float(line['accuracy']), float(line['chance']), float(line['best']))
    return None


def _read_lines(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    with path.open(newline='') as file:
        reader = csv.DictReader(file)
        lines = list(reader)
    if tuple(reader.fieldnames or ()) != COLUMNS:
        raise UserError(f'{str(path)!r} has unexpected columns: must be {", ".join(COLUMNS)}')
    return lines


def summarize(scores: dict[ProbeRun, Score]) -> Accuracies:
    """Return the accuracy over seeds by mixer and task."""
    accuracies: dict[tuple[str, str], list[float]] = defaultdict(list)
    for run, score in scores.items():
        accuracies[run.mixer, run.task].append(100 * score.accuracy)
    return {
        key: (mean(values), stdev(values) if len(values) > 1 else None) for key, values in accuracies.items()
    }


def table_rows(accuracies: Accuracies, tasks: Sequence[str], mixers: Sequence[str]) -> list[list[str]]:
    """Return a header, the rows for chance and best possible, and one row per mixer."""
    return [
        ['mixer', *(f'{task} (%)' for task in tasks)],
        ['chance', *(f'{100 * PROBES[task].chance:.1f}' for task in tasks)],
        ['best possible', *(f'{100 * PROBES[task].best:.1f}' for task in tasks)],
        *([mixer, *(format_mean_std(*accuracies[mixer, task]) for task in tasks)] for mixer in mixers),
    ]


def draw_probes(accuracies: Accuracies, tasks: Sequence[str], mixers: Sequence[str], path: Path) -> None:
    """Draw one bar per mixer, with one panel per task."""
    figure = Figure(figsize=(2.2 + 3.4 * len(tasks), 1.5 + 0.24 * len(mixers)), layout='constrained')
    panels = figure.subplots(1, len(tasks), sharey=True, squeeze=False)[0]
    for axes, task in zip(panels, tasks, strict=True):
        _draw_panel(axes, task, {mixer: accuracies[mixer, task] for mixer in mixers})
    panels[0].set_ylabel('mixer')
    present = dict.fromkeys(_group(mixer) for mixer in mixers)
    handles = [Patch(color=COLORS[group], label=GROUPS[group]) for group in present]
    figure.legend(handles=[*handles, *panels[0].get_legend_handles_labels()[0]], loc='outside lower center',
                  ncols=3, frameon=False, fontsize=8)  # fmt: skip
    figure.savefig(path, dpi=150)


def _draw_panel(axes: Axes, task: str, accuracies: dict[str, Accuracy]) -> None:
    positions = _bar_positions(list(accuracies))
    colors = [COLORS[_group(mixer)] for mixer in accuracies]
    axes.barh(positions, [accuracy for accuracy, _ in accuracies.values()], color=colors, height=0.72)
    for position, (accuracy, std) in zip(positions, accuracies.values(), strict=True):
        if std:
            axes.errorbar(accuracy, position, xerr=std, color='black', linewidth=0.9, capsize=2)
        text, end = format_mean_std(accuracy, std), (accuracy + (std or 0), position)
        axes.annotate(text, end, (4, 0), textcoords='offset points', va='center', fontsize=7)
    chance, best = 100 * PROBES[task].chance, 100 * PROBES[task].best
    axes.axvline(chance, color='black', linewidth=1, linestyle='--', label='chance')
    axes.axvline(best, color='black', linewidth=1, linestyle=':', label='best possible')
    axes.set(
        title=f'{task}: {QUESTIONS[task]}', xlabel='accuracy (%)', xlim=(0, 122), xticks=range(0, 101, 25)
    )
    axes.title.set_fontsize(9)
    axes.tick_params(labelsize=8)
    axes.set_yticks(positions, list(accuracies))
    # The first row at the top.
    axes.set_ylim(positions[-1] + 0.6, -0.6)
    axes.spines[['top', 'right']].set_visible(False)


def _bar_positions(mixers: Sequence[str]) -> list[float]:
    """Return the vertical positions of the bars, with a gap between groups."""
    groups = [_group(mixer) for mixer in mixers]
    gaps = accumulate([0.0, *(0.5 * (group != following) for group, following in pairwise(groups))])
    return [index + gap for index, gap in enumerate(gaps)]


def _group(mixer: str) -> str:
    return next(group for group in COLORS if mixer.startswith(group))
