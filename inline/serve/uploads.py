"""What was dropped on the page, read with limits. Messages name files as the user does, without folders."""

from dataclasses import dataclass
from pathlib import Path

import mmcv
import numpy as np
from numpy.typing import NDArray

from inline.datasets.prepare.images import open_image, reason
from inline.datasets.reading import (
    HIGHEST_MAX_PIXELS,
    MAX_ASPECT_RATIO,
    check_header,
    has_no_end,
    why_unreadable,
)
from inline.errors import UnreadableError, UserError

MEGA = 1_000_000


@dataclass(frozen=True)
class Limits:
    """How large a file may be, in megabytes of 10⁶ bytes and millions of pixels."""

    megabytes: float = 20
    megapixels: float = 25

    def __post_init__(self) -> None:
        if not self.megabytes > 0:
            raise UserError(f'--max-megabytes {self.megabytes:g}: must be greater than 0')
        if not 0 < self.megapixels <= HIGHEST_MAX_PIXELS / MEGA:
            raise UserError(
                f'--max-megapixels {self.megapixels:g}: must be greater than 0 '
                f'and at most {HIGHEST_MAX_PIXELS / MEGA:g}'
            )

    @property
    def bytes(self) -> int:
        return int(self.megabytes * MEGA)

    @property
    def pixels(self) -> int:
        return int(self.megapixels * MEGA)


def read_upload(path: Path, limits: Limits) -> NDArray[np.uint8]:
    """The image in a file, BGR (H, W, 3), turned as its EXIF data say."""
    name = path.name
    try:
        size = path.stat().st_size
        content = path.read_bytes() if size <= limits.bytes else b''
    except OSError as error:
        raise UnreadableError(f'{name!r} cannot be read: drop it once more') from error
    if size > limits.bytes:
        raise UnreadableError(f'{name!r} has {size / MEGA:.1f} MB: at most {limits.megabytes:g} MB are read')
    if not content:
        raise UnreadableError(f'{name!r} cannot be read: the file is empty')
    check_header(content, name, limits.pixels)
    return _decode(content, name)


def _decode(content: bytes, name: str) -> NDArray[np.uint8]:
    if has_no_end(content):
        raise UnreadableError(f'{name!r} cannot be read: the file is truncated')
    try:
        # OpenCV fills what is missing with grey; Pillow reads to the end and tells.
        with open_image(content) as whole:
            whole.load()
        image = mmcv.imfrombytes(content)
    except Exception as error:  # A damaged file can make a decoder raise anything.
        raise UnreadableError(f'{name!r} cannot be read: {reason(error)}') from error
    if image is None:
        raise UnreadableError(f'{name!r} cannot be read: {why_unreadable(content)}')
    height, width = image.shape[:2]
    if max(height, width) > MAX_ASPECT_RATIO * min(height, width):
        raise UnreadableError(
            f'{name!r} has {width}x{height} pixels: one side may be {MAX_ASPECT_RATIO} times the other'
        )
    return image
