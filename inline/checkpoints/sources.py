"""Where a checkpoint comes from: a file, a folder, the package, a URL or the Hugging Face Hub."""

import fcntl
import hashlib
import http.client
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import torch

from inline.utils.errors import UserError

CHECKPOINT_SUFFIXES = ('.safetensors', '.pth', '.pt', '.ckpt')
URL_SCHEMES = ('http', 'https', 'file')
HUB_PREFIXES = ('hf_hub:', 'hf-hub:')
# The file name that the Hub's mixin uses. A published folder has a file with a hash in its name instead.
WEIGHTS_NAME = 'model.safetensors'
# Weights that are part of the package, one file per name.
PACKAGED_FOLDER = Path(__file__).resolve().parents[1] / 'hub' / 'weights'
TIMEOUT_SECONDS = 30
CHUNK_BYTES = 1 << 18


def check_checkpoint(source: str | Path, what: str = 'checkpoint') -> None:
    """Raise a :class:`UserError` if `source` is a local path that does not exist."""
    if not (is_remote(source) or find_packaged(source) or Path(source).exists()):
        packaged = ''.join(f'{name} (in the package), ' for name in list_packaged())
        raise UserError(
            f'{what} {str(source)!r} does not exist: '
            f'give a .pth or .safetensors file, a published folder, {packaged}a URL or USER/MODEL on the Hub'
        )


def list_packaged() -> list[str]:
    """Return the names of the weights that are part of the package."""
    return sorted(path.stem for path in PACKAGED_FOLDER.glob('*.safetensors'))


def find_packaged(source: str | Path) -> Path | None:
    """Return the file of weights in the package, given by their name; None for anything else.

    Hyphens may replace underscores. ``./NAME`` is a path.
    """
    name = str(source).replace('-', '_')
    return PACKAGED_FOLDER / f'{name}.safetensors' if name in list_packaged() else None


def is_remote(source: str | Path) -> bool:
    """Return whether `source` is a URL or a name on the Hugging Face Hub."""
    return isinstance(source, str) and ('://' in source or hub_name(source) is not None)


def hub_name(source: str) -> str | None:
    """Return the name on the Hugging Face Hub, ``user/model``, or None for paths and URLs.

    ``hf_hub:user/model`` is always such a name. ``user/model`` is one unless it has the suffix of a
    checkpoint, exists as a path, or its folder exists.
    """
    for prefix in HUB_PREFIXES:
        if source.startswith(prefix):
            return source.removeprefix(prefix)
    is_path = source.startswith(('/', '.', '~')) or source.endswith(CHECKPOINT_SUFFIXES)
    if is_path or source.count('/') != 1 or '://' in source or Path(source).parent.is_dir():
        return None
    return source


def locate_checkpoint(source: str | Path, **hub_options: Any) -> Path:
    """Return the local file of a checkpoint, downloading it if necessary.

    Args:
        source: A file, a folder with one file of weights, the name of weights in the package, a URL, or
            ``user/model`` on the Hugging Face Hub.
        hub_options: Options of ``hf_hub_download``.
    """
    text, packaged = str(source), find_packaged(source)
    if packaged is not None:
        return packaged
    if Path(source).is_dir():
        return Path(source) / _choose_weights_file([path.name for path in Path(source).iterdir()], text)
    if isinstance(source, Path) or Path(source).exists():
        return Path(source)
    if '://' in source:
        return _locate_url(source)
    name = hub_name(source)
    return Path(source) if name is None else _locate_on_hub(name, source, hub_options)


def download(url: str, target: Path) -> Path:
    """Download to `target` unless it exists, continuing an interrupted download. Processes take turns."""
    if target.is_file():
        return target
    partial = target.with_name(f'{target.name}.part')
    target.parent.mkdir(parents=True, exist_ok=True)
    with partial.open('ab') as lock:
        # Some network file systems do not support locks.
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        if target.is_file():
            # Another process completed the download while this one waited.
            partial.unlink(missing_ok=True)
            return target
        try:
            total = _append(url, partial)
        except (OSError, ValueError, http.client.HTTPException) as error:
            if not partial.stat().st_size:
                partial.unlink()
            reason = getattr(error, 'reason', None) or error
            raise UserError(
                f'cannot download {url} ({reason}): run again, or download it yourself to {target}'
            ) from error
        size = partial.stat().st_size
        if total is not None and size != total:
            raise UserError(f'download of {url} stopped after {size} of {total} bytes: run again to continue')
        partial.replace(target)
    return target


def _append(url: str, partial: Path) -> int | None:
    """Append the missing bytes; return the total size if the server reports it."""
    from tqdm import tqdm

    begin = partial.stat().st_size
    request = urllib.request.Request(url, headers={'Range': f'bytes={begin}-'} if begin else {})
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        # No bytes are missing: the download was already complete.
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE and begin:
            return begin
        raise
    with response:
        # A server that does not support ranges sends the whole file again.
        begin = begin if response.status == http.client.PARTIAL_CONTENT else 0
        length = response.headers.get('Content-Length')
        total = begin + int(length) if length else None
        with (
            partial.open('ab' if begin else 'wb') as file,
            tqdm(total=total, initial=begin, unit='B', unit_scale=True, desc=partial.stem) as bar,
        ):
            while chunk := response.read(CHUNK_BYTES):
                file.write(chunk)
                bar.update(len(chunk))
    return total


def _locate_url(url: str) -> Path:
    """Return the cached file of a URL, downloading it once."""
    parsed = urlparse(url)
    if parsed.scheme not in URL_SCHEMES:
        raise UserError(f'checkpoint {url!r}: the scheme must be one of {", ".join(URL_SCHEMES)}')
    # With a hash, because many URLs end in the same file name.
    name = f'{hashlib.sha256(url.encode()).hexdigest()[:12]}-{Path(parsed.path).name}'
    return download(url, Path(torch.hub.get_dir(), 'checkpoints', name))


def _locate_on_hub(name: str, source: str, options: dict[str, Any]) -> Path:
    try:
        from huggingface_hub import HfApi, hf_hub_download
        from huggingface_hub.errors import HFValidationError, RemoteEntryNotFoundError
    except ImportError as error:
        raise UserError(
            f'{source!r} is not a local file, and downloading it from the Hugging Face Hub requires: '
            'pip install huggingface_hub'
        ) from error
    try:
        try:
            return Path(hf_hub_download(name, WEIGHTS_NAME, **options))
        except RemoteEntryNotFoundError:
            listed = {key: value for key, value in options.items() if key in ('revision', 'token')}
            files = HfApi().list_repo_files(name, **listed)
        return Path(hf_hub_download(name, _choose_weights_file(files, source), **options))
    except (HFValidationError, OSError) as error:
        raise UserError(
            f'{source!r} is not a local file and cannot be downloaded from the Hugging Face Hub: '
            f'{str(error).strip().splitlines()[0]}'
        ) from error


def _choose_weights_file(files: Sequence[str], source: str) -> str:
    if WEIGHTS_NAME in files:
        return WEIGHTS_NAME
    for suffix in ('.safetensors', '.pth'):
        found = [file for file in files if file.endswith(suffix)]
        if len(found) == 1:
            return found[0]
    raise UserError(f'{source!r} must contain {WEIGHTS_NAME} or exactly one .safetensors or .pth file')
