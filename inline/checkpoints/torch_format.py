"""Reading files written by ``torch.save``, without torch's own reader.

torch's reader trusts the sizes in a file: a tensor may be declared larger than its bytes, and compressed
members may expand to any size. Here the zip file is read by Python's zipfile, which verifies checksums, the
pickle in it by the restricted unpickler, and every size is checked before memory is allocated. A checkpoint
never needs more memory than a small multiple of its file size.
"""

import io
import os
import pickle
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import IO, Any

import torch

from inline.checkpoints.plain_data import RefusedError, check_plain_data
from inline.checkpoints.tensors import Storage, StorageType, make_storage
from inline.checkpoints.unpickling import RestrictedUnpickler

ZIP_START = b'PK\x03\x04'
# The first two values of a file from before torch 1.6.
_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
_SIZE_BYTES = 8
# Per thread and task, so that trust is limited to its `with` block: see :func:`trust_checkpoints`.
_trusted: ContextVar[bool] = ContextVar('trusted', default=False)


@contextmanager
def trust_checkpoints(trust: bool = True) -> Iterator[None]:
    """Within this context, unpickle checkpoints without restriction if `trust` is true.

    Such files can run code. This is what ``--trust-checkpoint`` does for one run.
    """
    token = _trusted.set(trust)
    try:
        yield
    finally:
        _trusted.reset(token)


def load_torch(file: Any, map_location: Any = 'cpu') -> Any:
    """Return the content of a file that ``torch.save`` wrote, given as a path or a binary file object."""
    if _trusted.get():
        return torch.load(file, map_location=map_location, weights_only=False)
    if isinstance(file, str | Path):
        with Path(file).open('rb') as opened:
            return load_torch(opened, map_location)
    device = map_location if isinstance(map_location, str | torch.device) else 'cpu'
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    is_zip = file.read(len(ZIP_START)) == ZIP_START
    file.seek(0)
    content = _read_zip(file, size, device) if is_zip else read_legacy(file, size, device)
    check_plain_data(content, size)
    return content


def check_archive(archive: zipfile.ZipFile, size: int) -> None:
    """Raise if reading all members of a zip file of `size` bytes would give more bytes than that."""
    members = archive.infolist()
    if any(member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1 for member in members):
        raise RefusedError('it is compressed, which torch.save never does')
    # Members may overlap.
    if sum(member.file_size for member in members) > size:
        raise RefusedError(f'its members have more bytes than the file, which has {size:,}')


def _read_zip(file: IO[bytes], size: int, device: Any) -> Any:
    with zipfile.ZipFile(file) as archive:
        check_archive(archive, size)
        members = {member.filename.partition('/')[2]: member for member in archive.infolist()}
        if 'data.pkl' not in members:
            raise pickle.UnpicklingError('data.pkl is missing')
        if 'byteorder' in members and archive.read(members['byteorder']) != b'little':
            raise RefusedError('it was written on a machine with a different byte order')
        storages: dict[str, torch.UntypedStorage] = {}

        def find_storage(pid: Any) -> Storage:
            dtype, key, num_bytes = _parse_id(pid)
            if key not in storages:
                storages[key] = make_storage(archive.read(members[f'data/{key}']), device)
            if num_bytes > storages[key].nbytes():
                raise RefusedError(f'tensor data {key!r} has fewer bytes than declared')
            return Storage(storages[key], dtype)

        pickled = io.BytesIO(archive.read(members['data.pkl']))
        return RestrictedUnpickler(pickled, size, find_storage).load()


def read_legacy(file: IO[bytes], size: int, device: Any) -> Any:
    """Read the format from before torch 1.6: three pickles about the format, the data, then the storages."""
    for expected in (_MAGIC, _PROTOCOL):
        if RestrictedUnpickler(file, size).load() != expected:
            raise pickle.UnpicklingError('not a checkpoint')
    system = RestrictedUnpickler(file, size).load()
    if isinstance(system, dict) and system.get('little_endian') is False:
        raise RefusedError('it was written on a machine with a different byte order')
    storages: dict[str, Storage] = {}
    left = size

    def find_storage(pid: Any) -> Storage:
        nonlocal left
        dtype, key, num_bytes = _parse_id(pid)
        if key not in storages:
            left -= num_bytes
            if left < 0:
                raise RefusedError(f'tensor data {key!r} has fewer bytes than declared')
            storages[key] = Storage(make_storage(bytes(num_bytes), device), dtype)
        if num_bytes > storages[key].memory.nbytes():
            raise RefusedError(f'tensor data {key!r} has fewer bytes than declared')
        return Storage(storages[key].memory, dtype)

    data = RestrictedUnpickler(file, size, find_storage).load()
    keys = RestrictedUnpickler(file, size).load()
    if sorted(keys) != sorted(storages):
        raise pickle.UnpicklingError('the list of tensor data is incomplete')
    for key in keys:
        memory, itemsize = storages[key].memory, storages[key].dtype.itemsize
        num_bytes = int.from_bytes(file.read(_SIZE_BYTES), 'little') * itemsize
        content = file.read(min(num_bytes, size))
        if num_bytes != memory.nbytes() or len(content) != num_bytes:
            raise pickle.UnpicklingError('tensor data is truncated')
        memory.copy_(make_storage(content, device))
    return data


def _parse_id(pid: Any) -> tuple[torch.dtype, str, int]:
    """Return the type, the key and the number of bytes of a storage from its persistent id."""
    kind, storage_type, key, _, numel = pid[:5]
    if kind != 'storage' or type(storage_type) is not StorageType or type(key) is not str:
        raise RefusedError('it refers to an object that is not tensor data')
    # Views of storages, the sixth entry, are from before torch 0.2.
    if type(numel) is not int or numel < 0 or (len(pid) > 5 and pid[5] is not None):
        raise RefusedError(f'tensor data {key!r} has an invalid size')
    return storage_type.dtype, key, numel * storage_type.dtype.itemsize
