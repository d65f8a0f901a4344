"""Files inside a zip, read in place by any number of processes."""

import os
import stat
import struct
import zipfile
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from inline.errors import UserError

# A member's bytes follow a header of this size and two fields whose lengths stand at its end.
_HEADER_BYTES, _LENGTHS_AT = 30, 26
_HEADER_MARK = b'PK\x03\x04'
# Far above any image: what claims to unpack to more is meant to fill the memory.
MAX_MEMBER_BYTES = 1 << 28
_ENTRY = np.dtype([('offset', 'i8'), ('packed', 'i8'), ('size', 'i8'), ('crc', 'u4'), ('method', 'u2')])


class ZipArchive:
    """The members of a zip by name, in sorted order.

    The standard library's reader keeps some hundred bytes of objects for each member, in each process:
    a gigabyte a worker for ImageNet. Here the directory is three arrays, which forked workers share.
    Nothing is shared of the open file: each process opens its own, and a pickle holds none.

    A zip may come from anyone. Members are only ever read, out of the zip itself and up to the size that
    its directory states; names that would lead elsewhere once unpacked, links, and two members of one
    name are refused, since no honest program writes them.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            with zipfile.ZipFile(self.path) as file:
                members = [member for member in file.infolist() if _is_wanted(member)]
        except (zipfile.BadZipFile, OSError, NotImplementedError, ValueError) as error:
            # The latter two are what the standard library says of versions and names that make no sense.
            raise UserError(f'{self.path} cannot be read as a zip: {error}') from error
        size = self.path.stat().st_size
        for member in members:
            if fault := _fault(member, size):
                raise UserError(f'{self.path}: {member.filename!r} {fault}')
        members.sort(key=lambda member: member.filename)
        for one, other in pairwise(members):
            if one.filename == other.filename:
                raise UserError(f'{self.path}: {one.filename!r} is in it twice')
        self._names = np.array([member.filename.encode() for member in members], dtype=np.bytes_)
        self._entries = np.array(
            [(m.header_offset, m.compress_size, m.file_size, m.CRC, m.compress_type) for m in members],
            dtype=_ENTRY,
        )
        self._file: BinaryIO | None = None
        self._process = -1

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: str) -> bool:
        at = self._position(name)
        return at < len(self) and self._names[at] == name.encode()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {'_file': None, '_process': -1}

    def names(self, folder: str = '') -> list[str]:
        """Files at any depth below a folder, which is '' or ends with a slash; relative to it."""
        begin, end = self._position(folder), self._end_of(folder)
        start = len(folder.encode())
        return [name[start:].decode() for name in self._names[begin:end].tolist()]

    def folders(self, folder: str = '') -> list[str]:
        """Sorted names of the folders right inside a folder, which is '' or ends with a slash."""
        found, at, end = [], self._position(folder), self._end_of(folder)
        while at < end:
            first, slash, _ = self._names[at].decode().removeprefix(folder).partition('/')
            if slash:
                found.append(first)
                at = self._end_of(f'{folder}{first}/')
            else:
                at += 1
        # Whole paths sort otherwise than folders where a name goes on with what precedes the slash.
        return sorted(found)

    def read(self, name: str) -> bytes:
        """The content of a member, checked against the sum that the zip keeps of it."""
        if name not in self:
            raise FileNotFoundError(f'{self.path} has no member {name!r}')
        entry = self._entries[self._position(name)]
        offset, packed = int(entry['offset']), int(entry['packed'])
        descriptor = self._descriptor()
        header = os.pread(descriptor, _HEADER_BYTES, offset)
        if not header.startswith(_HEADER_MARK) or len(header) < _HEADER_BYTES:
            raise OSError(f'{self.path}: {name} is damaged (it is not where the directory says)')
        offset += _HEADER_BYTES + sum(struct.unpack_from('<HH', header, _LENGTHS_AT))
        content = os.pread(descriptor, packed, offset)
        try:
            if entry['method'] == zipfile.ZIP_DEFLATED:
                # One byte more than stated tells a lie; no more is unpacked.
                content = zlib.decompressobj(-zlib.MAX_WBITS).decompress(content, int(entry['size']) + 1)
        except zlib.error as error:
            raise OSError(f'{self.path}: {name} is damaged ({error})') from error
        if len(content) != entry['size'] or zlib.crc32(content) != entry['crc']:
            raise OSError(f'{self.path}: {name} is damaged (its size or check sum differs)')
        return content

    def _descriptor(self) -> int:
        if self._file is None or self._process != os.getpid():
            self._file, self._process = self.path.open('rb', buffering=0), os.getpid()
        return self._file.fileno()

    def _position(self, name: str) -> int:
        """Where a name is or would be: UTF-8 sorts as its characters do."""
        return int(np.searchsorted(self._names, np.bytes_(name.encode())))

    def _end_of(self, folder: str) -> int:
        """The position after all that begins with the folder's name: '0' follows the slash."""
        return self._position(f'{folder[:-1]}0') if folder else len(self)


def _is_wanted(member: zipfile.ZipInfo) -> bool:
    """Folders are not files, nor is what an operating system adds to its zips."""
    return not (member.is_dir() or member.filename.startswith('__MACOSX/'))


def _fault(member: zipfile.ZipInfo, zip_size: int) -> str | None:
    """Why a member is refused, None if it is not; `zip_size` in bytes."""
    name = member.filename
    if '\\' in name or ':' in name.split('/')[0] or any(part in ('', '.', '..') for part in name.split('/')):
        return 'is no plain relative path'
    if stat.S_ISLNK(member.external_attr >> 16):
        return 'is a link'
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or member.flag_bits & 1:
        return 'is encrypted or packed in an unusual way'
    if member.file_size > MAX_MEMBER_BYTES:
        return f'would unpack to {member.file_size} bytes: at most {MAX_MEMBER_BYTES} are read'
    if not 0 <= member.header_offset <= member.header_offset + member.compress_size <= zip_size:
        return 'lies outside the zip'
    if member.compress_type == zipfile.ZIP_STORED and member.compress_size != member.file_size:
        return 'has two sizes'
    return None
