"""Many probes in several processes, kept as they are done; the table and the figure of them."""

import csv
import json
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, stdev

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from inline.analysis.probes import MIXER_ROWS, PROBES, SETTINGS, Score, run_probe
from inline.columns import with_spread
from inline.errors import UserError
from inline.records import write_lines

COLUMNS = ('task', 'mixer', 'seed', 'steps', 'accuracy', 'chance', 'best', 'config', 'settings')
QUESTIONS = {'length': 'Which length has the query?', 'neighbour': 'What is to the right of a token?'}
# By the beginning of a row's name; what no other entry fits is a rival.
COLOURS = {'InLine': '#2f7de1', 'Linear': '#e2711d', '': '#7b8794'}
GROUPS = {'InLine': 'InLine', 'Linear': 'plain linear attention', '': 'softmax and other linear attentions'}


@dataclass(frozen=True)
class Run:
    """One training: a task, a row of :data:`MIXER_ROWS`, a seed, a number of steps."""

    task: str
    mixer: str
    seed: int
    steps: int

    def key(self) -> dict[str, str]:
        """All that the score depends on, as the columns of the file hold it."""
        return {
            **{name: str(value) for name, value in asdict(self).items()},
            'config': json.dumps(MIXER_ROWS[self.mixer], sort_keys=True),
            'settings': json.dumps(asdict(SETTINGS), sort_keys=True),
        }


def plan_runs(tasks: Sequence[str], mixers: Sequence[str], seeds: int, steps: int) -> list[Run]:
    """One run for each task, mixer and seed; seeds are 0, 1, …"""
    for what, names, known in (('task', tasks, PROBES), ('mixer', mixers, MIXER_ROWS)):
        for name in names:
            if name not in known:
                raise UserError(f'unknown {what} {name!r}: choose one of {", ".join(known)}')
    for what, value in (('seeds', seeds), ('steps', steps)):
        if value < 1:
            raise UserError(f'{what} {value}: must be at least 1')
    # As often as a name was given, once is enough.
    unique = [dict.fromkeys(names) for names in (tasks, mixers)]
    return [
        Run(task, mixer, seed, steps) for seed in range(seeds) for mixer in unique[1] for task in unique[0]
    ]


def perform(
    runs: Sequence[Run],
    path: Path,
    workers: int,
    progress: Callable[[Iterator[Future[Score]], int], Iterable[Future[Score]]] = lambda done, _: done,
) -> dict[Run, Score]:
    """The scores of all runs: those in the file at ``path`` as they are, the others trained and added to it.

    Args:
        runs: What to score.
        path: CSV file with a line for each run; lines of other settings stay in it.
        workers: Processes, each with one thread.
        progress: Wraps the trainings as they are done; the second argument is how many there are.
    """
    if workers < 1:
        raise UserError(f'workers {workers}: must be at least 1')
    lines = _read(path)
    scores = {run: score for run in runs if (score := _find(run, lines)) is not None}
    left = [run for run in runs if run not in scores]
    if not left:
        return scores
    # A forked process could hang on a lock that one of torch's threads held.
    pool = ProcessPoolExecutor(min(workers, len(left)), get_context('spawn'), initializer=_start_worker)
    try:
        pending = {pool.submit(_score, run): run for run in left}
        for future in progress(as_completed(pending), len(left)):
            run = pending[future]
            scores[run] = future.result()
            lines.append({**run.key(), **{name: repr(value) for name, value in asdict(scores[run]).items()}})
            write_lines(path, COLUMNS, lines)
    finally:
        pool.shutdown(cancel_futures=True)
    return scores


def _start_worker() -> None:
    # Ctrl-C reaches all processes; the first one ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)


def _score(run: Run) -> Score:
    return run_probe(run.task, MIXER_ROWS[run.mixer], seed=run.seed, steps=run.steps)


def _find(run: Run, lines: Sequence[dict[str, str]]) -> Score | None:
    key = run.key()
    for line in lines:
        if all(line[name] == value for name, value in key.items()):
            return Score(float(line['accuracy']), float(line['chance']), float(line['best']))
    return None


def _read(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    with path.open(newline='') as file:
        reader = csv.DictReader(file)
        lines = list(reader)
    if tuple(reader.fieldnames or ()) != COLUMNS:
        raise UserError(f'{str(path)!r} has other columns than expected: {", ".join(COLUMNS)}')
    return lines


@dataclass(frozen=True)
class Cell:
    """Accuracies of one mixer on one task in percent: their mean, and their standard deviation over seeds."""

    mean: float
    spread: float | None

    def __str__(self) -> str:
        return with_spread(self.mean, self.spread)


def summarise(scores: dict[Run, Score]) -> dict[tuple[str, str], Cell]:
    """A cell for each mixer and task; the spread needs two seeds."""
    accuracies: dict[tuple[str, str], list[float]] = {}
    for run, score in scores.items():
        accuracies.setdefault((run.mixer, run.task), []).append(100 * score.accuracy)
    return {
        place: Cell(mean(values), stdev(values) if len(values) > 1 else None)
        for place, values in accuracies.items()
    }


def table_rows(scores: dict[Run, Score], tasks: Sequence[str], mixers: Sequence[str]) -> list[list[str]]:
    """A header, chance and the best possible, then a row for each mixer."""
    cells = summarise(scores)
    return [
        ['mixer', *(f'{task} (%)' for task in tasks)],
        ['chance', *(f'{100 * PROBES[task].chance:.1f}' for task in tasks)],
        ['best possible', *(f'{100 * PROBES[task].best:.1f}' for task in tasks)],
        *([mixer, *(str(cells[mixer, task]) for task in tasks)] for mixer in mixers),
    ]


def draw(scores: dict[Run, Score], tasks: Sequence[str], mixers: Sequence[str], path: Path) -> None:
    """A bar for each mixer, side by side for the tasks."""
    cells = summarise(scores)
    figure = Figure(figsize=(2.2 + 3.4 * len(tasks), 1.5 + 0.24 * len(mixers)), layout='constrained')
    panels = figure.subplots(1, len(tasks), sharey=True, squeeze=False)[0]
    for axes, task in zip(panels, tasks, strict=True):
        _draw_panel(axes, task, {mixer: cells[mixer, task] for mixer in mixers})
    panels[0].set_ylabel('mixer')
    present = dict.fromkeys(_group(mixer) for mixer in mixers)
    handles = [Patch(color=COLOURS[group], label=GROUPS[group]) for group in present]
    figure.legend(handles=[*handles, *panels[0].get_legend_handles_labels()[0]], loc='outside lower center',
                  ncols=3, frameon=False, fontsize=8)  # fmt: skip
    figure.savefig(path, dpi=150)


def _draw_panel(axes: Axes, task: str, cells: dict[str, Cell]) -> None:
    places = _places(list(cells))
    colours = [COLOURS[_group(mixer)] for mixer in cells]
    axes.barh(places, [cell.mean for cell in cells.values()], color=colours, height=0.72)
    for place, cell in zip(places, cells.values(), strict=True):
        spread = cell.spread or 0
        if spread:
            axes.errorbar(cell.mean, place, xerr=spread, color='black', linewidth=0.9, capsize=2)
        end = (cell.mean + spread, place)
        axes.annotate(str(cell), end, (4, 0), textcoords='offset points', va='center', fontsize=7)
    chance, best = 100 * PROBES[task].chance, 100 * PROBES[task].best
    axes.axvline(chance, color='black', linewidth=1, linestyle='--', label='chance')
    axes.axvline(best, color='black', linewidth=1, linestyle=':', label='best possible')
    axes.set(
        title=f'{task}: {QUESTIONS[task]}', xlabel='accuracy (%)', xlim=(0, 122), xticks=range(0, 101, 25)
    )
    axes.title.set_fontsize(9)
    axes.tick_params(labelsize=8)
    axes.set_yticks(places, list(cells))
    # The first row at the top.
    axes.set_ylim(places[-1] + 0.6, -0.6)
    axes.spines[['top', 'right']].set_visible(False)


def _places(mixers: Sequence[str]) -> list[float]:
    """Heights of the bars, with a gap between groups."""
    groups = [_group(mixer) for mixer in mixers]
    gaps = accumulate([0.0, *(0.5 * (one != other) for one, other in pairwise(groups))])
    return [index + gap for index, gap in enumerate(gaps)]


def _group(mixer: str) -> str:
    return next(group for group in COLOURS if mixer.startswith(group))
