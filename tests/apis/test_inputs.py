"""Inputs of InLineModel: patterns, bytes, tensors, channel orders, URLs and videos."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from inline import InLineModel
from inline.apis import Predictions, PredictionStream, media
from inline.apis.inputs import find_images
from inline.utils.errors import UserError
from tests.conftest import free_port

FRAMES = 7


@pytest.fixture
def model(models: dict[str, InLineModel]) -> InLineModel:
    return models['classification']


@pytest.fixture
def bgr(folder: Path) -> np.ndarray:
    return cv2.imread(str(folder / 'c' / 'b.png'))


def test_bytes_tensors_and_channel_orders_equal_the_file(
    model: InLineModel, folder: Path, bgr: np.ndarray
) -> None:
    path, rgb = folder / 'c' / 'b.png', np.ascontiguousarray(bgr[..., ::-1])
    (expected,) = model(path)
    tensor = torch.from_numpy(rgb).permute(2, 0, 1)
    same: list[Any] = [
        path.read_bytes(),
        memoryview(path.read_bytes()),
        tensor,
        tensor / 255,
        tensor.double() / 255,
    ]
    for image in same:
        (found,) = model(image)
        assert np.array_equal(found.image, expected.image)
        assert torch.equal(found.pred_score, expected.pred_score)
    swapped = torch.from_numpy(bgr).permute(2, 0, 1)
    (other,) = model(bgr, channel_order='rgb')
    assert np.array_equal(other.image, rgb)
    for right in (
        model([bgr, swapped], channel_order='bgr', progress=False),
        model([rgb, tensor], channel_order='rgb'),
    ):
        assert all(np.array_equal(one.image, bgr) for one in right)
    batch = model(torch.stack([tensor, tensor.flip(2)]), batch_size=2, progress=False)
    assert [one.name for one in batch] == ['array_0', 'array_1']
    assert np.array_equal(batch[1].image, bgr[:, ::-1])
    (grey,) = model(tensor[:1])
    assert np.array_equal(grey.image, np.repeat(rgb[..., :1], 3, axis=2))


@pytest.mark.parametrize(
    ('image', 'options', 'message'),
    [
        (torch.zeros(8, 9, 3), {}, r'tensor of shape \(8, 9, 3\): must be \(3, H, W\)'),
        (torch.zeros(3, 0, 3), {}, r'tensor of shape \(3, 0, 3\)'),
        (torch.full((3, 8, 8), 1.5), {}, 'values from 1.5 to 1.5: must be from 0 to 1, not normalised'),
        (torch.full((3, 8, 8), torch.nan), {}, 'values from nan to nan: must be from 0 to 1'),
        (torch.zeros(3, 8, 8, dtype=torch.int64), {}, r'tensor of torch\.int64: must be uint8, or float'),
        (
            np.zeros((8, 8, 3), np.uint8),
            {'channel_order': 'RGB'},
            "channel_order 'RGB': choose one of bgr, rgb",
        ),
        (b'no image', {}, "'image_0' cannot be read: not an image"),
        ('nothing/*.jpg', {}, r"no image or video matches the pattern 'nothing/\*\.jpg'"),
        ('file:///etc/hosts', {}, "'file:///etc/hosts': a URL must start with http:// or https://"),
        ('s3://bucket/a.jpg', {}, 'a URL must start with http:// or https://'),
    ],
)
def test_invalid_inputs_raise(model: InLineModel, image: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        model(image, **options)


def test_patterns_find_images_and_stay_lazy(model: InLineModel, folder: Path) -> None:
    (folder / 'a' / 'notes.txt').write_text('no image')
    (folder / 'a' / 'one[1].png').write_bytes((folder / 'a' / 'b.png').read_bytes())
    found = model(str(folder / '**' / '[bd].*'), progress=False)
    assert isinstance(found, PredictionStream)
    assert [one.name for one in found] == ['a/b', 'a/d', 'c/b']
    assert [one.name for one in find_images(folder / 'a' / '*')] == ['b', 'd', 'one[1]']
    # A file whose name looks like a pattern is a file.
    assert isinstance(model(str(folder / 'a' / 'one[1].png')), Predictions)


def test_names_are_unique_across_kinds_of_input(folder: Path, bgr: np.ndarray) -> None:
    (folder / 'array_1.png').write_bytes((folder / 'a' / 'b.png').read_bytes())
    urls = ['http://h/array_1.png', 'https://h/..%2F..%2Fx.jpg?size=2', 'http://h/']
    names = [source.name for source in find_images([folder / 'array_1.png', bgr, *urls])]
    assert names == ['array_1', 'array_1_2', 'array_1_3', 'x', 'image']


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    """A video of seven frames of 96×64 pixels, with noise around an increasing grey value."""
    path = tmp_path / 'clip.avi'
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*'MJPG'), 5, (96, 64))
    noise = np.random.default_rng(0).integers(0, 30, (64, 96, 3))
    for i in range(FRAMES):
        writer.write((30 * i + noise).astype(np.uint8))
    writer.release()
    return path


def test_video_is_read_frame_by_frame(
    model: InLineModel, clip: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    original = media.read_frames

    def recording(*args: Any) -> Iterator[np.ndarray]:
        for frame in original(*args):
            read.append(round(float(frame.mean())))
            yield frame

    monkeypatch.setattr('inline.apis.inputs.read_frames', recording)
    stream = model(clip, batch_size=2, progress=False)
    assert isinstance(stream, PredictionStream)
    assert len(stream) == FRAMES
    first = list(islice(stream, 2))
    assert len(read) == 3
    frames = list(stream)
    assert [one.name for one in frames] == [f'clip.avi/frame_{i:06d}' for i in range(FRAMES)]
    assert [one.image_id for one in frames] == list(range(FRAMES))
    assert [round(float(one.image.mean()) / 30 - 0.5) for one in frames] == list(range(FRAMES))
    assert torch.equal(first[1].pred_score, frames[1].pred_score)
    record = frames[3].to_dict()
    assert (record['file'], record['frame'], record['height'], record['width']) == (str(clip), 3, 64, 96)
    with pytest.raises(TypeError, match='frames of a video are computed in order'):
        stream[0]
    mixed = model([folder / 'f.bmp', clip], progress=False)
    assert isinstance(mixed, PredictionStream)
    assert [one.image_id for one in mixed] == list(range(FRAMES + 1))


def test_unreadable_video_raises_or_is_skipped(
    model: InLineModel, clip: Path, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / 'bad.mp4').write_bytes(b'no video')
    content = clip.read_bytes()
    (folder / 'half.avi').write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=r"bad\.mp4' cannot be read: OpenCV decodes no frame of it"):
        list(model(folder / 'bad.mp4', progress=False))
    frames: list[Any] = []
    with pytest.raises(UserError, match=r"half\.avi' cannot be read to the end: ") as raised:
        frames.extend(model(folder / 'half.avi', batch_size=4, progress=False))
    # The frames before the end are complete.
    assert f'{len(frames)} of {FRAMES}' in str(raised.value)
    assert capfd.readouterr().err == ''
    stream = model([folder / 'bad.mp4', folder / 'f.bmp'], skip_bad=True, progress=False)
    assert [one.name for one in stream] == ['f']
    assert len(stream.skipped) == 1


class Handler(BaseHTTPRequestHandler):
    """Serves one image and several kinds of failures."""

    image = b''

    def do_GET(self) -> None:
        status = {'/gone.png': 404, '/local.png': 302, '/moved.png': 302}.get(self.path, 200)
        self.send_response(status)
        if status == 302:
            self.send_header('Location', 'file:///etc/hosts' if self.path == '/local.png' else '/image.png')
        self.end_headers()
        if status == 200:
            self.wfile.write({'/text.png': b'no image', '/empty.png': b''}.get(self.path, self.image))

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server(bgr: np.ndarray) -> Iterator[str]:
    Handler.image = cv2.imencode('.png', bgr)[1].tobytes()
    with ThreadingHTTPServer(('127.0.0.1', 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        yield f'http://127.0.0.1:{server.server_port}'
        server.shutdown()


def test_url_is_downloaded_within_limits(
    model: InLineModel, server: str, bgr: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ('image.png', 'moved.png'):
        (found,) = model(f'{server}/{name}')
        assert np.array_equal(found.image, bgr)
        assert found.to_dict()['file'] == f'{server}/{name}'
    for path, message in {
        'gone.png': 'cannot be downloaded: HTTP Error 404',
        'local.png': 'cannot be downloaded: ',
        'text.png': 'cannot be read: not an image',
        'empty.png': 'the response is empty',
    }.items():
        with pytest.raises(UserError, match=message):
            model(f'{server}/{path}')
    kept = model([f'{server}/gone.png', f'{server}/image.png'], skip_bad=True, progress=False)
    assert [one.name for one in kept] == ['image']
    with pytest.raises(UserError, match=r'cannot be downloaded: \[Errno 111\] Connection refused'):
        model(f'http://127.0.0.1:{free_port()}/a.png')
    monkeypatch.setattr(media, 'DOWNLOAD_TIMEOUT', -1)
    with pytest.raises(UserError, match='not complete after -1 seconds'):
        model(f'{server}/image.png')
    monkeypatch.setattr(media, 'MAX_DOWNLOAD_BYTES', 100)
    with pytest.raises(UserError, match='which is the limit'):
        model(f'{server}/image.png')
