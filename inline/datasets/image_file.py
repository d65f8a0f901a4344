"""Checks of encoded images: size limits from the header, truncated files, and the reason of a failure."""

import io
import struct
import warnings

from PIL import Image, UnidentifiedImageError

from inline.utils.errors import UnreadableError

# What mmpretrain reads by default, and everything that can be decoded.
MMPRETRAIN_EXTENSIONS = ('.jpg', '.jpeg', '.png', '.ppm', '.bmp', '.pgm', '.tif')
IMAGE_EXTENSIONS = (*MMPRETRAIN_EXTENSIONS, '.tiff', '.webp')
# Pillow, which reads the headers, raises above this number of pixels.
HIGHEST_MAX_PIXELS = 2 * (Image.MAX_IMAGE_PIXELS or 0)
# Resizing a longer image to a fixed width leaves no height, and to a fixed height an enormous width.
MAX_ASPECT_RATIO = 100
_PNG_START = b'\x89PNG\r\n\x1a\n\0\0\0\rIHDR'
_JPEG_START, _JPEG_END = b'\xff\xd8', b'\xff\xd9'
# Start-of-frame markers; 0xC4, 0xC8 and 0xCC in this range have other meanings.
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# OpenCV returns the values of these modes as if they were RGB, or cannot convert them to 8 bits.
_UNSUPPORTED_MODES = {
    'LAB': 'CIELAB images are not supported',
    'F': '32-bit images are not supported',
    'I': '32-bit images are not supported',
}


def open_image(content: bytes) -> Image.Image:
    """Open an encoded image with Pillow, which reads only the header at first."""
    with warnings.catch_warnings():
        # Invalid metadata does not matter here.
        warnings.simplefilter('ignore')
        return Image.open(io.BytesIO(content))


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
    except Exception as error:  # Decoders raise any exception for damaged files.
        return failure_reason(error)


def check_header(content: bytes, path: str, max_pixels: int) -> None:
    """Raise an :class:`UnreadableError` for an image with too many pixels or an unsupported color space."""
    size = header_size(content)
    if size is None:
        try:
            with open_image(content) as image:
                size, mode = image.size, image.mode
        except Image.DecompressionBombError as error:
            raise UnreadableError(f'{path!r} has more than {HIGHEST_MAX_PIXELS:,} pixels') from error
        except Exception as error:  # Decoders raise any exception for damaged files.
            raise UnreadableError(f'{path!r} cannot be read: {failure_reason(error)}') from error
        if mode == 'LAB':
            raise UnreadableError(f'{path!r} cannot be read: {_UNSUPPORTED_MODES[mode]}')
    if size[0] * size[1] > max_pixels:
        raise UnreadableError(f'{path!r} is {size[0]}x{size[1]} pixels: at most {max_pixels:,} are allowed')


def check_aspect_ratio(shape: tuple[int, ...], path: str) -> None:
    """Raise an :class:`UnreadableError` if an image of `shape` (H, W, ...) is extremely long or high."""
    height, width = shape[:2]
    if max(height, width) > MAX_ASPECT_RATIO * min(height, width):
        raise UnreadableError(
            f'{path!r} is {width}x{height} pixels: the aspect ratio must be at most {MAX_ASPECT_RATIO}'
        )


def header_size(content: bytes) -> tuple[int, int] | None:
    """Return width and height from the header of a JPEG or PNG, None for other formats.

    Opening a JPEG with Pillow takes a tenth of the time of decoding it; this takes next to none.
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


def _jpeg_frame_offset(content: bytes) -> int | None:
    """Return the offset of the start-of-frame segment, which holds the size of a JPEG."""
    offset = 2 if content.startswith(_JPEG_START) else len(content)
    while offset + 9 <= len(content) and content[offset] == 0xFF:
        if content[offset + 1] in _JPEG_FRAMES:
            return offset
        offset += 2 + int.from_bytes(content[offset + 2 : offset + 4], 'big')
    return None
