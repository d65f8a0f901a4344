"""The page, served by the tool in a separate process: requests of other programs, and a real browser."""

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from tests.apis.serve.test_uploads import encode_image, huge_png
from tests.conftest import ROOT, free_port

BROWSERS = ('chromium', 'chromium-browser', 'google-chrome')
FLAGS = '--no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-component-update'
TIMEOUT = 120
LAYERS = 4
MULTIPART = {'Content-Type': 'multipart/form-data; boundary=x'}
PROXY_NAME = 'demo.example.org'
BAD_FILES = {
    'text.jpg': (b'no picture\n' * 9, 'cannot be read: not an image'),
    'empty.png': (b'', 'cannot be read: the file is empty'),
    'half.jpg': (encode_image('.jpg')[:1500], 'cannot be read: the file is truncated'),
    'drawing.svg': (b'<svg xmlns="http://www.w3.org/2000/svg"/>', 'cannot be read: not an image'),
    'bomb.png': (huge_png(), '60000x60000 pixels: at most 1,000,000 are allowed'),
}


@dataclass(frozen=True)
class Server:
    """A running server: its URL, a folder with its checkpoints and its temporary folder ``tmp``, and the URLs
    that it tried to fetch."""

    url: str
    folder: Path
    fetched: list[str]

    @property
    def port(self) -> int:
        return int(self.url.rstrip('/').rsplit(':', 1)[1])

    def request(
        self, method: str, path: str, headers: dict[str, str] | None = None, body: bytes | None = None
    ) -> tuple[int, str]:
        """Return status and text of the answer to a request."""
        connection = http.client.HTTPConnection('127.0.0.1', self.port, timeout=TIMEOUT)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def upload(self, name: str, content: bytes) -> tuple[int, str]:
        head = f'--x\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\n\r\n'
        body = head.encode() + content + b'\r\n--x--\r\n'
        return self.request('POST', '/gradio_api/upload', MULTIPART, body)

    def stored(self) -> list[Path]:
        # Unlike rglob, walk ignores what the server deletes in the meantime.
        walk = os.walk(self.folder / 'tmp')
        return [Path(parent, name) for parent, _, names in walk for name in names]

    def wait_for_files(self, expected: Callable[[set[str]], bool]) -> None:
        """Wait until the names of the stored files are as expected: old ones are deleted after the answer."""
        for _ in range(100):
            found = {path.name for path in self.stored()}
            if expected(found):
                return
            time.sleep(0.1)
        pytest.fail(f'stored are {sorted(found)}')


@contextmanager
def record_fetches() -> Iterator[tuple[str, list[str]]]:
    """Run an HTTP proxy that answers every request with 404; yields its address and the requested URLs."""
    requested: list[str] = []

    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requested.append(self.path)
            self.send_error(404)

        do_CONNECT = do_GET  # noqa: N815 (name of the base class)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with HTTPServer(('127.0.0.1', 0), Proxy) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        yield f'http://127.0.0.1:{proxy.server_port}', requested
        proxy.shutdown()


@pytest.fixture(scope='module')
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start the tool with an InLine and a softmax classifier.

    After Ctrl-C it must exit and leave no files.
    """
    from inline.apis import InLineModel
    from inline.engine.config import load_config

    folder = tmp_path_factory.mktemp('serve')
    args: list[str] = []
    for name in ('inline-pvt-nano_digits', 'pvt-nano_digits'):
        config, checkpoint = f'configs/digits_quick/{name}.py', folder / f'{name}.pth'
        cfg = load_config(ROOT / config)
        torch.manual_seed(0)
        torch.save({'state_dict': InLineModel(cfg).model.state_dict()}, checkpoint)
        args += [*(['--compare'] if args else []), config, str(checkpoint)]
    (folder / 'tmp').mkdir()
    port = free_port()
    limits = ['--max-megabytes', '0.1', '--max-megapixels', '1', '--port', port, '--allow-host', PROXY_NAME]
    with (
        record_fetches() as (proxy, fetched),
        (folder / 'errors').open('w') as errors,
        subprocess.Popen(
            [sys.executable, 'tools/serve.py', *args, *limits],
            cwd=ROOT,
            env={
                **os.environ,
                'TMPDIR': str(folder / 'tmp'),
                # Everything but the start-up check of Gradio goes to a proxy that records it.
                **{f'{name}_PROXY': proxy for name in ('HTTP', 'HTTPS')},
                'NO_PROXY': '127.0.0.1',
            },
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            line = next((line for line in process.stdout if line.startswith('open ')), '')
            assert f'http://127.0.0.1:{port}/' in line, (folder / 'errors').read_text()[-3000:]
            yield Server(f'http://127.0.0.1:{port}/', folder, fetched)
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
    assert process.returncode == 130
    assert 'Traceback' not in (folder / 'errors').read_text()
    assert not list((folder / 'tmp').iterdir())
    assert fetched == []


@pytest.mark.slow
def test_requests_of_other_programs_are_rejected(server: Server) -> None:
    url, folder = server.url, server.folder
    assert 'InLine attention viewer' in urllib.request.urlopen(url).read().decode()
    for path in (ROOT / 'README.md', folder / 'pvt-nano_digits.pth', '/etc/passwd'):
        with pytest.raises(urllib.error.HTTPError) as rejected:
            urllib.request.urlopen(f'{url}gradio_api/file={path}')
        assert rejected.value.code in (403, 404)
    assert server.upload('a.png', bytes(200_000))[0] == 413
    assert server.upload('a.png', bytes(2_000_000))[0] == 413
    assert sum(path.stat().st_size for path in server.stored()) < 1000
    # Another loopback address: the server listens on 127.0.0.1 only.
    with socket.socket() as other, pytest.raises(ConnectionRefusedError):
        other.connect(('127.0.0.2', server.port))


HOSTS = {
    'a foreign host': ({'Host': 'evil.example:{port}'}, 403),
    'no host': ({'Host': ''}, 403),
    'an invalid host': ({'Host': '[evil'}, 403),
    'a host that begins like ours': ({'Host': '127.0.0.1.evil.example'}, 403),
    'a host after a user name': ({'Host': '127.0.0.1@evil.example'}, 403),
    'a foreign origin': ({'Origin': 'http://evil.example'}, 403),
    'an opaque origin': ({'Origin': 'null'}, 403),
    'an origin on another port': ({'Origin': 'http://127.0.0.1:1'}, 403),
    'a foreign host and origin': ({'Host': 'evil.example', 'Origin': 'http://evil.example'}, 403),
    'localhost': ({'Host': 'localhost:{port}', 'Origin': 'http://localhost:{port}'}, 200),
    'IPv6': ({'Host': '[::1]:{port}'}, 200),
    'an allowed host': ({'Host': PROXY_NAME.upper(), 'Origin': f'https://{PROXY_NAME}'}, 200),
    'an allowed origin': ({'Origin': f'https://{PROXY_NAME}'}, 200),
}


@pytest.mark.slow
@pytest.mark.parametrize('name', HOSTS)
def test_only_trusted_hosts_and_origins_are_answered(server: Server, name: str) -> None:
    values, expected = HOSTS[name]
    headers = {key: value.replace('{port}', str(server.port)) for key, value in values.items()}
    for method, path in (('GET', '/'), ('GET', '/theme.css'), ('HEAD', '/')):
        assert server.request(method, path, headers)[0] == expected, path
    if expected == 403:
        assert 'is not allowed; tools/serve.py --allow-host' in server.request('GET', '/', headers)[1]
        preflight = {**headers, 'Access-Control-Request-Method': 'POST'}
        assert server.request('OPTIONS', '/gradio_api/queue/join', preflight)[0] == 403
        assert server.request('POST', '/gradio_api/upload', {**headers, **MULTIPART}, b'')[0] == 403


@pytest.mark.slow
@pytest.mark.parametrize(
    ('method', 'path'),
    [
        ('GET', '/gradio_api/file=http://huggingface.co/a.png'),
        ('GET', '/gradio_api/proxy=http://huggingface.co/a.png'),
        ('GET', '/gradio_api/deep_link?session_hash=a'),
        ('GET', '/gradio_api/info'),
        ('GET', '/config'),
        ('GET', '/monitoring'),
        ('POST', '/gradio_api/component_server'),
        ('POST', '/gradio_api/process_recording'),
        ('POST', '/gradio_api/run/predict'),
        ('PUT', '/gradio_api/upload'),
        ('OPTIONS', '/gradio_api/upload'),
    ],
)
def test_routes_that_the_page_does_not_use_are_refused(server: Server, method: str, path: str) -> None:
    status, text = server.request(method, path, {'Content-Length': '2'} if method == 'POST' else {})
    assert (status, 'is not part of this page' in text) == (404, True)
    assert server.fetched == []


@pytest.mark.slow
def test_a_url_in_an_event_is_not_fetched(server: Server) -> None:
    """For the file and for another input of the event: Gradio looks for files in all of them."""
    page = server.request('GET', '/')[1]
    (config,) = re.findall(r'window\.gradio_config = (\{.*?\});</script>', page)
    events = {event['id']: event for event in json.loads(config)['dependencies']}
    (event,) = [event for event in events.values() if len(event['outputs']) == 7]
    file = {'path': 'http://huggingface.co/a.png', 'meta': {'_type': 'gradio.FileData'}}
    for i, data in enumerate(([file, 'mean of all', 0.3], [None, file, 0.3])):
        joined = {'data': data, 'fn_index': event['id'], 'session_hash': f'url{i}'}
        headers = {'Content-Type': 'application/json'}
        status, text = server.request('POST', '/gradio_api/queue/join', headers, json.dumps(joined).encode())
        assert status == 200, text
        answer = server.request('GET', f'/gradio_api/queue/data?session_hash=url{i}')[1]
        assert '"success":false' in answer
    assert server.fetched == []


@pytest.mark.slow
def test_uploads_without_an_event_do_not_fill_the_disk(server: Server) -> None:
    for i in range(12):
        assert server.upload(f'{i}.png', bytes([i]) * 50_000)[0] == 200
    server.wait_for_files(lambda names: names == {f'{i}.png' for i in range(4, 12)})
    # A lost connection leaves the received part.
    for _ in range(3):
        with socket.create_connection(('127.0.0.1', server.port)) as connection:
            head = 'POST /gradio_api/upload HTTP/1.1\r\nHost: localhost\r\nContent-Length: 90000\r\n'
            head += f'Content-Type: {MULTIPART["Content-Type"]}\r\n\r\n--x\r\n'
            head += 'Content-Disposition: form-data; name="files"; filename="lost.png"\r\n\r\n'
            connection.sendall(head.encode() + bytes(20_000))
    for i in range(12, 20):
        assert server.upload(f'{i}.png', bytes([i]) * 50_000)[0] == 200
    server.wait_for_files(lambda names: names == {f'{i}.png' for i in range(12, 20)})
    # One request with many files.
    part = '--x\r\nContent-Disposition: form-data; name="files"; filename="{}.txt"\r\n\r\n{}\r\n'
    body = ''.join(part.format(i, i) for i in range(50)) + '--x--\r\n'
    assert server.request('POST', '/gradio_api/upload', MULTIPART, body.encode())[0] == 200
    server.wait_for_files(lambda names: len(names) == 8 and all(name.endswith('.txt') for name in names))
    server.wait_for_files(lambda _: len(list(os.walk(server.folder / 'tmp'))) <= 8 + 2)
    status, text = server.request('POST', '/gradio_api/upload', {**MULTIPART, 'Transfer-Encoding': 'chunked'})
    assert (status, 'without Content-Length' in text) == (411, True)


@pytest.fixture(scope='module')
def browser() -> str:
    path = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if path is None:
        pytest.skip(f'no browser: none of {", ".join(BROWSERS)} is installed')
    return path


@pytest.mark.slow
def test_page_in_a_browser(browser: str, server: Server, tmp_path: Path) -> None:
    from playwright.sync_api import sync_playwright

    url = server.url
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=FLAGS.split())
        page = chromium.new_page(viewport={'width': 1280, 'height': 1000})
        page.set_default_timeout(TIMEOUT * 1000)
        requests: list[str] = []
        errors: list[str] = []
        page.on('request', lambda request: requests.append(request.url))
        page.on('console', lambda log: errors.append(log.text) if log.type == 'error' else None)
        failed: list[str] = []
        page.on('response', lambda response: failed.append(response.url) if response.status >= 400 else None)
        page.on('pageerror', lambda error: errors.append(str(error)))
        page.goto(url)
        page.wait_for_selector('#il-drop input[type=file]', state='attached')
        assert page.title() == 'InLine attention viewer'
        assert 'No image yet.' in page.inner_text('body')

        check_invalid_files(page)
        check_prediction(page)
        check_clicks(page, tmp_path)
        check_heads(page)
        check_examples(page)

        leftovers = [
            path for path in (server.folder / 'tmp').rglob('*') if path.suffix in ('.png', '.jpg', '.svg')
        ]
        assert leftovers == []
        for secret in (str(server.folder), str(ROOT)):
            assert secret not in page.content()
        assert requests
        assert [one for one in requests if not one.startswith((url, 'data:', f'blob:{url}'))] == []
        # Gradio requests the progress of the upload that it rejected as too large, and logs two errors.
        assert [one for one in failed if '/upload_progress' not in one] == []
        assert [text for text in errors if '404' not in text and text != 'Response'] == []
        chromium.close()


def upload(page: Any, name: str, content: bytes) -> None:
    """Drop a file on the page, as with the mouse."""
    transfer = page.evaluate_handle(
        """([name, bytes]) => {
            const transfer = new DataTransfer();
            transfer.items.add(new File([new Uint8Array(bytes)], name));
            return transfer;
        }""",
        [name, list(content)],
    )
    page.dispatch_event('#il-drop button', 'drop', {'dataTransfer': transfer})


def check_invalid_files(page: Any) -> None:
    for name, (content, expected) in BAD_FILES.items():
        upload(page, name, content)
        page.wait_for_selector(f'#il-message [role=alert]:has-text("{name}")')
        assert expected in page.inner_text('#il-message')
    assert not page.query_selector('.il-click')
    upload(page, 'large.bmp', encode_image('.bmp', 200, 400))
    page.wait_for_selector('text=/exceed the maximum allowed size/')
    # Gradio covers the drop area with this message; the button closes it.
    page.locator('#il-drop button[aria-label=Clear]').dispatch_event('click')
    page.wait_for_function('document.querySelectorAll("#il-drop button").length == 1')


def check_prediction(page: Any) -> None:
    upload(page, 'photo.png', encode_image('.png', 60, 80))
    page.wait_for_selector('.il-click')
    assert 'photo.png, 80×60 pixels' in page.inner_text('#il-message')
    names = ['inline-pvt-nano_digits', 'pvt-nano_digits']
    assert page.locator('.il-prediction h3').all_inner_texts() == names
    assert page.locator('.il-bar').count() == 2 * 5
    shown = re.findall(r'([\d.]+)%', page.inner_text('#il-prediction'))
    assert all(0 <= float(score) <= 100 for score in shown)
    assert page.locator('.il-token').count() == 0


def check_clicks(page: Any, folder: Path) -> None:
    shots, added = [], []
    for x, y in ((0.2, 0.3), (0.81, 0.62)):
        before = page.inner_text('#il-message')
        box = page.locator('.il-click').bounding_box()
        page.mouse.click(box['x'] + x * box['width'], box['y'] + y * box['height'])
        page.wait_for_function(
            'before => document.querySelector("#il-message").innerText != before', arg=before
        )
        wait_for_marker(page, page.locator('.il-cross'), page.locator('.il-click'), x, y)
        for i in range(2 * LAYERS):
            wait_for_marker(
                page, page.locator('.il-token').nth(i), page.locator('.il-cell .il-frame').nth(i), x, y
            )
        assert page.locator('.il-token').count() == 2 * LAYERS
        page.locator('.il-grid').screenshot(path=folder / 'shot.png')
        shots.append(cv2.imread(str(folder / 'shot.png')).astype(int))
        added.append(page.locator('.il-kernel').all_inner_texts())
    text = page.inner_text('#il-layers')
    for expected in (
        'stage 1 block 1 · InLine',
        'stage 4 block 1 · Softmax',
        '8×8 tokens',
        'attention',
        'residual',
    ):
        assert expected in text
    # Red and blue appear, and at other positions after the second click.
    for shot in shots:
        assert (shot[..., 2] - shot[..., 0] > 40).mean() > 0.02
        assert (shot[..., 0] - shot[..., 2] > 40).mean() > 0.02
    assert shots[0].shape == shots[1].shape
    assert (np.abs(shots[0] - shots[1]).max(axis=2) > 30).mean() > 0.05
    assert all(len(texts) == LAYERS for texts in added)
    # In the last layer the image is a single token.
    assert all(one != two for one, two in zip(*(texts[:-1] for texts in added), strict=True))


def wait_for_marker(page: Any, marker: Any, frame: Any, x: float, y: float) -> None:
    """Wait for a marker: the browser updates the parts of the page one after the other."""
    for _ in range(10 * TIMEOUT):
        boxes = marker.bounding_box(), frame.bounding_box()
        if all(boxes) and is_near(*boxes, x, y):
            return
        page.wait_for_timeout(100)
    pytest.fail(
        f'after {TIMEOUT} s the marker is at {boxes[0]}, its frame at {boxes[1]}, the point at {x}, {y}'
    )


def is_near(mark: dict[str, float], frame: dict[str, float], x: float, y: float) -> bool:
    """Return whether a marker covers a point at a relative position in a frame, within a pixel."""
    left, top = frame['x'] + x * frame['width'], frame['y'] + y * frame['height']
    return (
        mark['x'] - 1 <= left <= mark['x'] + mark['width'] + 1
        and mark['y'] - 1 <= top <= mark['y'] + mark['height'] + 1
    )


def check_heads(page: Any) -> None:
    before = page.locator('.il-cell img').first.get_attribute('src')
    page.click('#il-heads input')
    page.click('[role=option]:has-text("5")')
    page.wait_for_selector('text=has 2 heads')
    wait_for_pictures(page, 2)
    page.click('#il-heads input')
    page.click('[role=option]:has-text("mean of all")')
    wait_for_pictures(page, 2 * LAYERS)
    assert page.locator('.il-cell img').first.get_attribute('src') == before


def check_examples(page: Any) -> None:
    assert page.locator('.il-example').count() == 2
    page.click('.il-example >> nth=1')
    page.wait_for_selector('#il-message:has-text("example 2, 48×48 pixels")')
    assert page.locator('.il-bar').count() == 2 * 5
    # The models are classifiers.
    assert page.locator('#il-threshold').count() == 0


def wait_for_pictures(page: Any, count: int) -> None:
    page.wait_for_function('count => document.querySelectorAll(".il-cell img").length == count', arg=count)
