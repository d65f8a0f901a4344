"""From a path to a checked and linked data set."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from inline.datasets.prepare import ade20k, coco, imagenet
from inline.datasets.prepare.images import Decoding
from inline.datasets.prepare.link import check_place, link
from inline.datasets.prepare.report import Part, format_report
from inline.errors import UserError

Linking = Literal['if well', 'anyway', 'never']


@dataclass(frozen=True)
class DataSet:
    """A public data set.

    Attributes:
        place: Where the configs look for it, in the folder that they call ``data``.
        folders: What its folder is called in a folder of data sets.
        contents: What tells its folder from others: one of these is in it.
        check: Called with the folder; the findings.
    """

    title: str
    place: str
    folders: tuple[str, ...]
    contents: tuple[str, ...]
    check: Callable[[Path, Decoding | None], list[Part]]


DATA_SETS = {
    'imagenet': DataSet(
        'ImageNet-1K',
        place='imagenet',
        folders=('imagenet', 'ImageNet', 'ILSVRC2012', 'ILSVRC/Data/CLS-LOC', 'Data/CLS-LOC'),
        contents=('train', 'val', 'train.zip', 'val.zip'),
        check=imagenet.check,
    ),
    'coco': DataSet(
        'COCO 2017',
        place='coco',
        folders=('coco', 'COCO', 'coco2017', 'COCO2017'),
        contents=('train2017', 'val2017'),
        check=coco.check,
    ),
    'ade20k': DataSet(
        'ADE20K',
        place='ade/ADEChallengeData2016',
        folders=('ADEChallengeData2016', 'ade/ADEChallengeData2016', 'ade20k/ADEChallengeData2016'),
        contents=('images/training', 'images/validation', 'annotations/training', 'annotations/validation'),
        check=ade20k.check,
    ),
}


def prepare(
    data_set: DataSet, path: Path, data_root: Path, decoding: Decoding | None, linking: Linking = 'if well'
) -> int:
    """Check the copy at `path`, print the findings and link it below `data_root`.

    `decoding` is None to leave the images unopened. The exit code: 0 if all is well, 1 if not.
    """
    root, place = locate(data_set, path), data_root / data_set.place
    if linking != 'never':
        # Before the long work, not after it.
        check_place(place, root)
    try:
        parts = data_set.check(root, decoding)
    except OSError as error:
        raise UserError(f'{error.filename or root} cannot be read: {error.strerror or error}') from error
    print(format_report(data_set.title, root, parts))
    problems = sum(len(part.problems) for part in parts)
    print(f'{_count(problems)} found{_decoded(decoding)}')
    if linking == 'anyway' or (linking == 'if well' and not problems):
        print(link(place, root))
    elif linking == 'if well':
        print(f'not linked to {place}: put it right and run again, or give --link-anyway')
    return 1 if problems else 0


def locate(data_set: DataSet, path: Path) -> Path:
    """The folder of the data set: `path`, or one of the usual names in it."""
    if not path.is_dir():
        what = 'is no folder' if path.exists() else 'does not exist'
        raise UserError(f'{str(path)!r} {what}: give the folder that holds {data_set.title}')
    candidates = [path, *(path / folder for folder in data_set.folders)]
    for folder in candidates:
        if any((folder / content).exists() for content in data_set.contents):
            return folder
    # Nothing is there yet: all parts of it will be told as missing.
    return path


def _count(problems: int) -> str:
    return {0: 'no problem', 1: '1 problem'}.get(problems, f'{problems} problems')


def _decoded(decoding: Decoding | None) -> str:
    if decoding is None:
        return ' (images were not decoded)'
    return (
        '' if decoding.limit is None else f' (of each folder at most {decoding.limit:,} images were decoded)'
    )
