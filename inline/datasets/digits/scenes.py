"""Digit scenes: real handwriting on real photographs, in the file formats of the toolboxes.

Everything comes from installed wheels (scikit-learn's digits, scikit-image's photographs). The same options
give the same bytes. See :func:`write_digit_scenes` for the layout.
"""

import json
import multiprocessing
import os
import re
import shutil
import signal
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from pycocotools import mask as coco_mask
from tqdm import tqdm

from inline.datasets.digits.rendering import (
    DigitInstance,
    DigitScenesOptions,
    render_classification,
    render_scene,
)
from inline.datasets.digits.sources import NUM_CLASSES, SPLITS, DigitSources, Split, load_sources
from inline.utils.errors import UserError

FORMAT_VERSION = 1
SPLIT_FOLDERS: dict[Split, str] = {'train': 'training', 'val': 'validation'}

# First COCO image id of each split, so that ids are unique across splits for all counts.
_FIRST_IMAGE_ID: dict[Split, int] = {'train': 1, 'val': 1_000_001}
_JPEG_QUALITY = 92
_OUR_FILES = re.compile(
    r'classification/(train|val)/\d/\d+_digit\d+\.jpg'
    r'|images/(training|validation)/scene_\d+\.jpg'
    r'|annotations/(training|validation)/scene_\d+\.png'
    r'|instances_(train|val)\.json'
    r'|meta\.json'
)

Annotation = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """One image to render; `task` is 'classification' or 'scene'."""

    task: str
    split: Split
    index: int


def write_digit_scenes(
    out: str | Path, options: DigitScenesOptions, *, overwrite: bool = False, show_progress: bool = False
) -> bool:
    """Write the dataset into the folder `out`, unless it is already there with the same options.

    - ``classification/{train,val}/{0..9}/*.jpg``: one digit per image, in ImageNet's layout
    - ``images/{training,validation}/*.jpg``: scenes with several digits
    - ``annotations/{training,validation}/*.png``: label maps, 1 = background, 2..11 = digits 0..9
    - ``instances_{train,val}.json``: COCO boxes and masks of the visible ink
    - ``meta.json``: options, counts, versions, and the digits of each split

    It writes into a temporary sibling folder and renames it when complete, so an interrupted call leaves
    `out` unchanged.

    Args:
        out: The folder.
        options: What to write.
        overwrite: Whether to replace earlier digit scenes. A folder with other files is never replaced.
        show_progress: Whether to show a progress bar.

    Returns:
        Whether it wrote anything.
    """
    out = Path(out).resolve()
    if not overwrite and _is_complete(out, options):
        return False
    _check_replaceable(out, overwrite)
    partial = out.with_name(f'.{out.name}.partial')
    _check_replaceable(partial, overwrite=True)
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
    except OSError as error:
        raise UserError(f'cannot create a folder in {partial.parent}: {error.strerror}') from error

    sources = load_sources(options.seed)
    coco = {split: _empty_coco(options) for split in SPLITS}
    jobs = [
        Job(task, split, index)
        for task, count in (('classification', options.num_classification), ('scene', options.num_scenes))
        for split in SPLITS
        for index in range(count(split))
    ]
    rendered = _render_all(partial, sources, options, jobs)
    bar = tqdm(rendered, total=len(jobs), desc='digit scenes', unit='image', disable=not show_progress)
    for job, annotations in bar:
        if job.task == 'scene':
            _add_to_coco(coco[job.split], job, options, annotations)
    for split in SPLITS:
        (partial / f'instances_{split}.json').write_text(json.dumps(coco[split]))
    (partial / 'meta.json').write_text(json.dumps(_meta(options, sources, coco)))

    # Check again: files may have been added while the images were rendered.
    _check_replaceable(out, overwrite)
    shutil.rmtree(out, ignore_errors=True)
    partial.rename(out)
    return True


def _is_complete(folder: Path, options: DigitScenesOptions) -> bool:
    """Return whether the folder has complete digit scenes of these options."""
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
    """Raise unless the folder is missing, empty, or, with `overwrite`, contains digit scenes only."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UserError(f'{folder} is a file: choose another --out')
    paths = (path for path in folder.rglob('*') if not path.is_dir())
    names = [path.relative_to(folder).as_posix() for path in paths]
    foreign = [name for name in names if not _OUR_FILES.fullmatch(name)]
    if foreign:
        raise UserError(f'{folder} contains other files, such as {min(foreign)}: choose another --out')
    if names and not overwrite:
        raise UserError(
            f'{folder} contains digit scenes of other options or incomplete ones: '
            'choose another --out, or use --overwrite'
        )


def _render_all(
    folder: Path, sources: DigitSources, options: DigitScenesOptions, jobs: list[Job]
) -> Iterator[tuple[Job, list[Annotation]]]:
    """Render and write all images on all cores; yields in the order of the jobs."""
    global _arguments
    context = multiprocessing.get_context('fork')
    stopped = context.Value('b', False, lock=False)
    _arguments = (folder, sources, options, stopped)
    # Forked processes share the photographs. The images are too small for OpenCV's threads.
    threads = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        pool = context.Pool(os.cpu_count(), signal.signal, (signal.SIGINT, signal.SIG_IGN))
        try:
            yield from pool.imap(_render, jobs, chunksize=32)
        finally:
            # Not terminate(): it waits forever if it kills a process that holds the lock of a queue.
            stopped.value = True
            pool.close()
            pool.join()
    finally:
        cv2.setNumThreads(threads)
        _arguments = None


_arguments: tuple[Path, DigitSources, DigitScenesOptions, Any] | None = None


def _render(job: Job) -> tuple[Job, list[Annotation]]:
    assert _arguments is not None
    folder, sources, options, stopped = _arguments
    if stopped.value:
        return job, []
    if job.task == 'classification':
        rendered = render_classification(sources, options, job.split, job.index)
        name = f'{job.index:06d}_digit{rendered.digit:04d}.jpg'
        _write_image(folder / 'classification' / job.split / str(rendered.label) / name, rendered.image)
        return job, []
    scene, name, split = render_scene(sources, options, job.split, job.index), _scene_name(job), job.split
    _write_image(folder / 'images' / SPLIT_FOLDERS[split] / f'{name}.jpg', scene.image)
    _write_image(folder / 'annotations' / SPLIT_FOLDERS[split] / f'{name}.png', scene.label_map)
    return job, [_annotate(instance) for instance in scene.instances]


def _scene_name(job: Job) -> str:
    return f'scene_{job.index:06d}'


def _annotate(instance: DigitInstance) -> Annotation:
    """Return the COCO annotation of a digit without its ids."""
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
            split: sorted(int(digit) for digits in sources.indices[split] for digit in digits)
            for split in SPLITS
        },
    }


def _write_image(path: Path, image: NDArray[np.uint8]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    parameters = [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY] if path.suffix == '.jpg' else []
    if not cv2.imwrite(str(path), image, parameters):
        raise OSError(f'cannot write {path}')
