"""Decoding of untrusted images in a separate process with a time limit.

If a decoder hangs or crashes, only this process ends. It is started for the first image and restarted after
an image that ended it. This module does not import torch, so that the process starts quickly.
"""

import json
import signal
import subprocess
import sys
from multiprocessing import Pipe
from multiprocessing.connection import Connection

import cv2
import numpy as np
from numpy.typing import NDArray

from inline.datasets.image_file import check_header, decode_image, failure_reason, open_image
from inline.utils.errors import UnreadableError


class DecoderProcess:
    """Decodes one image at a time.

    Args:
        seconds: Time limit per image.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def decode(self, content: bytes, name: str, max_pixels: int) -> NDArray[np.uint8]:
        """Return an image, BGR (H, W, 3), rotated according to its EXIF data.

        Raises an :class:`UnreadableError` with `name` if it is invalid or takes too long.
        """
        connection = self._connection or self._start()
        try:
            connection.send_bytes(json.dumps([name, max_pixels, self.seconds]).encode())
            connection.send_bytes(content)
            answer = json.loads(connection.recv_bytes())
            if 'error' in answer:
                raise UnreadableError(answer['error'])
            pixels = np.frombuffer(connection.recv_bytes(), np.uint8)
        except (EOFError, OSError) as error:
            is_late = self.close() == -signal.SIGALRM
            reason = f'decoding takes more than {self.seconds:g} s' if is_late else 'the decoder crashed'
            raise UnreadableError(f'{name!r} cannot be read: {reason}') from error
        # A copy, because the received bytes cannot be written to.
        return pixels.reshape(answer['shape']).copy()

    def close(self) -> int | None:
        """End the process and return its exit code; None if it was not running."""
        if self._process is None or self._connection is None:
            return None
        # The process ends when the connection is closed.
        self._connection.close()
        code = self._process.wait()
        self._process = self._connection = None
        return code

    def _start(self) -> Connection:
        self._connection, theirs = Pipe()
        descriptor = theirs.fileno()
        # -P: without it, Python would import modules from the current folder first.
        command = [sys.executable, '-P', '-m', __name__, str(descriptor)]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[descriptor])
        theirs.close()
        return self._connection


def run(connection: Connection) -> None:
    """Answer requests until the other end is closed. A request that takes too long ends the process."""
    # Ctrl-C in a terminal is sent to all processes; this one ends with the server.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        try:
            name, max_pixels, seconds = json.loads(connection.recv_bytes())
            content = connection.recv_bytes()
        except EOFError:
            return
        # The default action of SIGALRM ends the process, even inside a decoder.
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            image = _decode_completely(content, name, max_pixels)
        except UnreadableError as error:
            signal.setitimer(signal.ITIMER_REAL, 0)
            connection.send_bytes(json.dumps({'error': str(error)}).encode())
            continue
        signal.setitimer(signal.ITIMER_REAL, 0)
        connection.send_bytes(json.dumps({'shape': image.shape}).encode())
        connection.send_bytes(image.tobytes())


def _decode_completely(content: bytes, name: str, max_pixels: int) -> NDArray[np.uint8]:
    check_header(content, name, max_pixels)
    image = decode_image(_decode_bgr, content, name)
    try:
        # OpenCV fills missing data with grey; Pillow raises.
        with open_image(content) as image_file:
            image_file.load()
    except Exception as error:  # Decoders may raise any exception for damaged files.
        raise UnreadableError(f'{name!r} cannot be read: {failure_reason(error)}') from error
    return image


def _decode_bgr(content: bytes) -> NDArray[np.uint8] | None:
    # OpenCV returns None for content that it cannot decode, contrary to its type annotations.
    image: NDArray[np.uint8] | None = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR)
    return image


if __name__ == '__main__':
    run(Connection(int(sys.argv[1])))
