"""Predictions: the toolboxes' data samples, with methods to draw, show and save them."""

from collections import UserList
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import cv2
from mmengine.structures import BaseDataElement
from numpy.typing import NDArray

from inline.apis.drawing import DEFAULT_SCORE_THR, draw
from inline.apis.inputs import EXTENSIONS, ImageSource
from inline.apis.loading import Classes
from inline.utils.drawing import Image
from inline.utils.errors import UserError


@dataclass(frozen=True, repr=False)
class Prediction:
    """The prediction for one image.

    Attributes of the data sample are available directly: ``prediction.pred_instances``.

    Attributes:
        sample: mmpretrain's ``DataSample``, mmdet's ``DetDataSample`` or mmseg's ``SegDataSample``.
        source: The input image.
        classes: Class names and colours.
    """

    sample: BaseDataElement
    source: ImageSource
    classes: Classes
    _read: Callable[[ImageSource], Image]

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, 'sample'), name)

    def __repr__(self) -> str:
        return f'Prediction({self.name!r}, {type(self.sample).__name__})'

    @property
    def name(self) -> str:
        """The name of the image, unique within the call: a relative path without suffix."""
        return self.source.name

    @property
    def image(self) -> Image:
        """The image, BGR (H, W, 3). A file is read again."""
        return self._read(self.source)

    def draw(self, score_thr: float = DEFAULT_SCORE_THR) -> Image:
        """Draw the prediction on the image, BGR. Small images are enlarged.

        Args:
            score_thr: Boxes with a lower score are not drawn.
        """
        return draw(self.image, self.sample, self.classes, score_thr)

    def save(self, path: str | Path, score_thr: float = DEFAULT_SCORE_THR) -> Path:
        """Draw the prediction and write it to a file; the suffix determines the format."""
        path = Path(path)
        if path.suffix.lower() not in EXTENSIONS:
            raise UserError(f'{str(path)!r} must have the suffix of an image, such as .png or .jpg')
        if self.source.path is not None and path.resolve() == self.source.path.resolve():
            raise UserError(f'{str(path)!r} is the input image: choose another file')
        write_image(path, self.draw(score_thr))
        return path

    def show(self, score_thr: float = DEFAULT_SCORE_THR) -> None:
        """Draw the prediction in a window or in the notebook."""
        import matplotlib.pyplot as plt

        if plt.get_backend().lower() == 'agg':
            raise UserError('no display is available: write the picture to a file with .save(path)')
        picture = self.draw(score_thr)
        plt.figure(self.name, figsize=(picture.shape[1] / 100, picture.shape[0] / 100))
        plt.imshow(picture[..., ::-1])
        plt.axis('off')
        plt.tight_layout(pad=0)
        plt.show()

    def _repr_png_(self) -> bytes:
        return bytes(cv2.imencode('.png', self.draw())[1])


class PredictionStream:
    """An iterator that computes predictions one by one and does not keep them.

    Attributes:
        total: Number of images.
        skipped: A message for each image that was skipped so far.
    """

    def __init__(self, predictions: Iterator[Prediction], total: int, skipped: list[str]) -> None:
        self._predictions = predictions
        self.total = total
        self.skipped = skipped

    def __iter__(self) -> Iterator[Prediction]:
        return self._predictions

    def __next__(self) -> Prediction:
        return next(self._predictions)

    def __getitem__(self, index: object) -> NoReturn:
        raise TypeError(
            'predictions of a folder are computed one by one: iterate over them, or pass a list of files'
        )

    def save(self, folder: str | Path, score_thr: float = DEFAULT_SCORE_THR) -> list[Path]:
        """Draw each image and write it to its own file in a folder."""
        if Path(folder).suffix.lower() in EXTENSIONS:
            raise UserError(f'{str(folder)!r} is an image file: give a folder for {self.total} images')
        return [
            prediction.save(Path(folder, f'{prediction.name}.png'), score_thr)
            for prediction in self._predictions
        ]


class Predictions(UserList[Prediction]):
    """A list of predictions.

    Attributes:
        skipped: A message for each image that was skipped.
    """

    def __init__(self, predictions: Iterable[Prediction], skipped: Sequence[str] = ()) -> None:
        super().__init__(predictions)
        self.skipped = list(skipped)

    def __repr__(self) -> str:
        return f'Predictions({", ".join(prediction.name for prediction in self)})'

    @property
    def samples(self) -> list[BaseDataElement]:
        """The toolbox's data samples."""
        return [prediction.sample for prediction in self]

    def save(self, path: str | Path, score_thr: float = DEFAULT_SCORE_THR) -> list[Path]:
        """Draw one image and write it to a file, or each image to its own file in a folder."""
        if len(self) == 1 and Path(path).suffix.lower() in EXTENSIONS:
            return [self[0].save(path, score_thr)]
        return PredictionStream(iter(self), len(self), []).save(path, score_thr)

    def show(self, score_thr: float = DEFAULT_SCORE_THR) -> None:
        """Draw each image in a window or in the notebook, one after the other."""
        for prediction in self:
            prediction.show(score_thr)


def write_image(path: Path, image: NDArray[Any]) -> None:
    """Write a BGR image or a label map to a file and create its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not cv2.imwrite(str(path), image):
        raise UserError(f'{str(path)!r} cannot be written')
