"""What the page answers to an image, a click and a choice of heads; nothing here knows of a server."""

import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from inline.errors import UserError, one_line
from inline.serve import panels
from inline.serve.looks import look
from inline.serve.served import ServedModel, to_rgb
from inline.serve.uploads import Limits, read_upload
from inline.serve.views import View

WAITING = 'No image yet.'


@dataclass(frozen=True)
class Visit:
    """What a visitor looks at: the image to click on, what each model sees, the point, and the head."""

    picture: str
    views: tuple[View, ...]
    point: tuple[float, float] | None = None
    head: int | None = None


@dataclass(frozen=True)
class Answer:
    """What changes on the page; None leaves a piece as it is."""

    message: str
    visit: Visit | None = None
    picture: str | None = None
    predictions: str | None = None
    layers: str | None = None


class Desk:
    """Answers what is done on the page. Mistakes come back as messages.

    Args:
        models: One or two; the first comes first on the page.
        limits: Of files that are read.
    """

    def __init__(self, models: Sequence[ServedModel], limits: Limits) -> None:
        self.models = list(models)
        self.limits = limits
        # Layers are watched while a model runs: two clicks at once would see each other's.
        self._turn = threading.Lock()

    def most_heads(self) -> int:
        """Of any layer."""
        return max(layer.mixer.num_heads for model in self.models for layer in model.subject.layers)

    def accept(self, path: Path, head: int | None = None) -> Answer:
        """An image was dropped, while a head was chosen, counted from 0, or all of them."""
        return self._told(lambda: self._accept(path, head))

    def point(self, visit: Visit | None, x: float, y: float) -> Answer:
        """A point of the image was clicked, given as shares of its sides."""
        if visit is None:
            return Answer(panels.show_message(WAITING))
        return self._told(lambda: self._show(replace(visit, point=(min(max(x, 0), 1), min(max(y, 0), 1)))))

    def choose_head(self, visit: Visit | None, head: int | None) -> Answer:
        if visit is None:
            return Answer(panels.show_message(WAITING))
        return self._told(lambda: self._show(replace(visit, head=head)))

    def _accept(self, path: Path, head: int | None) -> Answer:
        image = read_upload(path, self.limits)
        views = tuple(model.view(image) for model in self.models)
        predictions = [(model.label, model.predict(image)) for model in self.models]
        visit = Visit(panels.encode(panels.fit(to_rgb(image), panels.IMAGE_SIDE)), views, head=head)
        height, width = image.shape[:2]
        return Answer(
            panels.show_message(f'{path.name}, {width}×{height} pixels. Click a point of it.'),
            visit,
            panels.show_point(visit.picture, None),
            panels.show_predictions(predictions),
            '',
        )

    def _show(self, visit: Visit) -> Answer:
        if visit.point is None:
            return Answer(panels.show_message('Click a point of the image.'), visit)
        rows, unseen = [], []
        for model, view in zip(self.models, visit.views, strict=True):
            query = view.find(*visit.point)
            if query is None:
                unseen.append(model.label)
            else:
                looks = look(model.subject, view, query, visit.head)
                rows.append(panels.Row(model.label, looks, view))
        x, y = visit.point
        message = f'Token at {x:.0%} of the width, {y:.0%} of the height.'
        if unseen:
            message += f' That point is cut off before {" and ".join(unseen)} sees it.'
        return Answer(
            panels.show_message(message),
            visit,
            panels.show_point(visit.picture, visit.point),
            layers=panels.show_layers(rows) if rows else '',
        )

    def _told(self, work: Callable[[], Answer]) -> Answer:
        try:
            with self._turn:
                return work()
        except UserError as error:
            return Answer(panels.show_message(one_line(error), wrong=True))
        except Exception:  # Whatever it is, a visitor gets a sentence, and who started the server the rest.
            traceback.print_exc()
            text = 'This image could not be processed. The terminal of the server says why.'
            return Answer(panels.show_message(text, wrong=True))
