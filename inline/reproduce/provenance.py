"""Provenance of measured results: digests of config, data and starting weights, and the environment."""

import hashlib
import json
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from mmengine.config import Config

from inline.checkpoints.sources import find_packaged
from inline.datasets.zip_archive import label_file_of, zip_of
from inline.utils.nested import leaf_datasets
from inline.utils.resources import ROOT

# Length of the digests in result files.
SHORT = 12
# Columns of every file of measured results; see :func:`provenance_columns`.
PROVENANCE = (
    'config',
    'config_digest',
    'weights',
    'data_digest',
    'commit',
    'hardware',
    'versions',
    'date',
    'digest',
)


@dataclass(frozen=True)
class Inputs:
    """Inputs that identify a run. Runs with different inputs are different runs.

    The version of the code is recorded for every run but is not an input: after a harmless change (a
    comment, a new tool) a run of several days must still be resumable. The record lists all versions.

    Args:
        config: Digest of the config with all overrides, and of the tool's flags.
        weights: Digests of the starting checkpoints by path; empty for URLs.
        data: Digest of the datasets, see :func:`data_digest`.
    """

    config: str
    weights: dict[str, str]
    data: str

    @property
    def digest(self) -> str:
        """Digest of all inputs; it does not depend on the location of files."""
        return text_digest(json.dumps(self._content()))

    @property
    def short_digest(self) -> str:
        """The digest as in the column ``digest`` of result files."""
        return self.digest[:SHORT]

    def changed_from(self, other: 'Inputs') -> list[str]:
        """Return the names of the inputs that differ."""
        old = other._content()
        return [name for name, value in self._content().items() if value != old[name]]

    def _content(self) -> dict[str, object]:
        weights = list(self.weights.values())
        return {'config or options': self.config, 'starting weights': weights, 'data': self.data}


def data_digest(cfg: Config, phases: Sequence[str]) -> str:
    """Return a digest of the datasets of a config.

    It covers the content of annotation files, and the names and sizes of images and label maps: reading all
    pixels of ImageNet at every start would take too long. Missing files are not an error here; tools/train.py
    reports them.
    """
    digest = hashlib.sha256()
    for phase in phases:
        for dataset in leaf_datasets((cfg.get(f'{phase}_dataloader') or {}).get('dataset')):
            for key, path in _dataset_paths(dataset):
                digest.update(f'{phase} {key} {path_digest(path)}\n'.encode())
    return digest.hexdigest()


def path_digest(path: str | Path) -> str:
    """Return a digest of a file's content or of the listing of a folder or zip file; '' if it is missing."""
    path = str(find_packaged(path) or path)
    if os.path.isdir(path):
        return text_digest('\n'.join(_list_folder(path)))
    if not os.path.isfile(path):
        return ''
    if path.endswith('.zip'):
        with zipfile.ZipFile(path) as file:
            lines = [f'{entry.filename} {entry.file_size} {entry.CRC}' for entry in file.infolist()]
        return text_digest('\n'.join(lines))
    status = os.stat(path)
    return _file_digest(path, status.st_size, status.st_mtime_ns)


def text_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def provenance_columns(config: Path, inputs: Inputs, sessions: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return the :data:`PROVENANCE` columns of a row; values that differ between sessions are all listed."""
    weights = [
        f'{Path(path).name} {digest[:SHORT]}' if digest else path for path, digest in inputs.weights.items()
    ]
    # Of a generated config, the folder of the machine is no provenance: folder and file name are enough.
    shown = config.relative_to(ROOT) if config.is_relative_to(ROOT) else Path(*config.parts[-2:])
    return {
        'config': str(shown),
        'config_digest': inputs.config[:SHORT],
        'weights': '; '.join(weights),
        'data_digest': inputs.data[:SHORT],
        'digest': inputs.short_digest,
        **merge_columns(sessions),
    }


def merge_columns(rows: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Merge rows into one: each column lists its distinct values in order."""
    keys = dict.fromkeys(key for row in rows for key in row)
    return {key: '; '.join(dict.fromkeys(row[key] for row in rows if row.get(key))) for key in keys}


def _dataset_paths(dataset: Mapping[str, Any]) -> Iterator[tuple[str, Path]]:
    """Yield the files and folders in the config of a dataset, with their config keys."""
    root = Path(dataset.get('data_root') or '')
    if dataset.get('ann_file'):
        yield 'ann_file', root / dataset['ann_file']
    prefix = dataset.get('data_prefix') or (dataset.get('data_root') and dataset.get('split')) or {}
    folders = prefix if isinstance(prefix, Mapping) else {'data_prefix': prefix}
    for key, name in folders.items():
        # The zip of one split, or of all of them.
        packed = zip_of(root / name) or zip_of(root)
        yield key, packed or root / name
        if packed is not None and (labels := label_file_of(packed)) is not None:
            yield 'labels', labels
    if dataset.get('data_root') and not folders and not dataset.get('ann_file'):
        yield 'data_root', root


def _list_folder(path: str) -> list[str]:
    """Return the relative path and size of every file in a folder, sorted."""
    lines = []
    for folder, _, names in os.walk(path, followlinks=True):
        lines += [
            f'{os.path.relpath(file, path)} {os.stat(file).st_size}'
            for name in names
            if os.path.isfile(file := os.path.join(folder, name))
        ]
    return sorted(lines)


# Size and modification time are arguments because a replaced file must be read again.
@cache
def _file_digest(path: str, size: int, modified: int) -> str:  # noqa: ARG001
    with open(path, 'rb') as file:
        return hashlib.file_digest(file, 'sha256').hexdigest()
