"""A prediction in words, numbers and, where it has places, a picture."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inline.inference.drawing import DEFAULT_SCORE_THR

# Scores that are told.
MOST = 5


@dataclass(frozen=True)
class Statement:
    """What the page says of a prediction.

    Args:
        summary: One sentence.
        scores: Names with scores from 0 to 1, the highest first.
        picture: Boxes, masks or the label map over the image, RGB (H, W, 3); None for a class.
    """

    summary: str
    scores: list[tuple[str, float]]
    picture: NDArray[np.uint8] | None = None


def state(sample: Any, classes: Sequence[str], draw: Callable[[], NDArray[np.uint8]]) -> Statement:
    """What a data sample of one of the toolboxes says; `draw` gives its picture, RGB (H, W, 3)."""
    if 'pred_score' in sample:
        return _state_class(sample.pred_score.cpu().numpy(), classes)
    if 'pred_sem_seg' in sample:
        return _state_map(sample.pred_sem_seg.data.cpu().numpy(), draw())
    return _state_boxes(sample.pred_instances, classes, draw())


def _state_class(scores: NDArray[np.float32], classes: Sequence[str]) -> Statement:
    best = [(classes[label], float(scores[label])) for label in np.argsort(-scores)[:MOST]]
    return Statement(f'Class {best[0][0]}, score {best[0][1]:.1%}', best)


def _state_boxes(found: Any, classes: Sequence[str], picture: NDArray[np.uint8]) -> Statement:
    drawn = found[found.scores >= DEFAULT_SCORE_THR]
    pairs = zip(drawn.labels.tolist(), drawn.scores.tolist(), strict=True)
    ordered = sorted(((classes[label], score) for label, score in pairs), key=lambda pair: -pair[1])
    summary = f'{_count(len(ordered), "object")} with a score of at least {DEFAULT_SCORE_THR:g}'
    if len(ordered) > MOST:
        summary += f', here the surest {MOST}'
    return Statement(summary, ordered[:MOST], picture)


def _state_map(labels: NDArray[np.int64], picture: NDArray[np.uint8]) -> Statement:
    # The picture has a legend with their names and shares.
    return Statement(f'{_count(len(np.unique(labels)), "class", "classes")} on the map', [], picture)


def _count(number: int, one: str, many: str | None = None) -> str:
    return f'{number} {one if number == 1 else many or one + "s"}'
