"""Checks of requests before Gradio handles them: allowed hosts, routes and upload sizes.

The page of another website can send requests to a server on the same machine, and read the answers if its own
name is made to resolve to 127.0.0.1 (DNS rebinding). Such requests carry the name of that website.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from inline.utils.errors import UserError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

# Names of this machine that a browser on it, or at the other end of an SSH tunnel, uses.
LOCAL_HOSTS = ('127.0.0.1', 'localhost', '::1')
# What the page uses. Other routes of Gradio serve files, fetch URLs or write to the cache.
_PATHS = {
    'GET': (
        '/assets/', '/favicon.ico', '/gradio_api/heartbeat/', '/gradio_api/queue/data',
        '/gradio_api/startup-events', '/gradio_api/upload_progress', '/manifest.json', '/static/',
        '/theme.css',
    ),
    'POST': ('/gradio_api/queue/join', '/gradio_api/upload'),
}  # fmt: skip
_UPLOAD = '/gradio_api/upload'
# A request besides the uploaded file: multipart headers, or the values of the page.
_OTHER_BYTES = 1_000_000


class RequestGuard:
    """ASGI middleware that answers unwanted requests itself and deletes surplus uploads.

    Args:
        app: The application that gets the other requests.
        allowed_hosts: Names in addition to :data:`LOCAL_HOSTS`, for a proxy.
        max_bytes: Maximum size of an uploaded file.
        uploads: Folder of uploaded files.
        max_uploads: Number of files to keep in it; the oldest ones are deleted. Also the number of uploads at
            the same time.
    """

    def __init__(
        self, app: 'ASGIApp', allowed_hosts: Sequence[str], max_bytes: int, uploads: Path, max_uploads: int
    ) -> None:
        self.app = app
        self.allowed_hosts = frozenset(name.lower() for name in allowed_hosts)
        self.max_bytes = max_bytes
        self.uploads = uploads
        self.max_uploads = max_uploads
        self._active_uploads = 0

    async def __call__(self, scope: 'Scope', receive: 'Receive', send: 'Send') -> None:
        from starlette.requests import ClientDisconnect
        from starlette.responses import PlainTextResponse

        if scope['type'] == 'lifespan':
            await self.app(scope, receive, send)
            return
        if scope['type'] != 'http':
            # Refuses the connection: the page uses no WebSocket.
            await send({'type': 'websocket.close'})
            return
        refusal = self.refuse(scope)
        if refusal is not None:
            status, reason = refusal
            await PlainTextResponse(f'{reason}\n', status)(scope, receive, send)
            return
        is_upload = scope['path'] == _UPLOAD
        self._active_uploads += is_upload
        try:
            # A connection lost during an upload is not a server error.
            with suppress(ClientDisconnect):
                await self.app(scope, receive, send)
        finally:
            self._active_uploads -= is_upload
            if is_upload:
                # Gradio deletes neither uploads that no event follows, nor those of a lost connection.
                delete_old_files(self.uploads, self.max_uploads)

    def refuse(self, scope: 'Scope') -> tuple[int, str] | None:
        """Return status and reason if a request is refused."""
        headers = {name.decode('latin-1'): value.decode('latin-1') for name, value in scope['headers']}
        host, origin = headers.get('host', ''), headers.get('origin')
        if _host_name(f'//{host}') not in self.allowed_hosts.union(LOCAL_HOSTS):
            return 403, f'host {host!r} is not allowed; tools/serve.py --allow-host NAME allows one'
        # A proxy may replace the host, but not the origin.
        is_same = origin is None or urlsplit(origin).netloc.lower() == host.lower()
        if not is_same and _host_name(str(origin)) not in self.allowed_hosts:
            return 403, f'origin {origin!r} is not allowed; tools/serve.py --allow-host NAME allows one'
        method = 'GET' if scope['method'] == 'HEAD' else scope['method']
        paths = _PATHS.get(method, ())
        if scope['path'] != '/' and not any(
            scope['path'] == path or (path.endswith('/') and scope['path'].startswith(path)) for path in paths
        ):
            return 404, f'{scope["method"]} {scope["path"]!r} is not part of this page'
        if method != 'POST':
            return None
        length = headers.get('content-length', '')
        if not length.isdecimal():
            return 411, 'a request without Content-Length is not accepted'
        if int(length) > self.max_bytes + _OTHER_BYTES:
            return 413, f'a request of {length} bytes exceeds the maximum allowed size'
        if scope['path'] == _UPLOAD and self._active_uploads >= self.max_uploads:
            return 503, f'{self._active_uploads} uploads are in progress: try again'
        return None


def _host_name(address: str) -> str | None:
    """Return the host of an address such as ``http://localhost:7860``; None if it is invalid."""
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None


def check_hosts(names: Sequence[str]) -> None:
    """Raise a :class:`UserError` unless all names are plain host names or addresses."""
    for name in names:
        if not name or _host_name(f'//{name}') != name.lower():
            raise UserError(f'--allow-host {name!r}: must be a host name without scheme, port or path')


def delete_old_files(folder: Path, max_files: int) -> None:
    """Delete all but the newest files below a folder, and the folders that become empty."""
    files, folders = [], []
    # Unlike rglob, walk ignores what another thread deletes in the meantime.
    for parent, _, names in os.walk(folder, topdown=False):
        folders.append(Path(parent))
        for path in (Path(parent, name) for name in names):
            with suppress(FileNotFoundError):
                files.append((path.stat().st_mtime_ns, path))
    for _, path in sorted(files)[: max(len(files) - max_files, 0)]:
        path.unlink(missing_ok=True)
    for path in folders[:-1]:
        # Fails for a folder that still holds a file. The last one is `folder` itself.
        with suppress(OSError):
            path.rmdir()


def guarded_app(**guard: Any) -> Any:
    """Return a Gradio application whose outermost layer is a :class:`RequestGuard` with these options."""
    from gradio.routes import App

    class GuardedApp(App):
        def build_middleware_stack(self) -> 'ASGIApp':
            return RequestGuard(super().build_middleware_stack(), **guard)

    return GuardedApp()
