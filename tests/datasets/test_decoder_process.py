"""A decoder that hangs or crashes ends its own process only; the next image is decoded by a new one."""

import os
import signal
import subprocess
from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image

from inline.datasets.decoder_process import DecoderProcess
from inline.utils.errors import UnreadableError
from tests.datasets.invalid_data import PICTURE, encode, picture


@pytest.fixture
def decoder() -> Iterator[DecoderProcess]:
    process = DecoderProcess(60)
    yield process
    assert process.close() in (0, None)


def slow_jpeg() -> bytes:
    """Return a progressive JPEG of 16 million pixels with 100 scans, which takes more than a second."""
    content = encode(Image.new('RGB', (4000, 4000)), 'JPEG', progressive=True)
    return content[:-2] + content[content.rindex(b'\xff\xc4') : -2] * 90 + content[-2:]


def test_images_are_decoded_by_one_process(decoder: DecoderProcess) -> None:
    for image_format in ('PNG', 'BMP', 'TIFF'):
        decoded = decoder.decode(encode(picture(), image_format), 'a.png', 10**6)
        assert np.array_equal(decoded, PICTURE[..., ::-1])
    with pytest.raises(UnreadableError, match=r"'a.png' cannot be read: not an image"):
        decoder.decode(b'text', 'a.png', 10**6)
    with pytest.raises(UnreadableError, match=r"'a.png' is 40x24 pixels: at most 959 are allowed"):
        decoder.decode(encode(picture(), 'PNG'), 'a.png', 959)
    assert decoder.close() == 0


def test_an_image_that_takes_too_long_ends_the_process(decoder: DecoderProcess) -> None:
    decoder.decode(encode(picture(), 'PNG'), 'a.png', 10**6)
    decoder.seconds = 0.1
    with pytest.raises(UnreadableError, match=r"'slow.jpg' cannot be read: decoding takes more than 0.1 s"):
        decoder.decode(slow_jpeg(), 'slow.jpg', 10**8)
    decoder.seconds = 60
    assert decoder.decode(encode(picture(), 'PNG'), 'a.png', 10**6).shape == PICTURE.shape


def test_a_crash_of_the_decoder_is_an_error_of_the_image(decoder: DecoderProcess) -> None:
    decoder.decode(encode(picture(), 'PNG'), 'a.png', 10**6)
    assert isinstance(decoder._process, subprocess.Popen)
    os.kill(decoder._process.pid, signal.SIGSEGV)
    with pytest.raises(UnreadableError, match=r"'a.png' cannot be read: the decoder crashed"):
        decoder.decode(encode(picture(), 'PNG'), 'a.png', 10**6)
    assert decoder.decode(encode(picture(), 'PNG'), 'a.png', 10**6).shape == PICTURE.shape
