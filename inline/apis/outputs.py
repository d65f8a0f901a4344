"""Output files of ``tools/predict.py``: a picture per image, and the predictions as JSON.

=================  =======================================================================================
file               content
=================  =======================================================================================
pictures/NAME.jpg  the image with the drawn prediction
predictions.json   classification: the five most likely classes of each file; detection: COCO's results
                   format with run-length encoded masks; segmentation: the share of each class in each file
images.json        detection: files and categories with their ids, in COCO's annotation format
labels/NAME.png    segmentation: the label of each pixel, counted from 0
=================  =======================================================================================
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pycocotools import mask as coco_mask

from inline.apis.drawing import TOP_K
from inline.apis.inference import InLineModel
from inline.apis.inputs import ImageSource, find_images
from inline.apis.loading import Classes
from inline.apis.results import Prediction, write_image
from inline.utils.atomic import make_folder
from inline.utils.errors import UserError

# COCO has ids for 91 categories, and boxes for 80 of them.
_IDS_WITHOUT_BOXES = (12, 26, 29, 30, 45, 66, 68, 69, 71, 83, 91)
COCO_IDS = tuple(number for number in range(1, 92) if number not in _IDS_WITHOUT_BOXES)

Record = dict[str, Any]


@dataclass
class OutputFolder:
    """A folder to which predictions are written, one image at a time.

    Args:
        folder: Path of the folder.
        task: Task of the model.
        classes: Class names and colours.
        score_thr: Boxes with a lower score are not drawn.
        image_ids: COCO image ids by the name of the image; by default images are counted from 0.
    """

    folder: Path
    task: str
    classes: Classes
    score_thr: float
    image_ids: Mapping[str, int] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list, init=False)
    images: list[Record] = field(default_factory=list, init=False)

    def add(self, prediction: Prediction) -> None:
        prediction.save(picture_path(self.folder, prediction.source), self.score_thr)
        write: Callable[[Prediction], None] = getattr(self, f'_add_{self.task}')
        write(prediction)

    def write_json(self) -> None:
        lines = ',\n'.join(json.dumps(record, ensure_ascii=False) for record in self.records)
        (self.folder / 'predictions.json').write_text(f'[\n{lines}\n]\n', encoding='utf-8')
        if self.task == 'detection':
            ids = category_ids(self.classes.names)
            categories = [{'id': i, 'name': name} for i, name in zip(ids, self.classes.names, strict=True)]
            content = {'images': self.images, 'categories': categories, 'annotations': []}
            text = json.dumps(content, ensure_ascii=False)
            (self.folder / 'images.json').write_text(text, encoding='utf-8')

    def _add_classification(self, prediction: Prediction) -> None:
        scores = prediction.pred_score
        best = scores.topk(min(TOP_K, len(scores)))
        top = [
            {'label': label, 'name': self.classes.names[label], 'score': score}
            for score, label in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        ]
        self.records.append({'file': prediction.source.describe(), f'top{TOP_K}': top})

    def _add_detection(self, prediction: Prediction) -> None:
        height, width = prediction.ori_shape[:2]
        image_id = self.image_ids.get(prediction.name, prediction.img_id)
        self.images.append(
            {'id': image_id, 'file_name': prediction.source.describe(), 'width': width, 'height': height}
        )
        found, categories = prediction.pred_instances, category_ids(self.classes.names)
        for i, (label, score) in enumerate(zip(found.labels.tolist(), found.scores.tolist(), strict=True)):
            x1, y1, x2, y2 = found.bboxes[i].tolist()
            record = {
                'image_id': image_id,
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
        relative = path.relative_to(self.folder).as_posix()
        self.records.append({'file': prediction.source.describe(), 'labels': relative, 'shares': shares})


def run(args: argparse.Namespace) -> None:
    """Predict, draw and write, with the arguments of ``tools/predict.py``."""
    if not 0 <= args.score_thr <= 1:
        raise UserError(f'--score-thr {args.score_thr}: must be from 0 to 1')
    sources = _find_unique_files(args.inputs, args.out)
    _check_folder(args.out, sources, args.overwrite)
    model = InLineModel(args.config, args.checkpoint, args.device, trust_checkpoint=args.trust_checkpoint)
    predictions = model(
        sources,
        batch_size=args.batch_size,
        tile=args.tile,
        overlap=args.overlap,
        full_size=args.full_size,
        skip_bad=args.skip_bad,
        stream=True,
    )
    output = OutputFolder(args.out, model.task, model.classes, args.score_thr, image_ids(sources))
    make_folder('--out', args.out)
    try:
        for prediction in predictions:
            output.add(prediction)
    except BaseException:
        # Keep the predictions before an unreadable image or Ctrl-C. Without any, the folder stays empty: the
        # command can be repeated.
        if any(args.out.iterdir()):
            output.write_json()
        raise
    output.write_json()
    done = len(sources) - len(predictions.skipped)
    skipped = f', {len(predictions.skipped):,} skipped' if predictions.skipped else ''
    print(f'{done:,} {"image" if done == 1 else "images"}{skipped}: see {args.out / "predictions.json"}')


def category_ids(names: Sequence[str]) -> Sequence[int]:
    """Return COCO's category ids for its 80 classes; other classes are counted from 1."""
    from mmdet.datasets import CocoDataset

    return COCO_IDS if tuple(names) == CocoDataset.METAINFO['classes'] else range(1, len(names) + 1)


def image_ids(sources: Sequence[ImageSource]) -> dict[str, int]:
    """Return COCO image ids by name if all file names are distinct numbers, as in COCO; else `{}`."""
    stems = {source.name: Path(source.name).name for source in sources}
    if not all(stem.isascii() and stem.isdigit() for stem in stems.values()):
        return {}
    numbers = {name: int(stem) for name, stem in stems.items()}
    return numbers if len(set(numbers.values())) == len(numbers) else {}


def picture_path(folder: Path, source: ImageSource) -> Path:
    return folder / 'pictures' / f'{source.name}.jpg'


def labels_path(folder: Path, source: ImageSource) -> Path:
    return folder / 'labels' / f'{source.name}.png'


def encode_mask(mask: np.ndarray) -> Record:
    """Encode a mask (H, W) as COCO's run-length encoding, with the counts as text."""
    encoded = coco_mask.encode(np.asfortranarray(mask.astype(np.uint8)))
    return {'size': [int(side) for side in encoded['size']], 'counts': encoded['counts'].decode()}


def _find_unique_files(inputs: Sequence[str], out: Path) -> list[ImageSource]:
    """List each file once, even if it is given twice or is also in one of the folders."""
    paths: dict[Path, Path] = {}
    for source in find_images(inputs, exclude=out):
        if source.path is not None:
            paths.setdefault(source.path.resolve(), source.path)
    return find_images(paths.values())


def _check_folder(folder: Path, sources: Sequence[ImageSource], overwrite: bool) -> None:
    """Raise if an input image would be overwritten, or other files without `overwrite`."""
    nearest = next((path for path in (folder, *folder.parents) if path.exists()), None)
    if nearest is not None and not nearest.is_dir():
        raise UserError(f'--out {str(folder)!r}: {str(nearest)!r} is a file, give a folder')
    if folder.is_dir() and any(folder.iterdir()) and not overwrite:
        raise UserError(
            f'--out {str(folder)!r} is not empty: choose another folder, or use --overwrite to replace '
            'files of the same names'
        )
    images = {source.path.resolve() for source in sources if source.path is not None}
    for source in sources:
        for path in (picture_path(folder, source), labels_path(folder, source)):
            if path.resolve() in images:
                raise UserError(f'--out {str(folder)!r} would overwrite the image {str(path)!r}')
