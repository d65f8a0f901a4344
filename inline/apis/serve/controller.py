"""Event handlers of the page: upload, click and choice of the head. Independent of the web server."""

import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import cv2
import numpy as np

from inline.analysis.layers import find_layers
from inline.analysis.models import AnalysisModel
from inline.apis import InLineModel
from inline.apis.inputs import ImageSource
from inline.apis.serve import html
from inline.apis.serve.attention_views import ModelInput, compute_attention_views, prepare_input
from inline.apis.serve.uploads import UploadLimits, read_upload
from inline.utils.drawing import Image
from inline.utils.errors import UserError, first_line

NO_IMAGE = 'No image yet.'


class PageModel:
    """A model for predictions and attention views on the page.

    Args:
        model: Its backbone must be one of this package.
        label: Name of the model on the page.
    """

    def __init__(self, model: InLineModel, label: str) -> None:
        self.model = model
        self.label = label
        self.analysis_model = AnalysisModel(label, model.cfg, model.model, find_layers(model.model))

    def predict(self, image: Image) -> html.PredictionSummary:
        """Predict for an image, BGR (H, W, 3)."""
        (found,) = self.model(image)
        return html.summarize(found.sample, self.model.classes.names, lambda: to_rgb(found.draw()))

    def prepare(self, image: Image) -> ModelInput:
        return prepare_input(lambda array: self.model.pipeline(ImageSource('', array=array)), image)


def load_models(
    pairs: Sequence[tuple[str, str]], device: str | None = None, trust_checkpoint: bool = False
) -> list[PageModel]:
    """Load models from pairs of config and checkpoint.

    Labels are the names of the configs. If these are equal, the names of the checkpoints are added.
    """
    labels = [Path(config).stem for config, _ in pairs]
    if len(set(labels)) < len(labels):
        labels = [
            f'{label} · {Path(checkpoint).stem}' for label, (_, checkpoint) in zip(labels, pairs, strict=True)
        ]
    return [
        PageModel(InLineModel(config, checkpoint, device, trust_checkpoint=trust_checkpoint), label)
        for label, (config, checkpoint) in zip(labels, pairs, strict=True)
    ]


@dataclass(frozen=True)
class SessionState:
    """State of a browser session.

    Args:
        picture: The uploaded image as a data URI.
        inputs: The image after the pipeline of each model.
        point: The clicked point (x, y) in relative positions.
        head: Index of the chosen head; None for the mean of all.
    """

    picture: str
    inputs: tuple[ModelInput, ...]
    point: tuple[float, float] | None = None
    head: int | None = None


@dataclass(frozen=True)
class PageUpdate:
    """New content for the parts of the page; None keeps a part as it is."""

    message: str
    state: SessionState | None = None
    picture: str | None = None
    predictions: str | None = None
    layers: str | None = None


class Controller:
    """Handles the events of the page. Errors become messages on the page.

    Args:
        models: One or two models, in the order of the page.
        limits: Limits for uploaded files.
    """

    def __init__(self, models: Sequence[PageModel], limits: UploadLimits) -> None:
        self.models = list(models)
        self.limits = limits
        # Forward hooks collect the attention: concurrent clicks would record each other's layers.
        self._lock = threading.Lock()

    def max_heads(self) -> int:
        """Return the largest number of heads of any layer."""
        return max(layer.mixer.num_heads for model in self.models for layer in model.analysis_model.layers)

    def upload(self, path: Path, head: int | None = None) -> PageUpdate:
        """Handle an uploaded image; `head` is the current choice of the head."""
        return self._handle(lambda: self._predict(path, head))

    def click(self, state: SessionState | None, x: float, y: float) -> PageUpdate:
        """Handle a click on the image at a relative position."""
        if state is None:
            return PageUpdate(html.render_message(NO_IMAGE))
        point = (min(max(x, 0), 1), min(max(y, 0), 1))
        return self._handle(lambda: self._show_attention(replace(state, point=point)))

    def select_head(self, state: SessionState | None, head: int | None) -> PageUpdate:
        """Handle the choice of a head; None is the mean of all."""
        if state is None:
            return PageUpdate(html.render_message(NO_IMAGE))
        return self._handle(lambda: self._show_attention(replace(state, head=head)))

    def _predict(self, path: Path, head: int | None) -> PageUpdate:
        image = read_upload(path, self.limits)
        inputs = tuple(model.prepare(image) for model in self.models)
        predictions = [(model.label, model.predict(image)) for model in self.models]
        picture = html.encode_png(html.resize_to(to_rgb(image), html.IMAGE_SIDE))
        state = SessionState(picture, inputs, head=head)
        height, width = image.shape[:2]
        return PageUpdate(
            html.render_message(f'{path.name}, {width}×{height} pixels. Click a point in the image.'),
            state,
            html.render_image(picture, None),
            html.render_predictions(predictions),
            layers='',
        )

    def _show_attention(self, state: SessionState) -> PageUpdate:
        if state.point is None:
            return PageUpdate(html.render_message('Click a point in the image.'), state)
        rows, cropped = [], []
        for model, model_input in zip(self.models, state.inputs, strict=True):
            query = model_input.find_pixel(*state.point)
            if query is None:
                cropped.append(model.label)
            else:
                views = compute_attention_views(model.analysis_model, model_input, query, state.head)
                rows.append(html.LayerRow(model.label, views, model_input))
        x, y = state.point
        message = f'Token at {x:.0%} of the width, {y:.0%} of the height.'
        if cropped:
            message += f' The test pipeline of {" and ".join(cropped)} crops this point off.'
        return PageUpdate(
            html.render_message(message),
            state,
            html.render_image(state.picture, state.point),
            layers=html.render_layers(rows) if rows else '',
        )

    def _handle(self, work: Callable[[], PageUpdate]) -> PageUpdate:
        try:
            with self._lock:
                return work()
        except UserError as error:
            return PageUpdate(html.render_message(first_line(error), is_error=True))
        except Exception:  # Details could contain paths of the server: they go to the terminal only.
            traceback.print_exc()
            text = 'This image could not be processed. See the terminal of the server for the reason.'
            return PageUpdate(html.render_message(text, is_error=True))


def to_rgb(image: Image) -> Image:
    return np.asarray(cv2.cvtColor(image, cv2.COLOR_BGR2RGB))
