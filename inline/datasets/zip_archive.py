"""ImageNet splits as folders or zips, and a zip reader for any number of worker processes.

A split is a folder of class folders (``train/n01440764/….JPEG``) or a zip of the same name and content
(``train.zip``), optionally with leading folders inside it. A label is the index of the class folder in sorted
order. Alternatively a text file gives one image and label per line: ``meta/train.txt``, or ``train_map.txt``
next to the zip. Then the images need no class folders.
"""

import os
import re
import stat
import struct
import zipfile
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from inline.utils.errors import UserError

# Sanity limit, far above any image: a larger stated size is a zip bomb.
MAX_MEMBER_BYTES = 1 << 28
_SYNSET = re.compile(r'n\d{8}')
# A local file header: fixed part, then name and extra field, whose lengths are its last four bytes.
_HEADER_BYTES, _LENGTHS_OFFSET = 30, 26
_HEADER_SIGNATURE = b'PK\x03\x04'
_ENTRY = np.dtype([('offset', 'i8'), ('packed', 'i8'), ('size', 'i8'), ('crc', 'u4'), ('method', 'u2')])


class ZipArchive:
    """Read-only access to the members of a zip, sorted by name.

    :class:`zipfile.ZipFile` keeps several hundred bytes of Python objects per member: 1 GB per worker for
    ImageNet. Here the directory is a pair of NumPy arrays that forked workers share. Each process opens the
    file itself, and a pickled archive holds no open file.

    Zips are untrusted input. A member is read up to the size that the directory states. Path traversal,
    symbolic links and duplicate names raise a :class:`UserError`.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            with zipfile.ZipFile(self.path) as file:
                # Folders, and the resource forks that macOS adds, are not files.
                members = [
                    member
                    for member in file.infolist()
                    if not (member.is_dir() or member.filename.startswith('__MACOSX/'))
                ]
        except (zipfile.BadZipFile, OSError, NotImplementedError, ValueError) as error:
            # zipfile raises the last two for invalid versions and names.
            raise UserError(f'{self.path} cannot be read as a zip: {error}') from error
        size = self.path.stat().st_size
        for member in members:
            if error_text := _member_error(member, size):
                raise UserError(f'{self.path}: {member.filename!r} {error_text}')
        members.sort(key=lambda member: member.filename)
        for member, following in pairwise(members):
            if member.filename == following.filename:
                raise UserError(f'{self.path}: {member.filename!r} occurs twice')
        self._names = np.array([member.filename.encode() for member in members], dtype=np.bytes_)
        self._entries = np.array(
            [(m.header_offset, m.compress_size, m.file_size, m.CRC, m.compress_type) for m in members],
            dtype=_ENTRY,
        )
        self._file: BinaryIO | None = None
        self._pid = -1

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: str) -> bool:
        index = self._index(name)
        return index < len(self) and self._names[index] == name.encode()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {'_file': None, '_pid': -1}

    def names(self, folder: str = '') -> list[str]:
        """Return all files below a folder, relative to it; `folder` is '' or ends with a slash."""
        names = self._names[self._index(folder) : self._end_index(folder)].tolist()
        start = len(folder.encode())
        return [name[start:].decode() for name in names]

    def folders(self, folder: str = '') -> list[str]:
        """Return the sorted names of the direct subfolders of a folder, which is '' or ends with a slash."""
        found, index, end = [], self._index(folder), self._end_index(folder)
        while index < end:
            first, slash, _ = self._names[index].decode().removeprefix(folder).partition('/')
            if slash:
                found.append(first)
                index = self._end_index(f'{folder}{first}/')
            else:
                index += 1
        # Paths sort differently from folder names if a name continues with a character below the slash.
        return sorted(found)

    def read(self, name: str) -> bytes:
        """Return the content of a member after verifying its CRC; raise an OSError if it is damaged."""
        if name not in self:
            raise FileNotFoundError(f'{self.path} has no member {name!r}')
        entry = self._entries[self._index(name)]
        offset, packed = int(entry['offset']), int(entry['packed'])
        descriptor = self._descriptor()
        header = os.pread(descriptor, _HEADER_BYTES, offset)
        if not header.startswith(_HEADER_SIGNATURE) or len(header) < _HEADER_BYTES:
            raise OSError(f'{self.path}: {name} is damaged (no file header at the stated offset)')
        offset += _HEADER_BYTES + sum(struct.unpack_from('<HH', header, _LENGTHS_OFFSET))
        content = os.pread(descriptor, packed, offset)
        try:
            if entry['method'] == zipfile.ZIP_DEFLATED:
                # One byte more than stated is enough to detect a wrong size.
                content = zlib.decompressobj(-zlib.MAX_WBITS).decompress(content, int(entry['size']) + 1)
        except zlib.error as error:
            raise OSError(f'{self.path}: {name} is damaged ({error})') from error
        if len(content) != entry['size'] or zlib.crc32(content) != entry['crc']:
            raise OSError(f'{self.path}: {name} is damaged (wrong size or checksum)')
        return content

    def _descriptor(self) -> int:
        if self._file is None or self._pid != os.getpid():
            self._file, self._pid = self.path.open('rb', buffering=0), os.getpid()
        return self._file.fileno()

    def _index(self, name: str) -> int:
        """Return the position of a name in sorted order. UTF-8 bytes sort like code points."""
        return int(np.searchsorted(self._names, np.bytes_(name.encode())))

    def _end_index(self, folder: str) -> int:
        """Return the position after all names in a folder: '0' is the character after the slash."""
        return self._index(f'{folder[:-1]}0') if folder else len(self)


def _member_error(member: zipfile.ZipInfo, zip_size: int) -> str | None:
    """Return why a member is not accepted, None if it is; `zip_size` is in bytes."""
    name = member.filename
    if '\\' in name or ':' in name.split('/')[0] or any(part in ('', '.', '..') for part in name.split('/')):
        return 'is not a plain relative path'
    if stat.S_ISLNK(member.external_attr >> 16):
        return 'is a symbolic link'
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or member.flag_bits & 1:
        return 'is encrypted or has an unsupported compression method'
    if member.file_size > MAX_MEMBER_BYTES:
        return f'would decompress to {member.file_size} bytes: at most {MAX_MEMBER_BYTES} are allowed'
    if not 0 <= member.header_offset <= member.header_offset + member.compress_size <= zip_size:
        return 'lies outside the zip'
    if member.compress_type == zipfile.ZIP_STORED and member.compress_size != member.file_size:
        return 'is stored with two different sizes'
    return None


def is_synset(name: str) -> bool:
    """Return whether a class folder is named like ImageNet's, for example n01440764."""
    return _SYNSET.fullmatch(name) is not None


def zip_of(folder: str | Path) -> Path | None:
    """Return the zip that replaces a folder, None if the folder exists or there is no zip."""
    folder = Path(folder)
    path = folder.with_name(f'{folder.name}.zip')
    return path if not folder.is_dir() and path.is_file() else None


def label_file_of(zip_path: Path) -> Path | None:
    """Return the label file next to a zip, None if there is none."""
    path = zip_path.with_name(f'{zip_path.stem}_map.txt')
    return path if path.is_file() else None


def inner_root(archive: ZipArchive) -> str:
    """Return the leading folders before the class folders or images of a zip: '' or a path with a slash."""
    root = ''
    while len(folders := archive.folders(root)) == 1 and not is_synset(folders[0]):
        root += f'{folders[0]}/'
    return root


def read_labels(path: str | Path) -> list[tuple[str, int]]:
    """Read (name, label) pairs from a text file; each line is split at its last whitespace."""
    pairs = (line.rsplit(maxsplit=1) for line in Path(path).read_text().splitlines() if line.strip())
    return [(name, int(label)) for name, label in pairs]
