"""Learning curves as inline SVG."""

import io
from collections.abc import Mapping

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from inline.engine.logs import Curve

# Stands for the page's text colour, which changes with the light or dark scheme.
_INK = '#010203'
_COLOURS = ('#2f7de1', '#e2711d')
_MARKERS = ('o', 's')
_MAX_MARKED_POINTS = 40


def draw_chart(
    name: str, y_label: str, series: Mapping[str, Curve], *, from_zero: bool = False
) -> Markup | None:
    """The curves over training iterations, None if no curve has a point. `name` must be unique on a page."""
    known = {label: curve for label, curve in series.items() if curve.steps}
    if not known:
        return None
    style = {
        'font.size': 10,
        'figure.facecolor': 'none',
        'axes.facecolor': 'none',
        'font.family': 'sans-serif',
        'svg.fonttype': 'none',
        # Makes the ids in the SVG the same in every run, and different in every chart of the page.
        'svg.hashsalt': name,
        **dict.fromkeys(
            ('text.color', 'axes.labelcolor', 'axes.edgecolor', 'xtick.color', 'ytick.color'), _INK
        ),
    }
    with mpl.rc_context(style):
        figure = Figure(figsize=(5.4, 3.3), layout='constrained')
        axes = figure.add_subplot()
        for index, label in enumerate(series):
            if label in known:
                _plot(axes, label, known[label], index)
        axes.set_xlabel('training iterations')
        axes.set_ylabel(y_label)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 2.5, 5, 10]))
        axes.xaxis.set_major_formatter(StrMethodFormatter('{x:,.0f}'))
        axes.set_xlim(left=0)
        if from_zero:
            axes.set_ylim(bottom=0)
        axes.grid(alpha=0.2, color=_INK)
        axes.spines[['top', 'right']].set_visible(False)
        if len(series) > 1:
            axes.legend(frameon=False)
        return _to_markup(figure)


def _plot(axes: mpl.axes.Axes, label: str, curve: Curve, index: int) -> None:
    marker = _MARKERS[index] if len(curve.steps) <= _MAX_MARKED_POINTS else None
    axes.plot(
        curve.steps,
        curve.values,
        label=label,
        color=_COLOURS[index],
        marker=marker,
        markersize=4,
        linewidth=1.8,
    )


def _to_markup(figure: Figure) -> Markup:
    buffer = io.StringIO()
    # No metadata: it would bring a date and addresses of vocabularies into the page.
    nothing = dict.fromkeys(('Creator', 'Date', 'Format', 'Type'))
    FigureCanvasSVG(figure).print_svg(buffer, metadata=nothing)
    text = buffer.getvalue().replace(_INK, 'currentColor')
    # The XML prolog has no place inside HTML.
    return Markup(text[text.index('<svg') :])
