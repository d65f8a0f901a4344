"""Reading images and label maps so that each kind of bad file has one defined outcome.

Good files give the same numbers as the toolboxes' own transforms. See ``docs/bad_data.md``.
"""

import struct
from typing import Any

import mmcv
import numpy as np
from mmcv.transforms import BaseTransform, LoadImageFromFile
from mmengine import fileio
from numpy.typing import NDArray
from PIL import Image

from inline.datasets.own_data import IGNORED_LABEL
from inline.datasets.prepare.images import open_image, reason
from inline.errors import BadDataError, UnreadableError, UserError
from inline.registry import TRANSFORMS

DEFAULT_MAX_PIXELS = 100_000_000
# Pillow, which reads the headers, goes no further.
HIGHEST_MAX_PIXELS = 2 * (Image.MAX_IMAGE_PIXELS or 0)
# A longer image has no height left where its width is fitted, or no end where its height is.
MAX_ASPECT_RATIO = 100
_PNG_START = b'\x89PNG\r\n\x1a\n\0\0\0\rIHDR'
_JPEG_START, _JPEG_END = b'\xff\xd8', b'\xff\xd9'
# The segments of a JPEG that hold its size; three numbers among them are of other segments.
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# OpenCV hands the numbers of these on as if they were colours, or has no 8-bit form of them.
_FOREIGN_MODES = {'LAB': 'its colours are CIELAB', 'F': 'its pixels are 32-bit', 'I': 'its pixels are 32-bit'}

Results = dict[str, Any]


@TRANSFORMS.register_module()
class LoadImage(LoadImageFromFile):
    """mmcv's transform with an :class:`UnreadableError` that names the file for whatever cannot be used.

    Images of one channel get three equal ones, palettes become colours, CMYK becomes RGB, opacity is left
    out, 16 bits become the upper 8, and of several frames the first is taken. An image is turned as its
    EXIF data say, unless the annotations give the size of the image that is not turned.

    Args:
        max_pixels: Images of more pixels are refused by their header, before memory is taken for them.
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
            image = self._fitting(read_bytes(path, self.backend_args), path, results)
        except UnreadableError:
            if self.ignore_empty:
                return None
            raise
        results['img'] = image.astype(np.float32) if self.to_float32 else image
        results['img_shape'] = results['ori_shape'] = image.shape[:2]
        return results

    def _fitting(self, content: bytes, path: str, results: Results) -> NDArray[np.uint8]:
        """The image in the size that annotations give, where they give one."""
        check_header(content, path, self.max_pixels)
        if has_no_end(content):
            raise UnreadableError(f'{path!r} cannot be read: the file is truncated')
        image = self._decode(content, path, self.color_type)
        if 'height' not in results or 'width' not in results:
            return image
        expected = results['height'], results['width']
        if image.shape[:2] == expected[::-1] != expected and self.color_type in ('color', 'grayscale'):
            image = self._decode(content, path, f'{self.color_type}_ignore_orientation')
        if image.shape[:2] != expected:
            raise UnreadableError(
                f'{path!r} has {_size(image)} pixels, but its annotations are of {expected[1]}x{expected[0]}'
            )
        return image

    def _decode(self, content: bytes, path: str, flag: str) -> NDArray[np.uint8]:
        try:
            image = mmcv.imfrombytes(content, flag=flag, backend=self.imdecode_backend)
        except Exception as error:  # A damaged file can make a decoder raise anything.
            raise UnreadableError(f'{path!r} cannot be read: {why_unreadable(content)}') from error
        if image is None:
            raise UnreadableError(f'{path!r} cannot be read: {why_unreadable(content)}')
        if max(image.shape[:2]) > MAX_ASPECT_RATIO * min(image.shape[:2]):
            raise UnreadableError(
                f'{path!r} has {_size(image)} pixels: one side may be {MAX_ASPECT_RATIO} times the other'
            )
        return image


@TRANSFORMS.register_module()
class LoadLabelMap(BaseTransform):
    """mmseg's ``LoadAnnotations`` that takes nothing for a label that is none.

    A file that cannot be read is an :class:`UnreadableError`. A label map that can be read but not be meant
    is a :class:`BadDataError`, which ends the run: of another size than its image, with several channels, or
    with labels beyond the classes.

    Args:
        num_classes: Labels are less than this, or 255 for none, after all changes of the labels.
        reduce_zero_label: Label 0 is none, and the others count from 1; None for what the data set says.
    """

    def __init__(
        self,
        num_classes: int,
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
        stored = self._read(path)
        if 'ori_shape' in results and stored.shape != tuple(results['ori_shape']):
            height, width = results['ori_shape']
            raise BadDataError(
                f'label map {path!r} has {_size(stored)} pixels, but its image has {width}x{height}'
            )
        labels = self._renumber(stored, results, path)
        # 255 becomes 0 here, so that it is below any limit.
        if self.num_classes < IGNORED_LABEL and int((labels + np.uint8(1)).max()) > self.num_classes:
            where = np.argwhere((labels >= self.num_classes) & (labels != IGNORED_LABEL))[0]
            raise self._out_of_range(stored, where, path, results)
        results['gt_seg_map'] = labels
        results['seg_fields'].append('gt_seg_map')
        return results

    def _read(self, path: str) -> NDArray[np.integer[Any]]:
        content = read_bytes(path, self.backend_args)
        check_header(content, path, self.max_pixels)
        try:
            with open_image(content) as image:
                stored = np.array(image)
        except Exception as error:  # A damaged file can make a decoder raise anything.
            raise UnreadableError(f'label map {path!r} cannot be read: {reason(error)}') from error
        if stored.ndim != 2:
            raise BadDataError(
                f'label map {path!r} has {stored.shape[-1]} channels: must have one, of numbers of classes'
            )
        return stored

    def _renumber(self, stored: NDArray[np.integer[Any]], results: Results, path: str) -> NDArray[np.uint8]:
        if stored.dtype != np.uint8 and stored.dtype != np.bool_:
            beyond = np.argwhere((stored < 0) | (stored > IGNORED_LABEL) | (stored % 1 != 0))
            if len(beyond):
                raise self._out_of_range(stored, beyond[0], path, results)
        labels = stored.astype(np.uint8)
        if self._reduces(results):
            # 0 becomes 255, and 255 would become 254.
            labels[labels == IGNORED_LABEL] = 0
            labels = labels - np.uint8(1)
        if results.get('label_map') is not None:
            before = labels.copy()
            for old, new in results['label_map'].items():
                labels[before == old] = new
        return labels

    def _reduces(self, results: Results) -> bool:
        of_data = bool(results.get('reduce_zero_label'))
        if self.reduce_zero_label is not None and self.reduce_zero_label != of_data:
            raise UserError(
                f'reduce_zero_label is {self.reduce_zero_label} in the pipeline and {of_data} in the data set'
            )
        return of_data

    def _out_of_range(
        self, stored: NDArray[np.integer[Any]], at: NDArray[np.intp], path: str, results: Results
    ) -> BadDataError:
        first = int(self._reduces(results))
        y, x = int(at[0]), int(at[1])
        last = self.num_classes - 1 + first
        allowed = f'{first} to {last}, or {IGNORED_LABEL}{" or 0" if first else ""} for none'
        return BadDataError(
            f'label map {path!r} has {stored[y, x]} at x={x}, y={y}: labels must be {allowed}'
        )


def read_bytes(path: str, backend_args: dict[str, Any] | None) -> bytes:
    try:
        content = fileio.get(path, backend_args=backend_args)
    except OSError as error:
        raise UnreadableError(f'{path!r} cannot be read: {reason(error)}') from error
    if not content:
        raise UnreadableError(f'{path!r} cannot be read: the file is empty')
    return content


def check_header(content: bytes, path: str, max_pixels: int) -> None:
    """Refuse an image that would take too much memory, or whose numbers are not colours or labels."""
    size = quick_size(content)
    if size is None:
        try:
            with open_image(content) as image:
                size, mode = image.size, image.mode
        except Image.DecompressionBombError as error:
            raise UnreadableError(f'{path!r} has more than {HIGHEST_MAX_PIXELS:,} pixels') from error
        except Exception as error:  # A damaged file can make a decoder raise anything.
            raise UnreadableError(f'{path!r} cannot be read: {reason(error)}') from error
        if mode == 'LAB':
            raise UnreadableError(f'{path!r} cannot be read: {_FOREIGN_MODES[mode]}')
    if size[0] * size[1] > max_pixels:
        raise UnreadableError(f'{path!r} has {size[0]}x{size[1]} pixels: at most {max_pixels:,} are read')


def quick_size(content: bytes) -> tuple[int, int] | None:
    """Width and height in the header of a JPEG or PNG, None for what must be looked at more closely.

    Opening a JPEG with Pillow takes a tenth of the time that decoding it does.
    """
    if content.startswith(_PNG_START) and len(content) > 24:
        return struct.unpack_from('>II', content, 16)
    frame = _jpeg_frame(content)
    if frame is None:
        return None
    height, width = struct.unpack_from('>HH', content, frame + 5)
    return width, height


def has_no_end(content: bytes) -> bool:
    """Whether a JPEG stops before its end. Decoders may take the zeros of a half-written file for pixels."""
    if content.endswith(_JPEG_END):
        return False
    # Pixels are written so that these two bytes are not among them; a preview before them has them too.
    frame = _jpeg_frame(content)
    return frame is not None and content.find(_JPEG_END, frame) < 0


def _jpeg_frame(content: bytes) -> int | None:
    """Where the segment of a JPEG begins that holds its size."""
    at = 2 if content.startswith(_JPEG_START) else len(content)
    while at + 9 <= len(content) and content[at] == 0xFF:
        if content[at + 1] in _JPEG_FRAMES:
            return at
        at += 2 + int.from_bytes(content[at + 2 : at + 4], 'big')
    return None


def why_unreadable(content: bytes) -> str:
    """The reason that Pillow gives, which has words for it: OpenCV gives none."""
    try:
        with open_image(content) as image:
            image.load()
            return _FOREIGN_MODES.get(image.mode, f'it is damaged, says OpenCV of this {image.format}')
    except Exception as error:  # A damaged file can make a decoder raise anything.
        return reason(error)


def _size(image: NDArray[Any]) -> str:
    return f'{image.shape[1]}x{image.shape[0]}'
