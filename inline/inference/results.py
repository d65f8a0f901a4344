"""Predictions: the toolboxes' own data samples, which can be drawn, shown and saved."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, overload

import cv2
from mmengine.structures import BaseDataElement
from numpy.typing import NDArray

from inline.errors import UserError
from inline.inference.drawing import DEFAULT_SCORE_THR, draw
from inline.inference.inputs import EXTENSIONS, Image, Source
from inline.inference.loading import Classes


@dataclass(frozen=True)
class Prediction:
    """What a model found in one image.

    What is asked of it that it has not itself comes from the data sample: ``prediction.pred_instances``.

    Attributes:
        sample: mmpretrain's ``DataSample``, mmdet's ``DetDataSample`` or mmseg's ``SegDataSample``.
        source: The image.
        classes: Names and colours by label.
    """

    sample: BaseDataElement
    source: Source
    classes: Classes
    _read: Callable[[Source], Image]

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, 'sample'), name)

    @property
    def name(self) -> str:
        """Different from that of every other image of the call: a path without ending."""
        return self.source.name

    @property
    def image(self) -> Image:
        """The image in BGR (H, W, 3), read again if it came from a file."""
        return self._read(self.source)

    def draw(self, score_thr: float = DEFAULT_SCORE_THR) -> Image:
        """A picture in BGR (H', W', 3), small images enlarged; boxes below the score are left out."""
        return draw(self.image, self.sample, self.classes, score_thr)

    def save(self, path: str | Path, score_thr: float = DEFAULT_SCORE_THR) -> Path:
        """Draw into a file, whose ending says the format."""
        path = Path(path)
        if path.suffix.lower() not in EXTENSIONS:
            raise UserError(f'{str(path)!r} must end as an image does, such as .png or .jpg')
        if self.source.path is not None and path.resolve() == self.source.path.resolve():
            raise UserError(f'{str(path)!r} is the image itself: choose another file to save its drawing')
        write_image(path, self.draw(score_thr))
        return path

    def show(self, score_thr: float = DEFAULT_SCORE_THR) -> None:
        """Draw into a window, or into the notebook."""
        import matplotlib.pyplot as plt

        if plt.get_backend().lower() == 'agg':
            raise UserError('there is no screen to show a picture on: write it with .save(path)')
        picture = self.draw(score_thr)
        plt.figure(self.name, figsize=(picture.shape[1] / 100, picture.shape[0] / 100))
        plt.imshow(picture[..., ::-1])
        plt.axis('off')
        plt.tight_layout(pad=0)
        plt.show()

    def _repr_png_(self) -> bytes:
        return bytes(cv2.imencode('.png', self.draw())[1])


class PredictionStream:
    """Predictions that are computed as they are asked for and kept by nobody: it can be gone through once.

    Attributes:
        total: Number of images.
        skipped: A line for each image that could not be read, so far.
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
            'the predictions of a folder come one after the other: go through them, or give a list of files'
        )

    def save(self, folder: str | Path, score_thr: float = DEFAULT_SCORE_THR) -> list[Path]:
        """Draw each image into a file of its own below a folder."""
        if Path(folder).suffix.lower() in EXTENSIONS:
            raise UserError(
                f'{str(folder)!r} is the name of one image: give a folder for {self.total} of them'
            )
        return [
            prediction.save(Path(folder, f'{prediction.name}.png'), score_thr)
            for prediction in self._predictions
        ]


class Predictions(Sequence[Prediction]):
    """A list of predictions.

    Attributes:
        skipped: A line for each image that could not be read.
    """

    def __init__(self, predictions: Sequence[Prediction], skipped: Sequence[str] = ()) -> None:
        self._predictions = list(predictions)
        self.skipped = list(skipped)

    def __len__(self) -> int:
        return len(self._predictions)

    @overload
    def __getitem__(self, index: int) -> Prediction: ...

    @overload
    def __getitem__(self, index: slice) -> 'Predictions': ...

    def __getitem__(self, index: int | slice) -> 'Prediction | Predictions':
        if isinstance(index, slice):
            return Predictions(self._predictions[index])
        return self._predictions[index]

    def __repr__(self) -> str:
        return f'Predictions({", ".join(prediction.name for prediction in self)})'

    @property
    def samples(self) -> list[BaseDataElement]:
        """The toolbox's data samples."""
        return [prediction.sample for prediction in self]

    def save(self, path: str | Path, score_thr: float = DEFAULT_SCORE_THR) -> list[Path]:
        """Draw one image into a file, or each into a file of its own below a folder."""
        if len(self) == 1 and Path(path).suffix.lower() in EXTENSIONS:
            return [self[0].save(path, score_thr)]
        return PredictionStream(iter(self), len(self), []).save(path, score_thr)

    def show(self, score_thr: float = DEFAULT_SCORE_THR) -> None:
        """Draw each image into a window, or into the notebook, one after the other."""
        for prediction in self:
            prediction.show(score_thr)


def write_image(path: Path, image: NDArray[Any]) -> None:
    """A file whose ending says the format, in a folder that is made if there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not cv2.imwrite(str(path), image):
        raise UserError(f'{str(path)!r} cannot be written')
