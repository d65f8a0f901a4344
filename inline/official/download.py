"""Fetching a released checkpoint, with progress, and from where an earlier attempt broke off."""

import csv
import http.client
import urllib.error
import urllib.request
from pathlib import Path

from tqdm import tqdm

from inline.errors import UserError
from inline.official.catalogue import OfficialModel

TIMEOUT_SECONDS = 30
CHUNK_BYTES = 1 << 18


def find_link(model: OfficialModel, table: Path) -> str:
    """The address of a model's weights out of a table with the columns model, resolution and url."""
    with table.open(newline='') as file:
        for row in csv.DictReader(file):
            if row['model'] == model.title and row['resolution'] == str(model.img_size):
                return row['url']
    raise UserError(f'the authors published no weights of {model.name}')


def fetch(url: str, target: Path) -> Path:
    """Download to `target` unless it is there already. A part that was fetched before is kept and used."""
    if target.is_file():
        return target
    part = target.with_name(f'{target.name}.part')
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        total = _download(url, part)
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, 'reason', None) or error
        raise UserError(
            f'cannot download {url} ({reason}): run again, or fetch it yourself and put it at {target}'
        ) from error
    size = part.stat().st_size
    if total is not None and size != total:
        raise UserError(f'{url} broke off after {size} of {total} bytes: run again to go on')
    part.replace(target)
    return target


def _download(url: str, part: Path) -> int | None:
    """Append what is missing to the part; return the whole size if the server tells it."""
    begun = part.stat().st_size if part.is_file() else 0
    request = urllib.request.Request(url, headers={'Range': f'bytes={begun}-'} if begun else {})
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        # Nothing lies beyond what is there: the part was whole already.
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE and begun:
            return begun
        raise
    with response:
        # A server that does not know ranges sends everything again.
        begun = begun if response.status == http.client.PARTIAL_CONTENT else 0
        length = response.headers.get('Content-Length')
        total = begun + int(length) if length else None
        with (
            part.open('ab' if begun else 'wb') as file,
            tqdm(total=total, initial=begun, unit='B', unit_scale=True, desc=part.stem) as bar,
        ):
            while chunk := response.read(CHUNK_BYTES):
                file.write(chunk)
                bar.update(len(chunk))
    return total
