"""ImageNet for training, from folders or from zips, without a change of the config."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from mmengine.fileio import BaseStorageBackend, register_backend

from inline.compat import prepare
from inline.datasets.imagenet_layout import inner_root, map_of, read_labels, zip_of
from inline.datasets.zip_archive import ZipArchive
from inline.errors import UserError
from inline.registry import DATASETS

# A spawned worker begins here: it unpickles the dataset before anything else has prepared the stack.
prepare()

from mmpretrain.datasets import ImageNet as FolderImageNet  # noqa: E402

_SCHEME, _INSIDE = 'zip://', '.zip!/'


@register_backend('zip', prefixes='zip')
class ZipBackend(BaseStorageBackend):
    """Lets MMEngine read ``zip://path/to/archive.zip!/path/of/member``, in pipelines and listings."""

    def get(self, filepath: str) -> bytes:
        archive, member = _split(filepath)
        return archive.read(member)

    def get_text(self, filepath: str, encoding: str = 'utf-8') -> str:
        return self.get(filepath).decode(encoding)

    def join_path(self, filepath: str, *filepaths: str) -> str:
        return '/'.join([filepath.removesuffix('/'), *filepaths])

    def list_dir_or_file(
        self, dir_path: str, list_dir: bool = True, list_file: bool = True, recursive: bool = False
    ) -> Iterator[str]:
        """Folders right inside `dir_path`, and files there or, if `recursive`, at any depth below."""
        archive, folder = _split(dir_path)
        folder = f'{folder.removesuffix("/")}/' if folder else ''
        if list_dir:
            yield from archive.folders(folder)
        if list_file:
            yield from (name for name in archive.names(folder) if recursive or '/' not in name)


@DATASETS.register_module()
class ImageNet(FolderImageNet):
    """mmpretrain's dataset, which reads ``train.zip`` where there is no folder ``train``.

    Both forms give the same samples in the same order. See :mod:`inline.datasets.imagenet_layout`.
    """

    ann_file: str

    def _join_prefix(self) -> None:
        super()._join_prefix()
        packed = zip_of(self.img_prefix)
        if packed is None:
            return
        root = inner_root(_open(str(packed)))
        self.data_prefix['img_path'] = f'{_SCHEME}{packed}!/{root}'
        if self.ann_file or not self.with_label:
            return
        self.ann_file = str(map_of(packed) or '')
        if not self.ann_file and not _open(str(packed)).folders(root):
            raise UserError(
                f'{packed} has no class folders, so {packed.stem}_map.txt beside it '
                f'or meta/{packed.stem}.txt must give a label to each image'
            )

    def load_data_list(self) -> list[dict[str, Any]]:
        if not self.ann_file.endswith('_map.txt'):
            return super().load_data_list()
        join = ZipBackend().join_path
        return [
            {'img_path': join(self.img_prefix, name), 'gt_label': label}
            for name, label in read_labels(self.ann_file)
        ]


def _split(uri: str) -> tuple[ZipArchive, str]:
    path, mark, member = uri.removeprefix(_SCHEME).partition(_INSIDE)
    if not mark:
        raise UserError(f'{uri!r}: a file in a zip is named zip://path/to/archive.zip!/path/of/member')
    return _open(f'{path}.zip'), member


@cache
def _open(path: str) -> ZipArchive:
    """Read a zip's directory once a process; workers that are forked later share it."""
    return ZipArchive(Path(path))
