"""A model of a config and a checkpoint, as the page serves it."""

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from inline.analysis.layers import find_layers
from inline.analysis.subjects import Subject
from inline.inference import InLineModel
from inline.inference.inputs import Preparation, Source
from inline.serve.predictions import Statement, state
from inline.serve.views import View, make_view


class ServedModel:
    """Predicts, and lets its layers be looked at.

    Args:
        model: Its backbone must be one of ours.
        label: What it is called on the page.
    """

    def __init__(self, model: InLineModel, label: str) -> None:
        self.model = model
        self.subject = Subject(label, model.cfg, model.model, find_layers(model.model))
        self._preparation = Preparation(model.cfg)

    @property
    def label(self) -> str:
        return self.subject.label

    def predict(self, image: NDArray[np.uint8]) -> Statement:
        """Of an image in BGR (H, W, 3)."""
        (found,) = self.model(image)
        return state(found.sample, self.model.classes.names, lambda: to_rgb(found.draw()))

    def view(self, image: NDArray[np.uint8]) -> View:
        return make_view(lambda array: self._preparation(Source('', array=array), 0), image)


def read_models(
    pairs: Sequence[tuple[str, str]], device: str | None = None, trust_checkpoint: bool = False
) -> list[ServedModel]:
    """The models of pairs of config and checkpoint, called by their configs, or by both where these agree."""
    names = [Path(config).stem for config, _ in pairs]
    if len(set(names)) < len(names):
        names = [
            f'{name} · {Path(checkpoint).stem}' for name, (_, checkpoint) in zip(names, pairs, strict=True)
        ]
    return [
        ServedModel(InLineModel(config, checkpoint, device, trust_checkpoint=trust_checkpoint), name)
        for name, (config, checkpoint) in zip(names, pairs, strict=True)
    ]


def to_rgb(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.asarray(cv2.cvtColor(image, cv2.COLOR_BGR2RGB))
