"""A table of accuracies as a picture."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from inline.reproduce.ablations import Summary, format_mean

_BAR, _DOT = '#9dc3f2', '#1b4f8f'


def draw_summaries(summaries: Sequence[Summary], title: str, out: Path) -> None:
    """A bar for the mean of each row, and a dot for each seed."""
    figure = Figure(figsize=(7, 1.2 + 0.38 * len(summaries)), layout='constrained')
    axes = figure.add_subplot()
    places = range(len(summaries))
    axes.barh(places, [summary.mean for summary in summaries], color=_BAR, height=0.7)
    for place, summary in zip(places, summaries, strict=True):
        axes.plot(summary.accuracies, [place] * len(summary.accuracies), 'o', color=_DOT, markersize=4)
        axes.annotate(
            format_mean(summary),
            (max(summary.accuracies), place),
            xytext=(6, 0),
            textcoords='offset points',
            va='center',
        )
    axes.set_yticks(places, [summary.title for summary in summaries])
    axes.invert_yaxis()
    # Room for the numbers; a bar chart begins at zero.
    axes.set_xlim(0, 1.18 * max(max(summary.accuracies) for summary in summaries))
    axes.set_xlabel('top-1 accuracy (%); dots are seeds')
    axes.set_title(title, loc='left', fontsize=11)
    axes.spines[['top', 'right']].set_visible(False)
    figure.savefig(out, dpi=150)
