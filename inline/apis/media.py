"""Images from URLs, and the frames of videos."""

import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import cv2
import numpy as np

from inline.utils.drawing import Image
from inline.utils.errors import UnreadableError, UserError

URL_SCHEMES = ('http', 'https')
VIDEO_EXTENSIONS = frozenset(('.avi', '.m4v', '.mkv', '.mov', '.mp4', '.mpeg', '.mpg', '.webm', '.wmv'))
MAX_DOWNLOAD_BYTES = 100_000_000
# Seconds without any data, and for the whole download.
CONNECTION_TIMEOUT = 20
DOWNLOAD_TIMEOUT = 120
_CHUNK_BYTES = 1 << 16
# Indexes of some formats give an estimate: report a video as incomplete only if more frames are missing.
_MIN_DECODED_SHARE = 0.9

# OpenCV and FFmpeg write several lines to stderr for a damaged file; the error message here is one line.
os.environ.setdefault('OPENCV_FFMPEG_LOGLEVEL', '8')


def is_url(text: str) -> bool:
    return '://' in text


def check_url(url: str) -> None:
    """Raise a :class:`UserError` unless `url` is an http or https URL."""
    parts = urlsplit(url)
    if parts.scheme not in URL_SCHEMES or not parts.hostname:
        raise UserError(f'image {url!r}: a URL must start with http:// or https://')


def download_image(url: str) -> bytes:
    """Return the content of an http or https URL, within limits of size and time."""
    deadline = time.monotonic() + DOWNLOAD_TIMEOUT
    content = bytearray()
    try:
        with _opener().open(url, timeout=CONNECTION_TIMEOUT) as response:
            if int(response.headers.get('Content-Length') or 0) > MAX_DOWNLOAD_BYTES:
                raise UnreadableError(_too_large(url))
            # read1 returns after every packet, so that the deadline also ends a slow download.
            while chunk := response.read1(_CHUNK_BYTES):
                content += chunk
                if len(content) > MAX_DOWNLOAD_BYTES:
                    raise UnreadableError(_too_large(url))
                if time.monotonic() > deadline:
                    raise TimeoutError(f'not complete after {DOWNLOAD_TIMEOUT} seconds')
    except UnreadableError:
        raise
    except (OSError, ValueError, http.client.HTTPException) as error:
        is_status = isinstance(error, urllib.error.HTTPError)
        reason = error if is_status else getattr(error, 'reason', None) or error
        raise UnreadableError(f'image {url!r} cannot be downloaded: {reason}') from error
    if not content:
        raise UnreadableError(f'image {url!r} cannot be read: the response is empty')
    return bytes(content)


def _opener() -> urllib.request.OpenerDirector:
    """Return an opener for http and https only, including redirects."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPRedirectHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
    ):
        opener.add_handler(handler)
    return opener


def _too_large(url: str) -> str:
    return f'image {url!r} has more than {MAX_DOWNLOAD_BYTES // 10**6} MB, which is the limit'


def is_video(path: Path) -> bool:
    return path.suffix.lower() in VIDEO_EXTENSIONS


def count_frames(path: Path) -> int:
    """Return the number of frames that the header of a video gives, which some formats only estimate.

    Returns 0 for a file that cannot be opened: reading its frames raises.
    """
    with _open_video(path) as capture:
        return max(int(capture.get(cv2.CAP_PROP_FRAME_COUNT)), 0)


def read_frames(path: Path, max_pixels: int) -> Iterator[Image]:
    """Yield the frames of a video, BGR (H, W, 3), with the rotation of its metadata applied."""
    with _open_video(path) as capture:
        size = [int(capture.get(key)) for key in (cv2.CAP_PROP_FRAME_WIDTH, cv2.CAP_PROP_FRAME_HEIGHT)]
        if size[0] * size[1] > max_pixels:
            raise UnreadableError(
                f'video {str(path)!r} is {size[0]}x{size[1]} pixels: at most {max_pixels:,} are allowed'
            )
        expected, count = int(capture.get(cv2.CAP_PROP_FRAME_COUNT)), 0
        while True:
            success, frame = capture.read()
            if not success:
                break
            count += 1
            yield np.asarray(frame)
    if not count:
        raise UnreadableError(f'video {str(path)!r} cannot be read: OpenCV decodes no frame of it')
    if count < _MIN_DECODED_SHARE * expected:
        raise UnreadableError(
            f'video {str(path)!r} cannot be read to the end: {count} of {expected} frames were decoded'
        )


@contextmanager
def _open_video(path: Path) -> Iterator[cv2.VideoCapture]:
    level = cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_ERROR)
    # Other backends accept devices, URLs and numbered images.
    capture = cv2.VideoCapture(str(path), cv2.CAP_FFMPEG)
    cv2.utils.logging.setLogLevel(level)
    try:
        yield capture
    finally:
        capture.release()
