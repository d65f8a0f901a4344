"""What ``tools/predict.py`` writes: a picture for each image, and the predictions as JSON.

=================  =======================================================================================
file               content
=================  =======================================================================================
pictures/NAME.jpg  the image with what was found in it
predictions.json   classification: the five likeliest classes of each file; detection: COCO's results format,
                   masks run-length encoded; segmentation: the share of each class in each file
images.json        detection: the files and categories behind the numbers, in COCO's annotation format
labels/NAME.png    segmentation: the label of each pixel, as the model counts them from 0
=================  =======================================================================================
"""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pycocotools import mask as coco_mask

from inline.errors import UserError
from inline.inference.inputs import Source, find_sources
from inline.inference.loading import Classes
from inline.inference.model import InLineModel
from inline.inference.results import Prediction, write_image
from inline.whole_files import make_folder

TOP = 5
# COCO numbers 91 things and has boxes for 80 of them.
_WITHOUT_BOXES = (12, 26, 29, 30, 45, 66, 68, 69, 71, 83, 91)
COCO_IDS = tuple(number for number in range(1, 92) if number not in _WITHOUT_BOXES)

Record = dict[str, Any]


@dataclass
class Output:
    """A folder that predictions are written to, one image at a time."""

    folder: Path
    task: str
    classes: Classes
    score_thr: float
    records: list[Record] = field(default_factory=list)
    images: list[Record] = field(default_factory=list)
    image_ids: Mapping[str, int] = field(default_factory=dict)

    def add(self, prediction: Prediction) -> None:
        prediction.save(picture_path(self.folder, prediction.source), self.score_thr)
        write: Callable[[Prediction], None] = getattr(self, f'_add_{self.task}')
        write(prediction)

    def write_json(self) -> None:
        _dump(self.folder / 'predictions.json', self.records)
        if self.task == 'detection':
            ids = category_ids(self.classes.names)
            categories = [{'id': i, 'name': name} for i, name in zip(ids, self.classes.names, strict=True)]
            content = {'images': self.images, 'categories': categories, 'annotations': []}
            (self.folder / 'images.json').write_text(
                json.dumps(content, ensure_ascii=False), encoding='utf-8'
            )

    def _add_classification(self, prediction: Prediction) -> None:
        scores = prediction.pred_score
        likely = scores.topk(min(TOP, len(scores)))
        top = [
            {'label': label, 'name': self.classes.names[label], 'score': score}
            for score, label in zip(likely.values.tolist(), likely.indices.tolist(), strict=True)
        ]
        self.records.append({'file': prediction.source.describe(), f'top{TOP}': top})

    def _add_detection(self, prediction: Prediction) -> None:
        height, width = prediction.ori_shape[:2]
        number = self.image_ids.get(prediction.name, prediction.img_id)
        self.images.append(
            {'id': number, 'file_name': prediction.source.describe(), 'width': width, 'height': height}
        )
        found, categories = prediction.pred_instances, category_ids(self.classes.names)
        for i, (label, score) in enumerate(zip(found.labels.tolist(), found.scores.tolist(), strict=True)):
            x1, y1, x2, y2 = found.bboxes[i].tolist()
            record = {
                'image_id': number,
                'category_id': categories[label],
                'bbox': [x1, y1, x2 - x1, y2 - y1],
                'score': score,
            }
            if 'masks' in found:
                record['segmentation'] = encode_mask(np.asarray(found.masks[i]))
            self.records.append(record)

    def _add_segmentation(self, prediction: Prediction) -> None:
        labels = np.asarray(prediction.pred_sem_seg.data)[0]
        path = labels_path(self.folder, prediction.source)
        write_image(path, labels.astype(np.uint8 if len(self.classes.names) <= 256 else np.uint16))
        counts = np.bincount(labels.reshape(-1), minlength=len(self.classes.names))
        shares = {
            name: count / labels.size
            for name, count in zip(self.classes.names, counts.tolist(), strict=True)
            if count
        }
        self.records.append(
            {
                'file': prediction.source.describe(),
                'labels': path.relative_to(self.folder).as_posix(),
                'shares': shares,
            }
        )


def run(args: argparse.Namespace) -> None:
    """Predict, draw and write what the command line names."""
    if not 0 <= args.score_thr <= 1:
        raise UserError(f'--score-thr {args.score_thr}: must be from 0 to 1')
    sources = _find_once(args.inputs, args.out)
    _check_folder(args.out, sources, args.overwrite)
    model = InLineModel(args.config, args.checkpoint, args.device, trust_checkpoint=args.trust_checkpoint)
    stream = model.stream(
        sources,
        batch_size=args.batch_size,
        tile=args.tile,
        overlap=args.overlap,
        full_size=args.full_size,
        skip_bad=args.skip_bad,
    )
    output = Output(args.out, model.task, model.classes, args.score_thr, image_ids=image_ids(sources))
    with _written(output):
        for prediction in stream:
            output.add(prediction)
    done = len(sources) - len(stream.skipped)
    skipped = f', {len(stream.skipped):,} skipped' if stream.skipped else ''
    print(f'{done:,} {"image" if done == 1 else "images"}{skipped}: see {args.out / "predictions.json"}')


def category_ids(names: Sequence[str]) -> Sequence[int]:
    """COCO's own numbers for its 80 classes; others are counted from 1."""
    from mmdet.datasets import CocoDataset

    return COCO_IDS if tuple(names) == CocoDataset.METAINFO['classes'] else range(1, len(names) + 1)


def image_ids(sources: Sequence[Source]) -> dict[str, int]:
    """Numbers by name where every file is called by one of its own, as COCO's are; else none."""
    stems = {source.name: Path(source.name).name for source in sources}
    if not all(stem.isascii() and stem.isdigit() for stem in stems.values()):
        return {}
    numbers = {name: int(stem) for name, stem in stems.items()}
    return numbers if len(set(numbers.values())) == len(numbers) else {}


def picture_path(folder: Path, source: Source) -> Path:
    return folder / 'pictures' / f'{source.name}.jpg'


def labels_path(folder: Path, source: Source) -> Path:
    return folder / 'labels' / f'{source.name}.png'


def encode_mask(mask: np.ndarray) -> Record:
    """A mask (H, W) run-length encoded as COCO does, its counts as text."""
    encoded = coco_mask.encode(np.asfortranarray(mask.astype(np.uint8)))
    return {'size': [int(side) for side in encoded['size']], 'counts': encoded['counts'].decode()}


@contextmanager
def _written(output: Output) -> Iterator[None]:
    """Write the JSON also where a bad image or Ctrl-C stops the run: pictures without it say little."""
    make_folder('--out', output.folder)
    try:
        yield
    except BaseException:
        # Where the first image failed there is nothing to say, and the folder stays free for another try.
        if any(output.folder.iterdir()):
            output.write_json()
        raise
    output.write_json()


def _find_once(inputs: Sequence[str], out: Path) -> list[Source]:
    """Each file once, though it was named twice or lies in a folder that was."""
    paths: dict[Path, Path] = {}
    for source in find_sources(inputs, leave_out=out):
        if source.path is not None:
            paths.setdefault(source.path.resolve(), source.path)
    return find_sources(paths.values())


def _check_folder(folder: Path, sources: Sequence[Source], overwrite: bool) -> None:
    """Refuse to write over the images, or without being told so over anything else."""
    nearest = next((path for path in (folder, *folder.parents) if path.exists()), None)
    if nearest is not None and not nearest.is_dir():
        raise UserError(f'--out {str(folder)!r}: {str(nearest)!r} is a file, give a folder')
    if folder.is_dir() and any(folder.iterdir()) and not overwrite:
        raise UserError(
            f'--out {str(folder)!r} is not empty: give another folder, or --overwrite to replace '
            'the files of the same names in it'
        )
    images = {source.path.resolve() for source in sources if source.path is not None}
    for source in sources:
        for path in (picture_path(folder, source), labels_path(folder, source)):
            if path.resolve() in images:
                raise UserError(f'--out {str(folder)!r} would overwrite the image {str(path)!r}')


def _dump(path: Path, records: Sequence[Record]) -> None:
    lines = ',\n'.join(json.dumps(record, ensure_ascii=False) for record in records)
    path.write_text(f'[\n{lines}\n]\n', encoding='utf-8')
