"""Where checkpoints come from: downloads from a local server, folders, and names on the Hub."""

import http.server
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from inline.checkpoints.official import OFFICIAL, find_link
from inline.checkpoints.sources import check_checkpoint, download, hub_name, locate_checkpoint
from inline.utils.errors import UserError
from tests.conftest import ROOT

CONTENT = bytes(range(256)) * 4000
LINKS = ROOT / 'results' / 'paper' / 'weights.csv'


class Server(http.server.ThreadingHTTPServer):
    supports_ranges = True
    stops_after: int | None = None
    requested: list[str | None]


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        asked = self.headers.get('Range')
        self.server.requested.append(asked)
        start = int(asked.removeprefix('bytes=').rstrip('-')) if asked and self.server.supports_ranges else 0
        if start >= len(CONTENT):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header('Content-Length', str(len(CONTENT) - start))
        self.end_headers()
        self.wfile.write(CONTENT[start : self.server.stops_after])

    def log_message(self, *args: object) -> None:
        """Do not log."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(('127.0.0.1', 0), Handler) as running:
        running.requested = []
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


def url(server: Server) -> str:
    return f'http://127.0.0.1:{server.server_address[1]}/weights.pth'


def test_a_file_is_downloaded_once(server: Server, tmp_path: Path) -> None:
    target = tmp_path / 'new' / 'weights.pth'
    assert download(url(server), target).read_bytes() == CONTENT
    assert download(url(server), target) == target
    assert server.requested == [None]
    assert [path.name for path in target.parent.iterdir()] == ['weights.pth']


@pytest.mark.parametrize('supports_ranges', [True, False])
def test_an_interrupted_download_continues(server: Server, tmp_path: Path, supports_ranges: bool) -> None:
    server.stops_after, server.supports_ranges = 300_000, supports_ranges
    with pytest.raises(UserError, match=r'stopped after 300000 of 1024000 bytes|cannot download'):
        download(url(server), tmp_path / 'weights.pth')
    assert not (tmp_path / 'weights.pth').exists()
    kept = (tmp_path / 'weights.pth.part').stat().st_size
    assert kept > 0
    server.stops_after = None
    assert download(url(server), tmp_path / 'weights.pth').read_bytes() == CONTENT
    assert server.requested == [None, f'bytes={kept}-']


def test_a_complete_partial_file_is_used(server: Server, tmp_path: Path) -> None:
    (tmp_path / 'weights.pth.part').write_bytes(CONTENT)
    assert download(url(server), tmp_path / 'weights.pth').read_bytes() == CONTENT


def test_without_network_the_error_names_the_url_and_the_target(tmp_path: Path) -> None:
    address = 'http://127.0.0.1:9/weights.pth'
    with pytest.raises(UserError, match='cannot download') as caught:
        download(address, tmp_path / 'weights.pth')
    assert address in str(caught.value)
    assert str(tmp_path / 'weights.pth') in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_all_published_models_have_a_link() -> None:
    published = [model for model in OFFICIAL.values() if model.img_size != 384]
    links = [find_link(model, LINKS) for model in published]
    assert len(set(links)) == 13
    assert all(link.startswith('https://') for link in links)


def test_processes_that_download_the_same_file_take_turns(server: Server, tmp_path: Path) -> None:
    target = tmp_path / 'weights.pth'
    with ThreadPoolExecutor() as pool:
        done = list(pool.map(lambda _: download(url(server), target), range(4)))
    assert set(done) == {target}
    assert target.read_bytes() == CONTENT
    assert server.requested == [None]
    assert [path.name for path in tmp_path.iterdir()] == ['weights.pth']


def test_urls_are_cached_by_their_full_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('TORCH_HOME', str(tmp_path / 'torch'))
    for number in (0, 1):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / 'weights.pth').write_text(str(number))
    paths = [locate_checkpoint(f'file://{tmp_path}/{number}/weights.pth') for number in (0, 1)]
    assert [path.read_text() for path in paths] == ['0', '1']
    (tmp_path / '0' / 'weights.pth').unlink()
    assert locate_checkpoint(f'file://{tmp_path}/0/weights.pth') == paths[0]
    with pytest.raises(UserError, match=r'cannot download file:///gone\.pth '):
        locate_checkpoint('file:///gone.pth')
    with pytest.raises(UserError, match=r"'s3://bucket/a\.pth': the scheme must be one of http, https, file"):
        locate_checkpoint('s3://bucket/a.pth')


@pytest.mark.parametrize('name', ['user/model', 'user/inline-v1.0', 'hf_hub:user/model.pth', 'hf-hub:a/b'])
def test_names_on_the_hub(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dot in the name of a model does not make it a local file."""
    requested = []

    def hub_download(repo: str, file: str, **_: Any) -> str:
        requested.append((repo, file))
        return f'/cache/{file}'

    monkeypatch.setattr(huggingface_hub, 'hf_hub_download', hub_download)
    check_checkpoint(name)
    assert locate_checkpoint(name) == Path('/cache/model.safetensors')
    assert requested == [(name.split(':')[-1], 'model.safetensors')]


@pytest.mark.parametrize(
    'path',
    ['gone', 'out/gone', 'out/v1.0', '/gone', './gone', '~/gone', 'a/b/c', 'a/b.pth', 'a/b.safetensors'],
)
def test_paths_are_not_names_on_the_hub(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'out').mkdir()
    assert hub_name(path) is None
    assert locate_checkpoint(path) == Path(path)
    with pytest.raises(UserError, match=f"checkpoint '{path}' does not exist: give a .pth"):
        check_checkpoint(path)


def test_a_failed_hub_download_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr('huggingface_hub.constants.HF_HUB_OFFLINE', True)
    monkeypatch.setattr('huggingface_hub.constants.HF_HUB_CACHE', str(tmp_path))
    with pytest.raises(UserError, match=r"'user/inline-v1\.0' is not a local file and cannot be") as raised:
        locate_checkpoint('user/inline-v1.0')
    assert '\n' not in str(raised.value)


def test_a_folder_must_have_one_weight_file(tmp_path: Path) -> None:
    (tmp_path / 'net-12345678.safetensors').touch()
    assert locate_checkpoint(tmp_path).name == 'net-12345678.safetensors'
    (tmp_path / 'net-87654321.safetensors').touch()
    with pytest.raises(UserError, match=r'must contain model\.safetensors or exactly one'):
        locate_checkpoint(str(tmp_path))
    (tmp_path / 'model.safetensors').touch()
    assert locate_checkpoint(str(tmp_path)).name == 'model.safetensors'
