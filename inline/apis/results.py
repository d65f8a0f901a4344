"""Predictions: the toolboxes' data samples as arrays, with methods to convert, draw, show and save them."""

from collections import UserList
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import cv2
import numpy as np
from mmengine.structures import BaseDataElement
from numpy.typing import NDArray

from inline.apis import conversion
from inline.apis.drawing import DEFAULT_SCORE_THR, TOP_K, draw
from inline.apis.inputs import EXTENSIONS, ImageSource
from inline.apis.loading import Classes
from inline.apis.media import count_frames
from inline.utils.drawing import Image
from inline.utils.errors import UserError

# Images that a repr lists.
_MAX_LINES = 10


@dataclass(frozen=True, repr=False, eq=False)
class Prediction:
    """The prediction for one image.

    Arrays of another task are None: a classifier has no `boxes`, and a detector no `probs`. All arrays are
    NumPy arrays. Attributes of the data sample are available directly: ``prediction.pred_instances``.

    Attributes:
        sample: mmpretrain's ``DataSample``, mmdet's ``DetDataSample`` or mmseg's ``SegDataSample``.
        source: The input image.
        classes: Class names and colours.
        image_id: The number in the name of the file if all files of the call are named by distinct numbers,
            otherwise the position of the image in the input, from 0.
        score_thr: The threshold of the call; None if it had none.
        top_k: The number of classes or objects of the call; None if it had none.
    """

    sample: BaseDataElement
    source: ImageSource
    classes: Classes
    _read: Callable[[ImageSource], Image]
    image_id: int = 0
    score_thr: float | None = None
    top_k: int | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, 'sample'), name)

    def __repr__(self) -> str:
        height, width = self.shape
        return (
            f'Prediction({self.name!r}, {width}×{height} pixels, {self.task}: {conversion.summarize(self)})'
        )

    @property
    def name(self) -> str:
        """The name of the image, unique within the call: a relative path without suffix."""
        return self.source.name

    @property
    def task(self) -> str:
        """``'classification'``, ``'detection'`` or ``'segmentation'``."""
        if 'pred_score' in self.sample:
            return 'classification'
        return 'detection' if 'pred_instances' in self.sample else 'segmentation'

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the image."""
        height, width = self.sample.ori_shape[:2]
        return int(height), int(width)

    @property
    def names(self) -> tuple[str, ...]:
        """Class names by label."""
        return self.classes.names

    def class_name(self, label: int) -> str:
        """Return the name of a class; the label itself if it has none."""
        return self.names[label] if label < len(self.names) else str(label)

    @property
    def probs(self) -> NDArray[np.floating] | None:
        """Probabilities by label, (classes,), of a classifier."""
        return self.sample.pred_score.numpy() if self.task == 'classification' else None

    @property
    def top1(self) -> int | None:
        """The label with the highest probability, of a classifier."""
        return None if self.probs is None else int(_highest(self.probs, 1)[0])

    @property
    def top5(self) -> NDArray[np.int64] | None:
        """The labels with the five highest probabilities, the highest first, of a classifier."""
        return None if self.probs is None else _highest(self.probs, 5)

    @property
    def top_labels(self) -> NDArray[np.int64]:
        """The labels with the `top_k` highest probabilities, five by default, of a classifier."""
        return np.empty(0, np.int64) if self.probs is None else _highest(self.probs, self.top_k or TOP_K)

    @property
    def boxes(self) -> NDArray[np.floating] | None:
        """Boxes (N, 4) of a detector: x1, y1, x2, y2 in pixels of the image."""
        return self._instances('bboxes')

    @property
    def scores(self) -> NDArray[np.floating] | None:
        """Scores (N,) of a detector."""
        return self._instances('scores')

    @property
    def labels(self) -> NDArray[np.int64] | None:
        """Labels (N,) of a detector."""
        return self._instances('labels')

    @property
    def masks(self) -> NDArray[np.bool_] | None:
        """Masks (N, H, W) at the size of the image, of a detector that predicts them."""
        masks = self._instances('masks')
        return None if masks is None else masks.astype(bool, copy=False)

    @property
    def label_map(self) -> NDArray[np.int64] | None:
        """Labels (H, W) of all pixels of the image, of a segmentor."""
        return self.sample.pred_sem_seg.data[0].numpy() if self.task == 'segmentation' else None

    def to_dict(self) -> dict[str, Any]:
        """Return the prediction as plain values.

        The keys are ``image`` (the name), ``file``, ``frame`` (of a video), ``image_id``, ``width``,
        ``height``, ``task`` and ``predictions``, a list with an entry per class or object:

        - classification: ``label``, ``name`` and ``score`` of the `top_k` most likely classes, by default 5
        - detection: ``label``, ``name``, ``score``, ``box`` (x1, y1, x2, y2), and ``mask`` (COCO's run-length
          encoding) if the model predicts masks
        - segmentation: ``label``, ``name``, ``pixels``, ``share`` and ``mask`` of each class in the image
        """
        return conversion.to_dict(self)

    def to_json(self) -> str:
        """Return :meth:`to_dict` as JSON."""
        return conversion.to_json(self.to_dict(), self.name)

    def to_coco(self, image_id: int | None = None) -> list[dict[str, Any]]:
        """Return boxes and masks in COCO's results format, or a mask per class of a label map.

        ``category_name`` is added to each entry. Category ids are those of the training data if they are
        known, and otherwise counted from 1.

        Args:
            image_id: Id of the image; by default `image_id`.
        """
        return conversion.to_coco(self, image_id)

    def to_pandas(self) -> Any:
        """Return a DataFrame with a row per class or object, as in :meth:`to_dict` but without masks."""
        return conversion.to_pandas([self])

    def to_supervision(self) -> Any:
        """Return ``supervision.Detections``, or ``Classifications`` of all classes.

        The classes of a label map become detections with a mask and without a score.
        """
        return conversion.to_supervision(self)

    @property
    def image(self) -> Image:
        """The image, BGR (H, W, 3). A file is read again."""
        return self._read(self.source)

    def draw(self, score_thr: float | None = None) -> Image:
        """Draw the prediction on the image, BGR. Small images are enlarged.

        Args:
            score_thr: Boxes with a lower score are not drawn. The default is that of the call, or else 0.3.
        """
        if score_thr is None:
            score_thr = DEFAULT_SCORE_THR if self.score_thr is None else self.score_thr
        return draw(self.image, self.sample, self.classes, score_thr, self.top_k or TOP_K)

    def save(self, path: str | Path, score_thr: float | None = None) -> Path:
        """Draw the prediction and write it to a file; the suffix determines the format."""
        path = Path(path)
        if path.suffix.lower() not in EXTENSIONS:
            raise UserError(f'{str(path)!r} must have the suffix of an image, such as .png or .jpg')
        if self.source.path is not None and path.resolve() == self.source.path.resolve():
            raise UserError(f'{str(path)!r} is the input image: choose another file')
        write_image(path, self.draw(score_thr))
        return path

    def show(self, score_thr: float | None = None) -> None:
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

    def _instances(self, key: str) -> NDArray[Any] | None:
        if self.task != 'detection' or key not in self.sample.pred_instances:
            return None
        return np.asarray(self.sample.pred_instances[key])


class _Results:
    """Methods that lists and streams of predictions share."""

    def __iter__(self) -> Iterator[Prediction]:
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError

    def to_dict(self) -> list[dict[str, Any]]:
        """Return :meth:`Prediction.to_dict` of each image."""
        return [prediction.to_dict() for prediction in self]

    def to_json(self) -> str:
        """Return :meth:`to_dict` as a JSON list."""
        return f'[{", ".join(prediction.to_json() for prediction in self)}]'

    def to_coco(self) -> list[dict[str, Any]]:
        """Return the results of all images in COCO's results format; see :meth:`Prediction.to_coco`."""
        return [record for prediction in self for record in prediction.to_coco()]

    def to_pandas(self) -> Any:
        """Return one DataFrame of all images; see :meth:`Prediction.to_pandas`."""
        return conversion.to_pandas(self)

    def to_supervision(self) -> list[Any]:
        """Return :meth:`Prediction.to_supervision` of each image."""
        return [prediction.to_supervision() for prediction in self]

    def _save_to_folder(self, folder: str | Path, score_thr: float | None) -> list[Path]:
        if Path(folder).suffix.lower() in EXTENSIONS:
            raise UserError(f'{str(folder)!r} is an image file: give a folder for {len(self)} images')
        return [prediction.save(Path(folder, f'{prediction.name}.png'), score_thr) for prediction in self]


class PredictionStream(_Results):
    """Predictions that are computed one by one and not kept. Each iteration computes them again.

    An index computes a single prediction, and a slice returns another stream. The length is the number of
    images; for a video, that of the frames according to its header.

    Args:
        sources: The images.
        predict: Returns the predictions of some of the images, and adds a message for each one that it skips
            to a list.

    Attributes:
        skipped: A message for each image that the last iteration skipped so far.
    """

    def __init__(
        self,
        sources: Sequence[ImageSource],
        predict: Callable[[Sequence[ImageSource], list[str]], Iterator[Prediction]],
    ) -> None:
        self._sources = sources
        self._predict = predict
        self.skipped: list[str] = []

    def __repr__(self) -> str:
        return (
            f'PredictionStream({len(self)} {"image" if len(self) == 1 else "images"}, computed on iteration)'
        )

    def __iter__(self) -> Iterator[Prediction]:
        self.skipped = []
        return self._predict(self._sources, self.skipped)

    def __len__(self) -> int:
        return count_images(self._sources)

    @overload
    def __getitem__(self, index: int) -> Prediction: ...

    @overload
    def __getitem__(self, index: slice) -> 'PredictionStream': ...

    def __getitem__(self, index: int | slice) -> 'Prediction | PredictionStream':
        if any(source.is_video for source in self._sources):
            raise TypeError('frames of a video are computed in order: iterate, for example with islice')
        if isinstance(index, slice):
            return PredictionStream(self._sources[index], self._predict)
        skipped: list[str] = []
        for prediction in self._predict([self._sources[index]], skipped):
            return prediction
        raise UserError(skipped[0])

    @property
    def total(self) -> int:
        """The number of images."""
        return len(self)

    def save(self, folder: str | Path, score_thr: float | None = None) -> list[Path]:
        """Draw each image and write it to its own file in a folder."""
        return self._save_to_folder(folder, score_thr)


class Predictions(_Results, UserList[Prediction]):
    """A list of predictions.

    If there is only one, its attributes are available directly: ``predictions.boxes``.

    Attributes:
        skipped: A message for each image that was skipped.
    """

    def __init__(self, predictions: Iterable[Prediction] = (), skipped: Sequence[str] = ()) -> None:
        super().__init__(predictions)
        self.skipped = list(skipped)

    __iter__ = UserList.__iter__
    __len__ = UserList.__len__

    def __getattr__(self, name: str) -> Any:
        # `data` is the list itself, which does not exist yet while an instance is copied.
        if name.startswith('_') or name == 'data':
            raise AttributeError(f'{type(self).__name__!r} object has no attribute {name!r}')
        if len(self) != 1:
            raise AttributeError(f'{len(self)} predictions: use predictions[i].{name}, or iterate over them')
        return getattr(self[0], name)

    def __repr__(self) -> str:
        shown = [repr(prediction) for prediction in self[:_MAX_LINES]]
        more = [f'… {len(self) - _MAX_LINES} more'] if len(self) > _MAX_LINES else []
        return 'Predictions([' + ',\n             '.join(shown + more) + '])'

    @property
    def samples(self) -> list[BaseDataElement]:
        """The toolbox's data samples."""
        return [prediction.sample for prediction in self]

    def save(self, path: str | Path, score_thr: float | None = None) -> list[Path]:
        """Draw one image and write it to a file, or each image to its own file in a folder."""
        if len(self) == 1 and Path(path).suffix.lower() in EXTENSIONS:
            return [self[0].save(path, score_thr)]
        return self._save_to_folder(path, score_thr)

    def show(self, score_thr: float | None = None) -> None:
        """Draw each image in a window or in the notebook, one after the other."""
        for prediction in self:
            prediction.show(score_thr)


def count_images(sources: Iterable[ImageSource]) -> int:
    """Return the number of images; for a video, that of the frames according to its header."""
    return sum(count_frames(source.path) if source.is_video and source.path else 1 for source in sources)


def _highest(values: NDArray[np.floating], count: int | None = None) -> NDArray[np.int64]:
    """Return the indices of the highest values, the highest first."""
    return np.argsort(-values, kind='stable')[:count]


def write_image(path: Path, image: NDArray[Any]) -> None:
    """Write a BGR image or a label map to a file and create its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not cv2.imwrite(str(path), image):
        raise UserError(f'{str(path)!r} cannot be written')
