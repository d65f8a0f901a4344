"""Image and label map loaders with a defined outcome for every kind of invalid file.

Valid files give the same values as the transforms of the toolboxes. See ``docs/data_validation.md``.
"""

from collections.abc import Sequence
from typing import Any

import mmcv
import numpy as np
from mmcv.transforms import BaseTransform, LoadImageFromFile
from mmengine import fileio
from mmengine.dataset import Compose
from numpy.typing import NDArray
from PIL import Image

from inline.datasets.image_file import (
    HIGHEST_MAX_PIXELS,
    check_header,
    decode_image,
    failure_reason,
    open_image,
    read_file,
)
from inline.datasets.read_watch import notes
from inline.registry import TRANSFORMS
from inline.utils.errors import BadDataError, UnreadableError, UserError

DEFAULT_MAX_PIXELS = 100_000_000
IGNORE_INDEX = 255

Results = dict[str, Any]


@TRANSFORMS.register_module()
class LoadImage(LoadImageFromFile):
    """mmcv's ``LoadImageFromFile`` that raises an :class:`UnreadableError` for every unusable file.

    Grayscale images get three equal channels, palette images become RGB, CMYK becomes RGB, alpha is dropped,
    16 bits become the upper 8, and the first of several frames is used. The EXIF orientation is applied
    unless the annotations have the size of the unrotated image.

    Args:
        max_pixels: Larger images are rejected by their header, before memory is allocated.
    """

    def __init__(
        self,
        to_float32: bool = False,
        color_type: str = 'color',
        imdecode_backend: str = 'cv2',
        ignore_empty: bool = False,
        *,
        backend_args: dict[str, Any] | None = None,
        max_pixels: int = DEFAULT_MAX_PIXELS,
    ) -> None:
        super().__init__(
            to_float32, color_type, imdecode_backend, None, ignore_empty, backend_args=backend_args
        )
        if not 1 <= max_pixels <= HIGHEST_MAX_PIXELS:
            raise UserError(f'max_pixels {max_pixels}: must be from 1 to {HIGHEST_MAX_PIXELS:,}')
        self.max_pixels = max_pixels

    def transform(self, results: Results) -> Results | None:
        path = results['img_path']
        try:
            image = self._load(read_bytes(path, self.backend_args), path, results)
        except UnreadableError:
            if self.ignore_empty:
                return None
            raise
        results['img'] = image.astype(np.float32) if self.to_float32 else image
        results['img_shape'] = results['ori_shape'] = image.shape[:2]
        return results

    def decode(self, content: bytes, path: str) -> NDArray[np.uint8]:
        """Decode the content of a file. Error messages contain `path`."""
        check_header(content, path, self.max_pixels)
        return self._decode(content, path, self.color_type)

    def _load(self, content: bytes, path: str, results: Results) -> NDArray[np.uint8]:
        """Decode an image and check that it has the size of its annotations, if they give one."""
        image = self.decode(content, path)
        if 'height' not in results or 'width' not in results:
            return image
        expected = results['height'], results['width']
        if image.shape[:2] == expected[::-1] != expected and self.color_type in ('color', 'grayscale'):
            image = self._decode(content, path, f'{self.color_type}_ignore_orientation')
        if image.shape[:2] != expected:
            raise UnreadableError(
                f'{path!r} is {_size(image)} pixels, but its annotations are for {expected[1]}x{expected[0]}'
            )
        return image

    def _decode(self, content: bytes, path: str, flag: str) -> NDArray[np.uint8]:
        def decode(encoded: bytes) -> NDArray[np.uint8] | None:
            image: NDArray[np.uint8] | None = mmcv.imfrombytes(
                encoded, flag=flag, backend=self.imdecode_backend
            )
            return image

        return decode_image(decode, content, path)


@TRANSFORMS.register_module()
class CacheImages(BaseTransform):
    """Keep the output of the first, deterministic transforms in memory: small images are decoded only once.

    Each worker process caches the images that it reads, so use few workers, and keep them
    (``persistent_workers=True``).

    Args:
        transforms: Configs of transforms without randomness, which load and resize an image.
    """

    def __init__(self, transforms: Sequence[dict[str, Any]]) -> None:
        self._transforms = Compose(transforms)
        self._cache: dict[int, Results] = {}

    def transform(self, results: Results) -> Results:
        index = results['sample_idx']
        if index not in self._cache:
            known = set(results)
            loaded = self._transforms(results)
            self._cache[index] = {key: value for key, value in loaded.items() if key not in known}
        # Later transforms may change the image in place.
        return {**results, **self._cache[index], 'img': self._cache[index]['img'].copy()}


@TRANSFORMS.register_module()
class LoadLabelMap(BaseTransform):
    """mmseg's ``LoadAnnotations`` with checks of size, channels and labels.

    An unreadable file raises an :class:`UnreadableError`, so that training skips it. A label map with
    several channels, with a different size than its image or with invalid labels raises a
    :class:`BadDataError`, which stops the run. A dataset such as
    :class:`inline.datasets.image_pairs.ImagePairs` may map stored values or colors to classes.

    Args:
        num_classes: Labels must be below this or 255 (ignored), after `reduce_zero_label` and `label_map`.
            By default every label is allowed.
        reduce_zero_label: Whether label 0 is ignored and the others are reduced by one. None for the setting
            of the dataset.
    """

    def __init__(
        self,
        num_classes: int = IGNORE_INDEX,
        reduce_zero_label: bool | None = None,
        *,
        backend_args: dict[str, Any] | None = None,
        max_pixels: int = DEFAULT_MAX_PIXELS,
    ) -> None:
        self.num_classes = num_classes
        self.reduce_zero_label = reduce_zero_label
        self.backend_args = backend_args
        self.max_pixels = max_pixels

    def transform(self, results: Results) -> Results:
        path = results['seg_map_path']
        stored = self._read(path, bool(results.get('color_coded')))
        if 'ori_shape' in results and stored.shape != tuple(results['ori_shape']):
            height, width = results['ori_shape']
            raise BadDataError(
                f'label map {path!r} is {_size(stored)} pixels, but its image is {width}x{height}'
            )
        if results.get('label_values') is not None:
            labels = _look_up(stored, results['label_values'], path, bool(results.get('color_coded')))
        else:
            labels = self._map_labels(stored, results, path)
        # Adding 1 in uint8 turns 255 (ignored) into 0, which is below the limit.
        if self.num_classes < IGNORE_INDEX and int((labels + np.uint8(1)).max()) > self.num_classes:
            invalid = np.argwhere((labels >= self.num_classes) & (labels != IGNORE_INDEX))
            raise self._label_error(stored, invalid[0], path, results)
        results['gt_seg_map'] = labels
        results['seg_fields'].append('gt_seg_map')
        return results

    def _read(self, path: str, color_coded: bool = False) -> NDArray[np.integer[Any]]:
        """Return the labels (H, W), or with `color_coded` the colors as ``0xRRGGBB``."""
        content = read_bytes(path, self.backend_args)
        check_header(content, path, self.max_pixels)
        try:
            with open_image(content) as image:
                stored = pack_colors(image) if color_coded else np.array(image)
        except Exception as error:  # Decoders may raise any exception for damaged files.
            raise UnreadableError(f'label map {path!r} cannot be read: {failure_reason(error)}') from error
        if stored.ndim != 2:
            raise BadDataError(
                f'label map {path!r} has {stored.shape[-1]} channels: must have one, with class indices'
            )
        return stored

    def _map_labels(self, stored: NDArray[np.integer[Any]], results: Results, path: str) -> NDArray[np.uint8]:
        """Convert to uint8 and apply `reduce_zero_label` and `label_map`."""
        if stored.dtype != np.uint8 and stored.dtype != np.bool_:
            invalid = np.argwhere((stored < 0) | (stored > IGNORE_INDEX) | (stored % 1 != 0))
            if len(invalid):
                raise self._label_error(stored, invalid[0], path, results)
        labels = stored.astype(np.uint8)
        if self._reduces_zero_label(results):
            # 0 wraps around to 255; 255 must not become 254.
            labels[labels == IGNORE_INDEX] = 0
            labels = labels - np.uint8(1)
        if results.get('label_map') is not None:
            original = labels.copy()
            for old, new in results['label_map'].items():
                labels[original == old] = new
        return labels

    def _reduces_zero_label(self, results: Results) -> bool:
        of_dataset = bool(results.get('reduce_zero_label'))
        if self.reduce_zero_label is not None and self.reduce_zero_label != of_dataset:
            raise UserError(
                f'reduce_zero_label is {self.reduce_zero_label} in the pipeline '
                f'but {of_dataset} in the dataset'
            )
        return of_dataset

    def _label_error(
        self, stored: NDArray[np.integer[Any]], index: NDArray[np.intp], path: str, results: Results
    ) -> BadDataError:
        first = int(self._reduces_zero_label(results))
        y, x = int(index[0]), int(index[1])
        allowed = f'{first} to {self.num_classes - 1 + first}, or {IGNORE_INDEX}{" or 0" if first else ""}'
        return BadDataError(
            f'label map {path!r} has label {stored[y, x]} at x={x}, y={y}: must be {allowed} (ignored)'
        )


def pack_colors(image: Image.Image) -> NDArray[np.int32]:
    """Return the colors of an image as ``0xRRGGBB``, (H, W); alpha is dropped."""
    red, green, blue = np.moveaxis(np.asarray(image.convert('RGB'), np.int32), -1, 0)
    return (red << 16) | (green << 8) | blue


def format_stored(value: float, is_color: bool) -> str:
    """Describe a value of a label map: ``label 3``, or ``color 128 64 128``."""
    if is_color:
        packed = int(value)
        return f'color {packed >> 16} {packed >> 8 & 255} {packed & 255}'
    return f'label {value:g}'


def _look_up(stored: NDArray[Any], table: NDArray[np.int64], path: str, is_color: bool) -> NDArray[np.uint8]:
    """Replace stored values by class indices; `table` has sorted rows of a value and its index."""
    rows = np.minimum(np.searchsorted(table[:, 0], stored), len(table) - 1)
    invalid = np.argwhere(table[rows, 0] != stored)
    if len(invalid):
        y, x = (int(i) for i in invalid[0])
        allowed = [format_stored(value, is_color) for value in table[:8, 0]]
        more = ', …' if len(table) > len(allowed) else ''
        raise BadDataError(
            f'label map {path!r} has {format_stored(stored[y, x], is_color)} at x={x}, y={y}: '
            f'must be one of {", ".join(allowed)}{more}'
        )
    return table[rows, 1].astype(np.uint8)


def read_bytes(path: str, backend_args: dict[str, Any] | None) -> bytes:
    """Read a file with MMEngine's backends; raise an :class:`UnreadableError` if it is missing or empty."""
    notes.begin(path)
    try:
        backend = fileio.get_file_backend(path, backend_args=backend_args, enable_singleton=True)
        content = read_file(path) if isinstance(backend, fileio.LocalBackend) else backend.get(path)
    except OSError as error:
        raise UnreadableError(f'{path!r} cannot be read: {failure_reason(error)}') from error
    finally:
        notes.end()
    if not content:
        raise UnreadableError(f'{path!r} cannot be read: the file is empty')
    return content


def _size(image: NDArray[Any]) -> str:
    return f'{image.shape[1]}x{image.shape[0]}'
