"""What is dropped on the page: read as it is, or refused with a sentence that names no folder."""

import io
import struct
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from inline.errors import UnreadableError, UserError
from inline.serve.uploads import Limits, read_upload


def encoded(ending: str, height: int = 40, width: int = 60) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3)).astype(np.uint8)
    return cv2.imencode(ending, pixels)[1].tobytes()


def huge_png() -> bytes:
    """A small file that says it has 60000×60000 pixels."""
    header = b'IHDR' + struct.pack('>IIBBBBB', 60000, 60000, 8, 2, 0, 0, 0)
    return b'\x89PNG\r\n\x1a\n' + struct.pack('>I', 13) + header + struct.pack('>I', zlib.crc32(header))


BAD = {
    'text.jpg': (b'hello, this is no picture\n' * 9, 'not an image'),
    'empty.png': (b'', 'the file is empty'),
    'half.jpg': (encoded('.jpg')[:1500], 'the file is truncated'),
    'half.png': (encoded('.png')[:2500], 'truncated'),
    'drawing.svg': (
        b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>',
        'not an image',
    ),
    'page.html': (b'<html><img src=x onerror=alert(1)></html>', 'not an image'),
    'bomb.png': (huge_png(), '60000x60000 pixels: at most 25,000,000 are read'),
    'line.png': (encoded('.png', 2, 900), 'one side may be 100 times the other'),
    'large.bmp': (encoded('.bmp', 200, 400), 'has 0.2 MB: at most 0.1 MB are read'),
}


@pytest.mark.parametrize('name', BAD)
def test_a_bad_file_gets_a_sentence_without_a_path(name: str, tmp_path: Path) -> None:
    content, expected = BAD[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UnreadableError, match=expected) as told:
        read_upload(tmp_path / name, Limits(megabytes=0.1))
    assert name in str(told.value)
    assert str(tmp_path) not in str(told.value)
    assert '\n' not in str(told.value)


@pytest.mark.parametrize('ending', ['.png', '.jpg', '.bmp', '.webp', '.tif'])
def test_a_good_file_is_read_as_opencv_reads_it(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f'photo{ending}'
    path.write_bytes(encoded(ending))
    assert (read_upload(path, Limits()) == cv2.imread(str(path))).all()


def test_a_photograph_is_turned_as_its_camera_says(tmp_path: Path) -> None:
    turned, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = 6
    Image.new('RGB', (60, 40)).save(turned, 'jpeg', exif=exif)
    (tmp_path / 'turned.jpg').write_bytes(turned.getvalue())
    assert read_upload(tmp_path / 'turned.jpg', Limits()).shape == (60, 40, 3)


def test_a_file_that_is_gone_is_told(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match=r"'gone.png' cannot be read: drop it once more"):
        read_upload(tmp_path / 'gone.png', Limits())


@pytest.mark.parametrize(
    ('limits', 'words'),
    [
        ({'megabytes': 0}, '--max-megabytes 0: must be greater than 0'),
        ({'megabytes': float('nan')}, '--max-megabytes nan: must be greater than 0'),
        ({'megapixels': -1}, '--max-megapixels -1: must be greater than 0'),
        ({'megapixels': 1e6}, r'--max-megapixels 1e\+06: must be greater than 0 and at most 178.957'),
    ],
)
def test_limits_that_cannot_be_are_told(limits: dict[str, float], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Limits(**limits)
