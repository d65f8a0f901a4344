"""Reading of image files, and checks of encoded images before they are decoded.

Files are untrusted: only regular files are read, Pillow tries a fixed list of formats, and the numbers of
pixels and JPEG scans are limited. This module does not import torch.
"""

import errno
import io
import os
import re
import stat
import struct
import warnings
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from inline.utils.errors import UnreadableError

# What mmpretrain reads by default, and everything that can be decoded.
MMPRETRAIN_EXTENSIONS = ('.jpg', '.jpeg', '.png', '.ppm', '.bmp', '.pgm', '.tif')
IMAGE_EXTENSIONS = (*MMPRETRAIN_EXTENSIONS, '.tiff', '.webp')
# The formats that OpenCV also decodes. Pillow's other readers are not used on untrusted files: the one for
# EPS starts Ghostscript.
PILLOW_FORMATS = (
    'AVIF', 'BMP', 'DIB', 'GIF', 'JPEG', 'JPEG2000', 'PNG', 'PPM', 'SUN', 'TIFF', 'WEBP',
)  # fmt: skip
# Sanity limit for the size of a file, far above any image of `HIGHEST_MAX_PIXELS`.
MAX_FILE_BYTES = 1 << 30
# Every scan of a progressive JPEG passes over the whole image, but may take only a few bytes of the file.
# Encoders write about 10; libtiff has the same limit.
MAX_JPEG_SCANS = 100
# Pillow, which reads the headers, raises above this number of pixels.
HIGHEST_MAX_PIXELS = 2 * (Image.MAX_IMAGE_PIXELS or 0)
# Resizing a longer image to a fixed width leaves no height, and to a fixed height an enormous width.
MAX_ASPECT_RATIO = 100
_PNG_START = b'\x89PNG\r\n\x1a\n\0\0\0\rIHDR'
_JPEG_START, _JPEG_END, _JPEG_SCAN = b'\xff\xd8', b'\xff\xd9', b'\xff\xda'
# Not a marker: 0xFF in encoded pixels (followed by 0), padding (0xFF), and restart points (0xD0 to 0xD7).
_JPEG_MARKER = re.compile(rb'\xff[\x02-\xcf\xd8-\xfe]')
# Start-of-frame markers; 0xC4, 0xC8 and 0xCC in this range have other meanings.
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# OpenCV returns the values of these modes as if they were RGB, or cannot convert them to 8 bits.
_UNSUPPORTED_MODES = {
    'LAB': 'CIELAB images are not supported',
    'F': '32-bit images are not supported',
    'I': '32-bit images are not supported',
}


def read_file(path: str | os.PathLike[str], max_bytes: int | None = MAX_FILE_BYTES) -> bytes:
    """Read a regular file. Raise an OSError for a device, pipe or folder, which may block or never end."""
    try:
        with open(path, 'rb', opener=_open_without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, 'not a regular file')
            if max_bytes is not None and status.st_size > max_bytes:
                text = f'the file has {status.st_size:,} bytes: at most {max_bytes:,} are allowed'
                raise OSError(errno.EFBIG, text)
            return file.read()
    except ValueError as error:
        raise OSError(errno.EINVAL, 'the file name contains a NUL character') from error


def _open_without_waiting(path: str, flags: int) -> int:
    # Opening a named pipe would otherwise wait for a writer. For regular files the flag has no effect.
    return os.open(path, flags | getattr(os, 'O_NONBLOCK', 0))


def file_name_error(name: str) -> str | None:
    """Return why an image name in an annotation file is not allowed; None if it is.

    Datasets join the name to their image folder: an absolute path would replace the folder.
    """
    if '\0' in name:
        return 'contains a NUL character'
    if '://' in name:
        return 'is a URL'
    if name.startswith('/'):
        return 'is absolute'
    return "contains '..'" if '..' in name.split('/') else None


def open_image(content: bytes) -> Image.Image:
    """Open an encoded image with Pillow, which reads only the header at first.

    Raises an OSError for other formats than :data:`PILLOW_FORMATS`, and for a JPEG with too many scans.
    """
    _check_scans(content)
    with warnings.catch_warnings():
        # Invalid metadata does not matter here.
        warnings.simplefilter('ignore')
        return Image.open(io.BytesIO(content), formats=PILLOW_FORMATS)


def decode_image(
    decode: Callable[[bytes], NDArray[np.uint8] | None], content: bytes, path: str
) -> NDArray[np.uint8]:
    """Return ``decode(content)``, an image (H, W, ...); raise an :class:`UnreadableError` if it fails.

    Call :func:`check_header` first.

    Args:
        decode: Returns None or raises any exception for content that it cannot decode.
        content: The encoded image.
        path: Name of the image in messages.
    """
    image, error = None, None
    try:
        image = decode(content)
    except Exception as caught:  # Decoders may raise any exception for damaged files.
        error = caught
    if image is None:
        raise UnreadableError(f'{path!r} cannot be read: {opencv_failure_reason(content)}') from error
    check_aspect_ratio(image.shape, path)
    return image


def failure_reason(error: Exception) -> str:
    """Return a short reason for an error raised while opening or decoding an image."""
    if isinstance(error, UnidentifiedImageError):
        return 'not an image'
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error) or type(error).__name__).splitlines()[0]


def opencv_failure_reason(content: bytes) -> str:
    """Return why OpenCV cannot decode an image; Pillow gives a reason, OpenCV does not."""
    try:
        with open_image(content) as image:
            image.load()
            return _UNSUPPORTED_MODES.get(image.mode, f'OpenCV cannot decode this {image.format}')
    except Exception as error:  # Decoders may raise any exception for damaged files.
        return failure_reason(error)


def check_header(content: bytes, path: str, max_pixels: int) -> None:
    """Raise an :class:`UnreadableError` for content that must not be decoded.

    That is an unknown format, too many pixels or JPEG scans, an unsupported color space, or a truncated JPEG.
    """
    size = header_size(content)
    if size is None:
        try:
            with open_image(content) as image:
                size, mode = image.size, image.mode
        except Image.DecompressionBombError as error:
            raise UnreadableError(f'{path!r} has more than {HIGHEST_MAX_PIXELS:,} pixels') from error
        except Exception as error:  # Decoders may raise any exception for damaged files.
            raise UnreadableError(f'{path!r} cannot be read: {failure_reason(error)}') from error
        if mode == 'LAB':
            raise UnreadableError(f'{path!r} cannot be read: {_UNSUPPORTED_MODES[mode]}')
    if size[0] * size[1] > max_pixels:
        raise UnreadableError(f'{path!r} is {size[0]}x{size[1]} pixels: at most {max_pixels:,} are allowed')
    try:
        _check_scans(content)
    except OSError as error:
        raise UnreadableError(f'{path!r} cannot be read: {failure_reason(error)}') from error
    if is_truncated_jpeg(content):
        raise UnreadableError(f'{path!r} cannot be read: the file is truncated')


def check_aspect_ratio(shape: tuple[int, ...], path: str) -> None:
    """Raise an :class:`UnreadableError` if an image of `shape` (H, W, ...) is extremely wide or high."""
    height, width = shape[:2]
    if max(height, width) > MAX_ASPECT_RATIO * min(height, width):
        raise UnreadableError(
            f'{path!r} is {width}x{height} pixels: the aspect ratio must be at most {MAX_ASPECT_RATIO}'
        )


def header_size(content: bytes) -> tuple[int, int] | None:
    """Return width and height from the header of a JPEG or PNG, None for other formats.

    Opening a JPEG with Pillow takes a tenth of the time of decoding it; this takes almost none.
    """
    if content.startswith(_PNG_START) and len(content) > 24:
        return struct.unpack_from('>II', content, 16)
    frame = _jpeg_frame_offset(content)
    if frame is None:
        return None
    height, width = struct.unpack_from('>HH', content, frame + 5)
    return width, height


def is_truncated_jpeg(content: bytes) -> bool:
    """Return whether a JPEG has no end marker. Decoders may read the zeros of a partial copy as pixels."""
    if content.endswith(_JPEG_END):
        return False
    # Encoded pixels never contain the end marker, but an embedded preview before the frame does.
    frame = _jpeg_frame_offset(content)
    return frame is not None and content.find(_JPEG_END, frame) < 0


def count_jpeg_scans(content: bytes) -> int:
    """Return the number of scans of a JPEG, by following its markers to the end of the image."""
    scans = offset = 0
    while (found := _JPEG_MARKER.search(content, offset)) and found[0] != _JPEG_END:
        offset = found.end()
        scans += found[0] == _JPEG_SCAN
        if found[0] != _JPEG_START:
            # The length of the segment, which includes these two bytes.
            offset += int.from_bytes(content[offset : offset + 2], 'big')
    return scans


def _check_scans(content: bytes) -> None:
    # Previews in the metadata and data after the image only add to this number, which takes no time to find.
    if not content.startswith(_JPEG_START) or content.count(_JPEG_SCAN) <= MAX_JPEG_SCANS:
        return
    scans = count_jpeg_scans(content)
    if scans > MAX_JPEG_SCANS:
        raise OSError(errno.EFBIG, f'a JPEG with {scans:,} scans: at most {MAX_JPEG_SCANS} are allowed')


def _jpeg_frame_offset(content: bytes) -> int | None:
    """Return the offset of the start-of-frame segment, which holds the size of a JPEG."""
    offset = 2 if content.startswith(_JPEG_START) else len(content)
    while offset + 9 <= len(content) and content[offset] == 0xFF:
        if content[offset + 1] in _JPEG_FRAMES:
            return offset
        offset += 2 + int.from_bytes(content[offset + 2 : offset + 4], 'big')
    return None
