"""Downloading from a real server on this machine: whole, broken off, resumed, refused."""

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from inline.errors import UserError
from inline.official.catalogue import OFFICIAL
from inline.official.download import fetch, find_link
from tests.conftest import ROOT

CONTENT = bytes(range(256)) * 4000
LINKS = ROOT / 'results' / 'paper' / 'weights.csv'


class Server(http.server.ThreadingHTTPServer):
    knows_ranges = True
    breaks_off_after: int | None = None
    requested: list[str | None]


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        asked = self.headers.get('Range')
        self.server.requested.append(asked)
        start = int(asked.removeprefix('bytes=').rstrip('-')) if asked and self.server.knows_ranges else 0
        if start >= len(CONTENT):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header('Content-Length', str(len(CONTENT) - start))
        self.end_headers()
        self.wfile.write(CONTENT[start : self.server.breaks_off_after])

    def log_message(self, *args: object) -> None:
        """Stay silent."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(('127.0.0.1', 0), Handler) as running:
        running.requested = []
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


def url(server: Server) -> str:
    return f'http://127.0.0.1:{server.server_address[1]}/weights.pth'


def test_a_file_is_fetched_once(server: Server, tmp_path: Path) -> None:
    target = tmp_path / 'new' / 'weights.pth'
    assert fetch(url(server), target).read_bytes() == CONTENT
    assert fetch(url(server), target) == target
    assert server.requested == [None]
    assert [path.name for path in target.parent.iterdir()] == ['weights.pth']


@pytest.mark.parametrize('knows_ranges', [True, False])
def test_a_download_that_broke_off_goes_on(server: Server, tmp_path: Path, knows_ranges: bool) -> None:
    server.breaks_off_after, server.knows_ranges = 300_000, knows_ranges
    with pytest.raises(UserError, match=r'broke off after 300000 of 1024000 bytes|cannot download'):
        fetch(url(server), tmp_path / 'weights.pth')
    assert not (tmp_path / 'weights.pth').exists()
    kept = (tmp_path / 'weights.pth.part').stat().st_size
    assert kept > 0
    server.breaks_off_after = None
    assert fetch(url(server), tmp_path / 'weights.pth').read_bytes() == CONTENT
    assert server.requested == [None, f'bytes={kept}-']


def test_a_part_that_is_whole_already_is_taken(server: Server, tmp_path: Path) -> None:
    (tmp_path / 'weights.pth.part').write_bytes(CONTENT)
    assert fetch(url(server), tmp_path / 'weights.pth').read_bytes() == CONTENT


def test_without_a_network_the_line_says_what_to_fetch_and_where_to_put_it(tmp_path: Path) -> None:
    address = 'http://127.0.0.1:9/weights.pth'
    with pytest.raises(UserError, match='cannot download') as caught:
        fetch(address, tmp_path / 'weights.pth')
    assert address in str(caught.value)
    assert str(tmp_path / 'weights.pth') in str(caught.value)


def test_links_of_all_published_models_are_found() -> None:
    published = [model for model in OFFICIAL.values() if model.img_size != 384]
    links = [find_link(model, LINKS) for model in published]
    assert len(set(links)) == 13
    assert all(link.startswith('https://') for link in links)
