"""Safe reading of uploaded files. Error messages contain the file name but no folder of the server."""

import math
from dataclasses import dataclass
from pathlib import Path

from inline.datasets.decoder_process import DecoderProcess
from inline.datasets.image_file import HIGHEST_MAX_PIXELS, read_file
from inline.utils.drawing import Image
from inline.utils.errors import UnreadableError, UserError

MEGA = 1_000_000


@dataclass(frozen=True)
class UploadLimits:
    """Limits for an uploaded file.

    Attributes:
        megabytes: Maximum size in megabytes of 10⁶ bytes.
        megapixels: Maximum number of pixels in millions.
        seconds: Maximum time to decode it.
    """

    megabytes: float = 20
    megapixels: float = 25
    seconds: float = 10

    def __post_init__(self) -> None:
        if not self.megabytes > 0:
            raise UserError(f'--max-megabytes {self.megabytes:g}: must be greater than 0')
        if not 0 < self.megapixels <= HIGHEST_MAX_PIXELS / MEGA:
            raise UserError(
                f'--max-megapixels {self.megapixels:g}: must be greater than 0 '
                f'and at most {HIGHEST_MAX_PIXELS / MEGA:g}'
            )
        if not 0 < self.seconds < math.inf:
            raise UserError(f'--max-seconds {self.seconds:g}: must be greater than 0')

    @property
    def bytes(self) -> int:
        return int(self.megabytes * MEGA)

    @property
    def pixels(self) -> int:
        return int(self.megapixels * MEGA)


def read_upload(path: Path, limits: UploadLimits, decoder: DecoderProcess) -> Image:
    """Read an image, BGR (H, W, 3), rotated according to its EXIF data."""
    name = path.name
    try:
        size = path.stat().st_size
        content = read_file(path) if size <= limits.bytes else b''
    except OSError as error:
        raise UnreadableError(f'{name!r} cannot be read: upload it again') from error
    if size > limits.bytes:
        raise UnreadableError(f'{name!r} has {size / MEGA:.1f} MB: the limit is {limits.megabytes:g} MB')
    if not content:
        raise UnreadableError(f'{name!r} cannot be read: the file is empty')
    return decoder.decode(content, name, max(limits.pixels, 1))
