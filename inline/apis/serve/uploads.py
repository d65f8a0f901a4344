"""Safe reading of uploaded files. Error messages contain the file name but no folder of the server."""

from dataclasses import dataclass
from pathlib import Path

from inline.datasets.image_file import HIGHEST_MAX_PIXELS, failure_reason, open_image
from inline.datasets.loading import LoadImage
from inline.utils.drawing import Image
from inline.utils.errors import UnreadableError, UserError

MEGA = 1_000_000


@dataclass(frozen=True)
class UploadLimits:
    """Maximum size of an uploaded file, in megabytes of 10⁶ bytes and in millions of pixels."""

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


def read_upload(path: Path, limits: UploadLimits) -> Image:
    """Read an image, BGR (H, W, 3), rotated according to its EXIF data."""
    name = path.name
    try:
        size = path.stat().st_size
        content = path.read_bytes() if size <= limits.bytes else b''
    except OSError as error:
        raise UnreadableError(f'{name!r} cannot be read: upload it again') from error
    if size > limits.bytes:
        raise UnreadableError(f'{name!r} has {size / MEGA:.1f} MB: the limit is {limits.megabytes:g} MB')
    if not content:
        raise UnreadableError(f'{name!r} cannot be read: the file is empty')
    image: Image = LoadImage(max_pixels=max(limits.pixels, 1)).decode(content, name)
    try:
        # OpenCV fills missing data with grey; Pillow raises.
        with open_image(content) as image_file:
            image_file.load()
    except Exception as error:  # Decoders can raise anything for a damaged file.
        raise UnreadableError(f'{name!r} cannot be read: {failure_reason(error)}') from error
    return image
