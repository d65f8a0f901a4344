"""Tiny-ImageNet as its folder or zip; see :mod:`inline.datasets.tiny_imagenet` for the layout."""

from dataclasses import dataclass
from pathlib import Path

from mmengine.fileio import join_path, list_dir_or_file

from inline.datasets.loading import read_bytes
from inline.datasets.prepare.inspection import Decoding, PathReport, image_decoder, inspect_all
from inline.datasets.tiny_imagenet import find_root, read_classes, read_split
from inline.utils.errors import UserError

SOURCE = 'http://cs231n.stanford.edu/tiny-imagenet-200.zip (the terms of ImageNet apply)'


@dataclass(frozen=True)
class TinyImageNetSpec:
    """Expected counts."""

    train: int = 100_000
    val: int = 10_000
    classes: int = 200


PUBLIC = TinyImageNetSpec()


def check(root: Path, decoding: Decoding | None, spec: TinyImageNetSpec = PUBLIC) -> list[PathReport]:
    """Check a copy of the dataset, a folder or a zip; `decoding` is None to not open images."""
    report = PathReport('wnids.txt', SOURCE)
    try:
        classes = read_classes(root)
    except UserError as error:
        report.problems.append(str(error))
        return [report]
    report.found = f'{len(classes)} classes'
    report.expect('classes', len(classes), spec.classes)
    splits = {'train': spec.train, 'val': spec.val}
    return [report, *(_check_split(root, split, count, decoding) for split, count in splits.items())]


def _check_split(root: Path, split: str, expected: int, decoding: Decoding | None) -> PathReport:
    report = PathReport(split, SOURCE)
    try:
        annotated = {sample.path for sample in read_split(root, split)}
        folder = join_path(find_root(root), split)
        images = {
            join_path(folder, name)
            for name in list_dir_or_file(folder, list_dir=False, suffix='.JPEG', recursive=True)
        }
    except UserError as error:
        report.problems.append(str(error))
        return report
    report.found = f'{len(images):,} images'
    report.expect('images', len(images), expected)
    report.add('annotated images that are missing', _names(annotated - images))
    report.add('images without annotation', _names(images - annotated))
    if decoding is not None:
        decode = image_decoder(lambda path: read_bytes(path, None))
        report.add_file_problems(inspect_all(decode, sorted(images & annotated), decoding, split))
    return report


def _names(paths: set[str]) -> set[str]:
    return {path.rpartition('/')[2] for path in paths}
