"""Event handlers of the page: image, click, head and threshold. Independent of the web server."""

import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import cv2
import numpy as np
import torch
from mmengine.structures import InstanceData

from inline.analysis.layers import find_layers
from inline.analysis.models import AnalysisModel
from inline.apis import InLineModel, Prediction
from inline.apis.drawing import DEFAULT_SCORE_THR
from inline.apis.inputs import ImageSource
from inline.apis.serve import html
from inline.apis.serve.attention_views import ModelInput, compute_attention_views, prepare_input
from inline.apis.serve.uploads import UploadLimits, read_upload
from inline.checkpoints.sources import CHECKPOINT_SUFFIXES
from inline.datasets.decoder_process import DecoderProcess
from inline.utils.drawing import Image
from inline.utils.errors import UserError, first_line

NO_IMAGE = 'No image yet.'
# Indices of validation images of the digit scenes.
EXAMPLES = (4, 6)


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

    def predict(self, image: Image) -> 'Result':
        """Predict for an image, BGR (H, W, 3). Only detections depend on the threshold of the page."""
        (found,) = self.model(image)
        return shrink(found, html.IMAGE_SIDE) if found.task == 'detection' else summarize(found)

    def prepare(self, image: Image) -> ModelInput:
        return prepare_input(lambda array: self.model.pipeline(ImageSource('', array=array)), image)


def load_models(
    pairs: Sequence[tuple[str, str]], device: str | None = None, trust_checkpoint: bool = False
) -> list[PageModel]:
    """Load models from pairs of config and checkpoint.

    See :func:`distinct_labels` for their labels.
    """
    return [
        PageModel(InLineModel(config, checkpoint, device, trust_checkpoint=trust_checkpoint), label)
        for label, (config, checkpoint) in zip(distinct_labels(pairs), pairs, strict=True)
    ]


def distinct_labels(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Return a label for each pair of config and checkpoint.

    Labels are the names of the configs. If these are equal, the end of the checkpoint's path is added: the
    file name, and as many folders as are needed to distinguish the checkpoints.
    """
    names = [Path(config).stem for config, _ in pairs]
    labels, depth = names, 0
    parts = [_without_suffix(checkpoint).split('/') for _, checkpoint in pairs]
    while len(set(labels)) < len(labels) and depth < max(map(len, parts)):
        depth += 1
        tails = ['/'.join(part[-depth:]) for part in parts]
        labels = [f'{name} · {tail}' for name, tail in zip(names, tails, strict=True)]
    if len(set(labels)) < len(labels):
        # The same checkpoint twice.
        labels = [f'{label} ({i})' for i, label in enumerate(labels, start=1)]
    return labels


def _without_suffix(checkpoint: str) -> str:
    path = Path(checkpoint)
    return (path.with_suffix('') if path.suffix in CHECKPOINT_SUFFIXES else path).as_posix()


def shrink(prediction: Prediction, side: int) -> Prediction:
    """Return boxes and masks on an image whose longer side is at most `side`.

    A session keeps them to redraw them with a different threshold. The masks of a large image would take
    gigabytes.
    """
    height, width = prediction.shape
    scale = side / max(height, width)
    if scale >= 1:
        return prediction
    image = html.resize_to(prediction.image, side)
    found = prediction.pred_instances
    boxes = found.bboxes * torch.tensor([image.shape[1] / width, image.shape[0] / height]).repeat(2)
    smaller = InstanceData(bboxes=boxes, scores=found.scores, labels=found.labels)
    if prediction.masks is not None:
        masks = [
            cv2.resize(mask.astype(np.uint8), image.shape[1::-1], interpolation=cv2.INTER_NEAREST)
            for mask in prediction.masks
        ]
        smaller.masks = torch.from_numpy(np.array(masks, bool).reshape(-1, *image.shape[:2]))
    sample = type(prediction.sample)(metainfo={'ori_shape': image.shape[:2]}, pred_instances=smaller)
    return replace(prediction, sample=sample, source=ImageSource(prediction.name, array=image))


def summarize(prediction: Prediction, score_thr: float = DEFAULT_SCORE_THR) -> html.PredictionSummary:
    return html.summarize(
        prediction.sample,
        prediction.names,
        lambda: html.resize_to(to_rgb(prediction.draw(score_thr)), html.IMAGE_SIDE),
        score_thr,
    )


def example_images(task: str) -> list[Image]:
    """Return two validation images of the digit scenes, BGR (H, W, 3): one digit each for a classifier."""
    from inline.datasets.digits.rendering import DigitScenesOptions, render_classification, render_scene
    from inline.datasets.digits.sources import load_sources

    options = DigitScenesOptions()
    sources = load_sources(options.seed)
    render = render_classification if task == 'classification' else render_scene
    return [render(sources, options, 'val', i).image for i in EXAMPLES]


# Detections can be redrawn with a different threshold.
Result = Prediction | html.PredictionSummary


@dataclass(frozen=True)
class SessionState:
    """State of a browser session.

    Args:
        picture: The uploaded image as a data URI.
        inputs: The image after the pipeline of each model.
        results: The prediction of each model: detections, or the summary of a classifier or segmentor.
        point: The clicked point (x, y) in relative positions.
        head: Index of the chosen head; None for the mean of all.
    """

    picture: str
    inputs: tuple[ModelInput, ...]
    results: tuple[Result, ...] = ()
    point: tuple[float, float] | None = None
    head: int | None = None


@dataclass(frozen=True)
class PageUpdate:
    """New content for the parts of the page; None keeps a part as it is."""

    message: str | None = None
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
        self._decoder = DecoderProcess(limits.seconds)
        # Forward hooks collect the attention: concurrent clicks would record each other's layers.
        self._lock = threading.Lock()

    @cached_property
    def examples(self) -> list[Image]:
        """Example images, BGR (H, W, 3)."""
        return example_images(self.models[0].model.task)

    @property
    def has_detector(self) -> bool:
        return any(model.model.task == 'detection' for model in self.models)

    def max_heads(self) -> int:
        """Return the largest number of heads of any layer."""
        return max(layer.mixer.weight_heads for model in self.models for layer in model.analysis_model.layers)

    def upload(self, path: Path, head: int | None = None, score_thr: float = DEFAULT_SCORE_THR) -> PageUpdate:
        """Handle an uploaded image; `head` and `score_thr` are the current choices of the page."""

        def predict() -> PageUpdate:
            image = read_upload(path, self.limits, self._decoder)
            return self._predict(image, path.name, head, score_thr)

        return self._handle(predict)

    def show_example(
        self, index: int, head: int | None = None, score_thr: float = DEFAULT_SCORE_THR
    ) -> PageUpdate:
        """Handle a click on an example image."""
        if not 0 <= index < len(self.examples):
            return PageUpdate(html.render_message(NO_IMAGE))
        name = f'example {index + 1}'
        return self._handle(lambda: self._predict(self.examples[index], name, head, score_thr))

    def set_threshold(self, state: SessionState | None, score_thr: float) -> PageUpdate:
        """Handle the choice of the minimum score of boxes."""
        if state is None:
            return PageUpdate(html.render_message(NO_IMAGE))
        return self._handle(lambda: PageUpdate(predictions=self._render_results(state.results, score_thr)))

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

    def close(self) -> None:
        """End the process that decodes images; it is started again if an image follows."""
        self._decoder.close()

    def _predict(self, image: Image, name: str, head: int | None, score_thr: float) -> PageUpdate:
        inputs = tuple(model.prepare(image) for model in self.models)
        results = tuple(model.predict(image) for model in self.models)
        picture = html.encode_png(html.resize_to(to_rgb(image), html.IMAGE_SIDE))
        state = SessionState(picture, inputs, results, head=head)
        height, width = image.shape[:2]
        return PageUpdate(
            html.render_message(f'{name}, {width}×{height} pixels. Click a point in the image.'),
            state,
            html.render_image(picture, None),
            self._render_results(results, score_thr),
            layers='',
        )

    def _render_results(self, results: Sequence[Result], score_thr: float) -> str:
        return html.render_predictions(
            [
                (model.label, summarize(result, score_thr) if isinstance(result, Prediction) else result)
                for model, result in zip(self.models, results, strict=True)
            ]
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
