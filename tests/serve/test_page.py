"""The page as a user meets it: the tool in a process of its own, looked at with a browser."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from tests.conftest import ROOT
from tests.serve.test_uploads import encoded, huge_png

BROWSERS = ('chromium', 'chromium-browser', 'google-chrome')
FLAGS = '--no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-component-update'
PATIENCE = 120
LAYERS = 4
BAD_FILES = {
    'text.jpg': (b'no picture\n' * 9, 'cannot be read: not an image'),
    'empty.png': (b'', 'cannot be read: the file is empty'),
    'half.jpg': (encoded('.jpg')[:1500], 'cannot be read: the file is truncated'),
    'drawing.svg': (b'<svg xmlns="http://www.w3.org/2000/svg"/>', 'cannot be read: not an image'),
    'bomb.png': (huge_png(), '60000x60000 pixels: at most 1,000,000 are read'),
}


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """The tool with an InLine and a softmax classifier. It must end by itself, and leave no files."""
    from inline.engine.config import load_config
    from inline.inference import InLineModel

    words: list[str] = []
    for name in ('inline-pvt-nano_digits', 'pvt-nano_digits'):
        config, checkpoint = f'configs/digits_quick/{name}.py', tmp_path / f'{name}.pth'
        cfg = load_config(ROOT / config)
        torch.manual_seed(0)
        torch.save({'state_dict': InLineModel(cfg).model.state_dict()}, checkpoint)
        words += [*(['--compare'] if words else []), config, str(checkpoint)]
    (tmp_path / 'tmp').mkdir()
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port = free.getsockname()[1]
    limits = ['--max-megabytes', '0.1', '--max-megapixels', '1', '--port', str(port)]
    with (
        (tmp_path / 'errors').open('w') as errors,
        subprocess.Popen(
            [sys.executable, 'tools/serve.py', *words, *limits],
            cwd=ROOT,
            env={**os.environ, 'TMPDIR': str(tmp_path / 'tmp')},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as server,
    ):
        try:
            assert server.stdout is not None
            told = next((line for line in server.stdout if line.startswith('open ')), '')
            assert f'http://127.0.0.1:{port}/' in told, (tmp_path / 'errors').read_text()[-3000:]
            yield f'http://127.0.0.1:{port}/'
        finally:
            server.send_signal(signal.SIGINT)
            try:
                server.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                server.kill()
    assert server.returncode == 130
    assert 'Traceback' not in (tmp_path / 'errors').read_text()
    assert not list((tmp_path / 'tmp').iterdir())


@pytest.mark.slow
def test_a_visit(address: str, tmp_path: Path) -> None:
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        pytest.skip(f'no browser: none of {", ".join(BROWSERS)} is installed')
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=FLAGS.split())
        page = chromium.new_page(viewport={'width': 1280, 'height': 1000})
        page.set_default_timeout(PATIENCE * 1000)
        asked: list[str] = []
        wrong: list[str] = []
        page.on('request', lambda request: asked.append(request.url))
        page.on('console', lambda said: wrong.append(said.text) if said.type == 'error' else None)
        failed: list[str] = []
        page.on('response', lambda answer: failed.append(answer.url) if answer.status >= 400 else None)
        page.on('pageerror', lambda error: wrong.append(str(error)))
        page.goto(address)
        page.wait_for_selector('#il-drop input[type=file]', state='attached')
        assert page.title() == 'InLine: what a token sees'
        assert 'No image yet.' in page.inner_text('body')

        check_bad_files(page)
        check_prediction(page)
        check_clicks(page, tmp_path)
        check_heads(page)

        leftovers = [
            path for path in (tmp_path / 'tmp').rglob('*') if path.suffix in ('.png', '.jpg', '.svg')
        ]
        assert leftovers == []
        for secret in (str(tmp_path), str(ROOT)):
            assert secret not in page.content()
        assert asked
        assert [url for url in asked if not url.startswith((address, 'data:', f'blob:{address}'))] == []
        # Gradio asks for the progress of the upload that it has refused as too large, and says so twice.
        assert [url for url in failed if '/upload_progress' not in url] == []
        assert [said for said in wrong if '404' not in said and said != 'Response'] == []
        chromium.close()
    check_refusals(address, tmp_path)


def upload(page: Any, name: str, content: bytes) -> None:
    """Drop a file on the page, as a hand does with the mouse."""
    transfer = page.evaluate_handle(
        """([name, bytes]) => {
            const transfer = new DataTransfer();
            transfer.items.add(new File([new Uint8Array(bytes)], name));
            return transfer;
        }""",
        [name, list(content)],
    )
    page.dispatch_event('#il-drop button', 'drop', {'dataTransfer': transfer})


def check_bad_files(page: Any) -> None:
    for name, (content, expected) in BAD_FILES.items():
        upload(page, name, content)
        page.wait_for_selector(f'#il-message [role=alert]:has-text("{name}")')
        assert expected in page.inner_text('#il-message')
    assert not page.query_selector('.il-click')
    upload(page, 'large.bmp', encoded('.bmp', 200, 400))
    page.wait_for_selector('text=/exceed the maximum allowed size/')
    # Gradio lays this message over the place to drop files; its cross takes it away.
    page.locator('#il-drop button[aria-label=Clear]').dispatch_event('click')
    page.wait_for_function('document.querySelectorAll("#il-drop button").length == 1')


def check_prediction(page: Any) -> None:
    upload(page, 'photo.png', encoded('.png', 60, 80))
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
        wait_for_mark(page, page.locator('.il-cross'), page.locator('.il-click'), x, y)
        for i in range(2 * LAYERS):
            wait_for_mark(
                page, page.locator('.il-token').nth(i), page.locator('.il-cell .il-frame').nth(i), x, y
            )
        assert page.locator('.il-token').count() == 2 * LAYERS
        page.locator('.il-grid').screenshot(path=folder / 'shot.png')
        shots.append(cv2.imread(str(folder / 'shot.png')).astype(int))
        added.append(page.locator('.il-kernel').all_inner_texts())
    text = page.inner_text('#il-layers')
    for words in (
        'stage 1 block 1 · InLine',
        'stage 4 block 1 · Softmax',
        '8×8 tokens',
        'attention',
        'residual',
    ):
        assert words in text
    # Red and blue are there, and other places have them after another click.
    for shot in shots:
        assert (shot[..., 2] - shot[..., 0] > 40).mean() > 0.02
        assert (shot[..., 0] - shot[..., 2] > 40).mean() > 0.02
    assert shots[0].shape == shots[1].shape
    assert (np.abs(shots[0] - shots[1]).max(axis=2) > 30).mean() > 0.05
    assert all(len(texts) == LAYERS for texts in added)
    # In the last layer the image is one token.
    assert all(one != two for one, two in zip(*(texts[:-1] for texts in added), strict=True))


def wait_for_mark(page: Any, mark: Any, frame: Any, x: float, y: float) -> None:
    """The parts of an answer are drawn one after the other: the marks move a moment after the message."""
    for _ in range(10 * PATIENCE):
        boxes = mark.bounding_box(), frame.bounding_box()
        if all(boxes) and is_near(*boxes, x, y):
            return
        page.wait_for_timeout(100)
    pytest.fail(f'after {PATIENCE} s the mark is at {boxes[0]}, its frame {boxes[1]}, the point {x}, {y}')


def is_near(mark: dict[str, float], frame: dict[str, float], x: float, y: float) -> bool:
    """Whether a mark covers a point of a frame, given as shares of its sides, but for a pixel of drawing."""
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


def wait_for_pictures(page: Any, count: int) -> None:
    page.wait_for_function('count => document.querySelectorAll(".il-cell img").length == count', arg=count)


def check_refusals(address: str, folder: Path) -> None:
    """What no page asks for, but others may."""
    for path in (ROOT / 'README.md', folder / 'pvt-nano_digits.pth', '/etc/passwd'):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f'{address}gradio_api/file={path}')
        assert refused.value.code in (403, 404)
    body = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n' + bytes(200_000)
    request = urllib.request.Request(
        f'{address}gradio_api/upload',
        body + b'\r\n--x--\r\n',
        {'Content-Type': 'multipart/form-data; boundary=x'},
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request)
    assert refused.value.code == 413
    assert sum(path.stat().st_size for path in (folder / 'tmp').rglob('*') if path.is_file()) < 1000
    # Another address of the same machine: only 127.0.0.1 answers.
    with socket.socket() as other, pytest.raises(ConnectionRefusedError):
        other.connect(('127.0.0.2', int(address.rstrip('/').rsplit(':', 1)[1])))
