"""Check the dataset at a path and link it."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from inline.datasets.prepare import ade20k, coco, imagenet, tiny_imagenet
from inline.datasets.prepare.inspection import Decoding, PathReport, format_reports
from inline.datasets.zip_archive import zip_of
from inline.utils.errors import UserError

LinkMode = Literal['if valid', 'always', 'never']


@dataclass(frozen=True)
class PublicDataset:
    """A public dataset.

    Attributes:
        title: Its name in messages.
        location: Where the configs expect it, relative to the data root.
        folders: Common names of its folder, relative to a folder of datasets.
        contents: Files or folders by which its folder is recognized; one of them is enough.
        check: Function from the folder, or from the zip, to reports.
        is_zip: Whether its zip is read as it is, with the name of its folder.
    """

    title: str
    location: str
    folders: tuple[str, ...]
    contents: tuple[str, ...]
    check: Callable[[Path, Decoding | None], list[PathReport]]
    is_zip: bool = False


DATASETS = {
    'imagenet': PublicDataset(
        'ImageNet-1K',
        location='imagenet',
        folders=('imagenet', 'ImageNet', 'ILSVRC2012', 'ILSVRC/Data/CLS-LOC', 'Data/CLS-LOC'),
        contents=('train', 'val', 'train.zip', 'val.zip'),
        check=imagenet.check,
    ),
    'coco': PublicDataset(
        'COCO 2017',
        location='coco',
        folders=('coco', 'COCO', 'coco2017', 'COCO2017'),
        contents=('train2017', 'val2017'),
        check=coco.check,
    ),
    'ade20k': PublicDataset(
        'ADE20K',
        location='ade/ADEChallengeData2016',
        folders=('ADEChallengeData2016', 'ade/ADEChallengeData2016', 'ade20k/ADEChallengeData2016'),
        contents=('images/training', 'images/validation', 'annotations/training', 'annotations/validation'),
        check=ade20k.check,
    ),
    'tiny-imagenet': PublicDataset(
        'Tiny-ImageNet',
        location='tiny-imagenet-200',
        folders=('tiny-imagenet-200',),
        contents=('wnids.txt',),
        check=tiny_imagenet.check,
        is_zip=True,
    ),
}


def prepare(
    dataset: PublicDataset,
    path: Path,
    data_root: Path,
    decoding: Decoding | None,
    link_mode: LinkMode = 'if valid',
) -> int:
    """Check the copy at `path`, print the reports and link it into `data_root`.

    Args:
        decoding: None to not open images.

    Returns:
        The exit code: 0 without problems, 1 with problems.
    """
    root, link_path = locate(dataset, path), data_root / dataset.location
    if root.is_file():
        link_path = link_path.with_name(f'{link_path.name}.zip')
    if link_mode != 'never':
        # Fail before the long check, not after it.
        _is_linked(link_path, root)
    try:
        reports = dataset.check(root, decoding)
    except OSError as error:
        raise UserError(f'{error.filename or root} cannot be read: {error.strerror or error}') from error
    print(format_reports(dataset.title, root, reports))
    problems = sum(len(report.problems) for report in reports)
    found = {0: 'no problems', 1: '1 problem'}.get(problems, f'{problems} problems')
    print(f'{found} found{_decoding_remark(decoding)}')
    if link_mode == 'always' or (link_mode == 'if valid' and not problems):
        print(_link(link_path, root))
    elif link_mode == 'if valid':
        print(f'not linked to {link_path}: fix the problems and run again, or use --link-anyway')
    return 1 if problems else 0


def locate(dataset: PublicDataset, path: Path) -> Path:
    """Return the folder or zip of the dataset: `path` or one of the common names in it."""
    if dataset.is_zip and path.is_file():
        return path
    if not path.is_dir():
        reason = 'is not a folder' if path.exists() else 'does not exist'
        raise UserError(
            f'{str(path)!r} {reason}: give the folder{" or zip" if dataset.is_zip else ""} of {dataset.title}'
        )
    for folder in [path, *(path / folder for folder in dataset.folders)]:
        if any((folder / content).exists() for content in dataset.contents):
            return folder
        zip_path = zip_of(folder) if dataset.is_zip else None
        if zip_path is not None:
            return zip_path
    # Nothing found: all files will be reported as missing.
    return path


def _is_linked(link_path: Path, target: Path) -> bool:
    """Return whether the link exists; raise a :class:`UserError` if anything else is in its place."""
    if os.path.lexists(link_path):
        if link_path.exists() and link_path.samefile(target):
            return True
        what = f'links to {link_path.readlink()}' if link_path.is_symlink() else 'exists and is not a link'
        raise UserError(
            f'{link_path} {what}: remove it, use another --data-root, or only check with --no-link'
        )
    for parent in link_path.parents:
        if parent.exists() and not parent.is_dir():
            raise UserError(f'{link_path} cannot be created: {parent} is not a folder')
    return False


def _link(link_path: Path, target: Path) -> str:
    """Create the link if necessary and return a message."""
    if _is_linked(link_path, target):
        return f'already linked: {link_path}'
    target = Path(os.path.abspath(target))
    try:
        link_path.parent.mkdir(parents=True, exist_ok=True)
        link_path.symlink_to(target, target_is_directory=target.is_dir())
    except OSError as error:
        raise UserError(f'{link_path} cannot be linked to {target}: {error.strerror}') from error
    return f'linked: {link_path} -> {target}'


def _decoding_remark(decoding: Decoding | None) -> str:
    if decoding is None:
        return ' (images were not decoded)'
    return '' if decoding.limit is None else f' (at most {decoding.limit:,} images per folder were decoded)'
