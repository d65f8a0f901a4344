"""Uploaded files: valid images are read, others give an error message without the path."""

import io
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from inline.apis.serve.uploads import UploadLimits, read_upload
from inline.datasets.decoder_process import DecoderProcess
from inline.utils.errors import UnreadableError, UserError


def encode_image(suffix: str, height: int = 40, width: int = 60) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3)).astype(np.uint8)
    return cv2.imencode(suffix, pixels)[1].tobytes()


def huge_png() -> bytes:
    """A small file whose header declares 60000×60000 pixels."""
    header = b'IHDR' + struct.pack('>IIBBBBB', 60000, 60000, 8, 2, 0, 0, 0)
    return b'\x89PNG\r\n\x1a\n' + struct.pack('>I', 13) + header + struct.pack('>I', zlib.crc32(header))


BAD = {
    'text.jpg': (b'hello, this is no picture\n' * 9, 'not an image'),
    'empty.png': (b'', 'the file is empty'),
    'half.jpg': (encode_image('.jpg')[:1500], 'the file is truncated'),
    'half.png': (encode_image('.png')[:2500], 'truncated'),
    'drawing.svg': (
        b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>',
        'not an image',
    ),
    'drawing.png': (b'%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n', 'not an image'),
    'page.html': (b'<html><img src=x onerror=alert(1)></html>', 'not an image'),
    'bomb.png': (huge_png(), '60000x60000 pixels: at most 25,000,000 are allowed'),
    'line.png': (encode_image('.png', 2, 900), 'the aspect ratio must be at most 100'),
    'large.bmp': (encode_image('.bmp', 200, 400), 'has 0.2 MB: the limit is 0.1 MB'),
}


@pytest.fixture(scope='module')
def decoder() -> Iterator[DecoderProcess]:
    process = DecoderProcess(60)
    yield process
    assert process.close() == 0


@pytest.mark.parametrize('name', BAD)
def test_invalid_file_raises_without_the_path(name: str, tmp_path: Path, decoder: DecoderProcess) -> None:
    content, expected = BAD[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UnreadableError, match=expected) as raised:
        read_upload(tmp_path / name, UploadLimits(megabytes=0.1), decoder)
    assert name in str(raised.value)
    assert str(tmp_path) not in str(raised.value)
    assert '\n' not in str(raised.value)


@pytest.mark.parametrize('suffix', ['.png', '.jpg', '.bmp', '.webp', '.tif'])
def test_valid_file_is_read_like_opencv(suffix: str, tmp_path: Path, decoder: DecoderProcess) -> None:
    path = tmp_path / f'photo{suffix}'
    path.write_bytes(encode_image(suffix))
    assert (read_upload(path, UploadLimits(), decoder) == cv2.imread(str(path))).all()


def test_exif_orientation_is_applied(tmp_path: Path, decoder: DecoderProcess) -> None:
    rotated, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = 6
    Image.new('RGB', (60, 40)).save(rotated, 'jpeg', exif=exif)
    (tmp_path / 'rotated.jpg').write_bytes(rotated.getvalue())
    assert read_upload(tmp_path / 'rotated.jpg', UploadLimits(), decoder).shape == (60, 40, 3)


def test_missing_file_raises(tmp_path: Path, decoder: DecoderProcess) -> None:
    with pytest.raises(UnreadableError, match=r"'gone.png' cannot be read: upload it again"):
        read_upload(tmp_path / 'gone.png', UploadLimits(), decoder)


@pytest.mark.parametrize(
    ('limits', 'message'),
    [
        ({'megabytes': 0}, '--max-megabytes 0: must be greater than 0'),
        ({'megabytes': float('nan')}, '--max-megabytes nan: must be greater than 0'),
        ({'seconds': 0}, '--max-seconds 0: must be greater than 0'),
        ({'megapixels': -1}, '--max-megapixels -1: must be greater than 0'),
        ({'megapixels': 1e6}, r'--max-megapixels 1e\+06: must be greater than 0 and at most 178.957'),
    ],
)
def test_invalid_limits_raise(limits: dict[str, float], message: str) -> None:
    with pytest.raises(UserError, match=message):
        UploadLimits(**limits)
