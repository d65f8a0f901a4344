"""The ImageNet dataset of the configs, which reads folders or zips."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from mmengine.fileio import BaseStorageBackend, register_backend

from inline.datasets.zip_archive import ZipArchive, inner_root, label_file_of, read_labels, zip_of
from inline.openmmlab.patches import apply_patches
from inline.registry import DATASETS
from inline.utils.errors import UserError

# A spawned worker imports this module first, to unpickle the dataset, before any patches are applied.
apply_patches()

from mmpretrain.datasets import ImageNet as FolderImageNet  # noqa: E402

_SCHEME, _SEPARATOR = 'zip://', '.zip!/'


@register_backend('zip', prefixes='zip')
class ZipBackend(BaseStorageBackend):
    """MMEngine storage backend for ``zip://path/to/archive.zip!/path/of/member``."""

    def get(self, filepath: str) -> bytes:
        archive, member = _split_uri(filepath)
        return archive.read(member)

    def get_text(self, filepath: str, encoding: str = 'utf-8') -> str:
        return self.get(filepath).decode(encoding)

    def join_path(self, filepath: str, *filepaths: str) -> str:
        return '/'.join([filepath.removesuffix('/'), *filepaths])

    def list_dir_or_file(
        self,
        dir_path: str,
        list_dir: bool = True,
        list_file: bool = True,
        suffix: str | tuple[str, ...] | None = None,
        recursive: bool = False,
    ) -> Iterator[str]:
        """Yield the direct subfolders of `dir_path` and its files, with `recursive` at any depth."""
        archive, folder = _split_uri(dir_path)
        folder = f'{folder.removesuffix("/")}/' if folder else ''
        if list_dir:
            yield from archive.folders(folder)
        if list_file:
            yield from (
                name
                for name in archive.names(folder)
                if (recursive or '/' not in name) and (suffix is None or name.endswith(suffix))
            )


@DATASETS.register_module()
class ImageNet(FolderImageNet):
    """mmpretrain's ImageNet dataset that reads ``train.zip`` if there is no folder ``train``.

    Both layouts give the same samples in the same order. See :mod:`inline.datasets.zip_archive`.
    """

    ann_file: str

    def _join_prefix(self) -> None:
        super()._join_prefix()
        path = zip_of(self.img_prefix)
        if path is None:
            return
        self.data_prefix['img_path'] = zip_uri(path)
        if self.ann_file or not self.with_label:
            return
        self.ann_file = str(label_file_of(path) or '')
        archive = _open_archive(str(path))
        if not self.ann_file and not archive.folders(inner_root(archive)):
            raise UserError(
                f'{path} has no class folders: give the labels in {path.stem}_map.txt next to it '
                f'or in meta/{path.stem}.txt'
            )

    def load_data_list(self) -> list[dict[str, Any]]:
        if not self.ann_file.endswith('_map.txt'):
            return super().load_data_list()
        join = ZipBackend().join_path
        return [
            {'img_path': join(self.img_prefix, name), 'gt_label': label}
            for name, label in read_labels(self.ann_file)
        ]


def zip_uri(path: str | Path) -> str:
    """Return the address of the content of a zip, below its leading folders, with a slash at the end."""
    return f'{_SCHEME}{path}!/{inner_root(_open_archive(str(path)))}'


def _split_uri(uri: str) -> tuple[ZipArchive, str]:
    path, separator, member = uri.removeprefix(_SCHEME).partition(_SEPARATOR)
    if not separator:
        raise UserError(f'{uri!r} is not a zip address: must be zip://path/to/archive.zip!/path/of/member')
    return _open_archive(f'{path}.zip'), member


@cache
def _open_archive(path: str) -> ZipArchive:
    """Read the directory of a zip once per process; workers that are forked later share it."""
    return ZipArchive(Path(path))
