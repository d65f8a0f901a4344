"""Digit scenes: real handwriting on real photographs, written to disk as the toolboxes like it.

Everything comes out of installed wheels (scikit-learn's digits, scikit-image's photographs), and the
same options give the same bytes. See :func:`write_digit_scenes` for the layout.
"""

import json
import multiprocessing
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from pycocotools import mask as coco_mask
from tqdm import tqdm

from inline.datasets.digit_rendering import DigitInstance, Scene, render_classification, render_scene
from inline.datasets.digit_sources import NUM_CLASSES, SPLITS, DigitSources, Split, load_sources
from inline.errors import UserError

FORMAT_VERSION = 1
SPLIT_FOLDERS: dict[Split, str] = {'train': 'training', 'val': 'validation'}

# A split's COCO image ids start here, so that they are unique across splits whatever the counts.
_FIRST_IMAGE_ID: dict[Split, int] = {'train': 1, 'val': 1_000_001}
_JPEG_QUALITY = 92
_OWN_FILES = re.compile(
    r'classification/(train|val)/\d/\d+_digit\d+\.jpg'
    r'|images/(training|validation)/scene_\d+\.jpg'
    r'|annotations/(training|validation)/scene_\d+\.png'
    r'|instances_(train|val)\.json'
    r'|meta\.json'
)


def _option(default: int, low: int, high: int, help: str) -> Any:
    return field(default=default, metadata={'low': low, 'high': high, 'help': help})


@dataclass(frozen=True)
class DigitScenesOptions:
    """What to write; a value out of its range raises a UserError."""

    seed: int = _option(0, 0, 2**32 - 1, 'decides the digits of each split and every image')
    classification_size: int = _option(48, 32, 1024, 'side of a classification image in pixels')
    num_classification_train: int = _option(20_000, 10, 999_999, 'classification images to train on')
    num_classification_val: int = _option(1_000, 10, 999_999, 'classification images to validate on')
    scene_size: int = _option(88, 32, 2048, 'side of a scene in pixels')
    num_scenes_train: int = _option(2_000, 1, 999_999, 'scenes to train on')
    num_scenes_val: int = _option(200, 1, 999_999, 'scenes to validate on')
    max_digits: int = _option(6, 1, 50, 'a scene has 1 to this many digits')
    min_digit_size: int = _option(26, 12, 2048, 'longer side of the smallest digit of a scene in pixels')
    max_digit_size: int = _option(48, 12, 2048, 'longer side of the largest digit of a scene in pixels')

    def __post_init__(self) -> None:
        for option in fields(self):
            value, low, high = getattr(self, option.name), option.metadata['low'], option.metadata['high']
            if not low <= value <= high:
                raise UserError(f'{option.name} is {value}, but must be from {low} to {high}')
        if not self.min_digit_size <= self.max_digit_size <= self.scene_size:
            raise UserError(
                f'digit sizes are {self.min_digit_size} to {self.max_digit_size}, but must satisfy '
                f'min_digit_size <= max_digit_size <= scene_size, which is {self.scene_size}'
            )

    def num_classification(self, split: Split) -> int:
        return self.num_classification_train if split == 'train' else self.num_classification_val

    def num_scenes(self, split: Split) -> int:
        return self.num_scenes_train if split == 'train' else self.num_scenes_val


@dataclass(frozen=True)
class Job:
    """One image to draw: what a progress bar counts."""

    kind: str
    split: Split
    index: int


Annotation = dict[str, Any]
Drawn = tuple[Job, list[Annotation]]


def progress_bar(drawn: Iterable[Drawn], total: int) -> Iterable[Drawn]:
    """For the `progress` of :func:`write_digit_scenes`: a bar on the terminal with the time left."""
    bar: Iterable[Drawn] = tqdm(drawn, total=total, desc='digit scenes', unit='image')
    return bar


def write_digit_scenes(
    out: str | Path,
    options: DigitScenesOptions,
    *,
    overwrite: bool = False,
    progress: Callable[[Iterable[Drawn], int], Iterable[Drawn]] = lambda drawn, _: drawn,
) -> bool:
    """Write the whole data set into the folder `out`; False if it was there already.

    - ``classification/{train,val}/{0..9}/*.jpg``: one digit each, in ImageNet's layout
    - ``images/{training,validation}/*.jpg``: scenes of several digits
    - ``annotations/{training,validation}/*.png``: ADE20K-style, 1 = background, 2..11 = digits 0..9
    - ``instances_{train,val}.json``: COCO boxes and masks of what is visible
    - ``meta.json``: options, counts, versions, and the digits of each split

    It is written into a sibling folder that takes the name `out` only when whole, so an interrupted run
    leaves `out` as it was. `overwrite` replaces an earlier set, never a folder with other files in it.
    `progress` wraps the images as they are drawn and is told how many there will be, as tqdm is.
    """
    out = Path(out).resolve()
    if not overwrite and _holds(out, options):
        return False
    _check_replaceable(out, overwrite)
    partial = out.with_name(f'.{out.name}.partial')
    _check_replaceable(partial, overwrite=True)
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
    except OSError as error:
        raise UserError(f'cannot make a folder in {partial.parent}: {error.strerror}') from error

    sources = load_sources(options.seed)
    coco = {split: _empty_coco(options) for split in SPLITS}
    jobs = _jobs(options)
    for job, annotations in progress(_draw_all(partial, sources, options, jobs), len(jobs)):
        if job.kind == 'scene':
            _add_to_coco(coco[job.split], job, options, annotations)
    for split in SPLITS:
        _write_json(partial / f'instances_{split}.json', coco[split])
    _write_json(partial / 'meta.json', _meta(options, sources, coco))

    # Looked at once more: someone may have put files there while the images were drawn.
    _check_replaceable(out, overwrite)
    shutil.rmtree(out, ignore_errors=True)
    partial.rename(out)
    return True


def scene_of(sources: DigitSources, options: DigitScenesOptions, split: Split, index: int) -> Scene:
    """Draw scene `index` of a split as the options say."""
    return render_scene(
        sources,
        seed=options.seed,
        split=split,
        index=index,
        size=options.scene_size,
        max_digits=options.max_digits,
        digit_sizes=(options.min_digit_size, options.max_digit_size),
    )


def _holds(folder: Path, options: DigitScenesOptions) -> bool:
    """Whether the folder is a whole set of these options."""
    try:
        meta = json.loads((folder / 'meta.json').read_text())
    except (OSError, ValueError):
        return False
    return (
        isinstance(meta, dict)
        and meta.get('format_version') == FORMAT_VERSION
        and meta.get('options') == asdict(options)
    )


def _check_replaceable(folder: Path, overwrite: bool) -> None:
    """Raise unless the folder is missing, empty, or (if overwrite) made of nothing but our own files."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UserError(f'{folder} is a file, but the data set needs a folder: choose another --out')
    files = (path for path in folder.rglob('*') if not path.is_dir())
    names = [path.relative_to(folder).as_posix() for path in files]
    foreign = [name for name in names if not _OWN_FILES.fullmatch(name)]
    if foreign:
        raise UserError(
            f'{folder} holds files that are not ours, such as {min(foreign)}: choose another --out'
        )
    if names and not overwrite:
        raise UserError(
            f'{folder} holds digit scenes of other options, or only a part of a set: '
            'choose another --out, or --overwrite it'
        )


def _jobs(options: DigitScenesOptions) -> list[Job]:
    return [
        Job(kind, split, index)
        for kind, count_of in (('classification', options.num_classification), ('scene', options.num_scenes))
        for split in SPLITS
        for index in range(count_of(split))
    ]


def _draw_all(
    folder: Path, sources: DigitSources, options: DigitScenesOptions, jobs: list[Job]
) -> Iterator[Drawn]:
    """Draw and write all images, on all cores, in the order of the jobs."""
    global _task
    _task = (folder, sources, options)
    # Forked processes share the photographs, and the small images are too small for OpenCV's threads.
    threads = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        with multiprocessing.get_context('fork').Pool(os.cpu_count()) as pool:
            yield from pool.imap(_draw, jobs, chunksize=32)
    finally:
        cv2.setNumThreads(threads)
        _task = None


_task: tuple[Path, DigitSources, DigitScenesOptions] | None = None


def _draw(job: Job) -> Drawn:
    assert _task is not None
    write = _write_classification if job.kind == 'classification' else _write_scene
    return job, write(*_task, job)


def _write_classification(
    folder: Path, sources: DigitSources, options: DigitScenesOptions, job: Job
) -> list[Annotation]:
    drawn = render_classification(
        sources, seed=options.seed, split=job.split, index=job.index, size=options.classification_size
    )
    name = f'{job.index:06d}_digit{drawn.digit:04d}.jpg'
    _write_image(folder / 'classification' / job.split / str(drawn.label) / name, drawn.image)
    return []


def _write_scene(
    folder: Path, sources: DigitSources, options: DigitScenesOptions, job: Job
) -> list[Annotation]:
    scene = scene_of(sources, options, job.split, job.index)
    _write_image(folder / 'images' / SPLIT_FOLDERS[job.split] / f'{_scene_name(job)}.jpg', scene.image)
    _write_image(
        folder / 'annotations' / SPLIT_FOLDERS[job.split] / f'{_scene_name(job)}.png', scene.label_map
    )
    return [_annotate(instance) for instance in scene.instances]


def _scene_name(job: Job) -> str:
    return f'scene_{job.index:06d}'


def _annotate(instance: DigitInstance) -> Annotation:
    """COCO's description of a digit, its ids left out."""
    rle = coco_mask.encode(np.asfortranarray(instance.mask, dtype=np.uint8))
    return {
        'category_id': instance.label + 1,
        'segmentation': {'size': rle['size'], 'counts': rle['counts'].decode('ascii')},
        'bbox': coco_mask.toBbox(rle).tolist(),
        'area': int(coco_mask.area(rle)),
        'iscrowd': 0,
        'digit': instance.digit,
        'visible': round(instance.visible, 4),
    }


def _add_to_coco(
    coco: dict[str, Any], job: Job, options: DigitScenesOptions, annotations: list[Annotation]
) -> None:
    image_id = _FIRST_IMAGE_ID[job.split] + job.index
    size = options.scene_size
    coco['images'].append(
        {'id': image_id, 'file_name': f'{_scene_name(job)}.jpg', 'width': size, 'height': size}
    )
    for annotation in annotations:
        coco['annotations'].append({'id': len(coco['annotations']) + 1, 'image_id': image_id, **annotation})


def _empty_coco(options: DigitScenesOptions) -> dict[str, Any]:
    return {
        'info': {'description': f'InLine digit scenes, seed {options.seed}', 'version': str(FORMAT_VERSION)},
        'licenses': [],
        'categories': [{'id': label + 1, 'name': str(label)} for label in range(NUM_CLASSES)],
        'images': [],
        'annotations': [],
    }


def _meta(
    options: DigitScenesOptions, sources: DigitSources, coco: dict[Split, dict[str, Any]]
) -> dict[str, Any]:
    packages = ('numpy', 'pycocotools', 'scikit-image', 'scikit-learn')
    return {
        'format_version': FORMAT_VERSION,
        'options': asdict(options),
        'counts': {
            split: {
                'classification': options.num_classification(split),
                'scenes': options.num_scenes(split),
                'digits_in_scenes': len(coco[split]['annotations']),
            }
            for split in SPLITS
        },
        'versions': {'opencv': cv2.__version__} | {name: version(name) for name in packages},
        'digits': {
            split: sorted(int(digit) for digits in sources.digits_of[split] for digit in digits)
            for split in SPLITS
        },
    }


def _write_image(path: Path, image: NDArray[np.uint8]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    parameters = [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY] if path.suffix == '.jpg' else []
    if not cv2.imwrite(str(path), image, parameters):
        raise OSError(f'cannot write {path}')


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content))
