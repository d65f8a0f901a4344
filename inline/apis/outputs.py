"""Output files of ``tools/predict.py``: annotated images, and the predictions as JSON.

=================  =======================================================================================
file               content
=================  =======================================================================================
pictures/NAME.jpg  the image with the drawn prediction
predictions.json   classification: the most likely classes of each file; detection: COCO's results format
                   with class names and run-length encoded masks; segmentation: the share of each class
images.json        detection: files and categories with their ids, in COCO's annotation format
labels/NAME.png    segmentation: the label of each pixel, counted from 0
=================  =======================================================================================
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from inline.apis.conversion import Record, coco_images, to_json
from inline.apis.drawing import TOP_K
from inline.apis.inference import InLineModel
from inline.apis.inputs import ImageSource, find_images
from inline.apis.loading import Classes, check_listed_classes
from inline.apis.results import Prediction, write_image
from inline.utils.arguments import check_range
from inline.utils.atomic import make_folder
from inline.utils.errors import UserError


@dataclass
class OutputFolder:
    """A folder to which predictions are written, one image at a time.

    Args:
        folder: Path of the folder.
        task: Task of the model.
        classes: Class names and colours.
        score_thr: Boxes with a lower score are not drawn; see :meth:`Prediction.draw` for the default.
    """

    folder: Path
    task: str
    classes: Classes
    score_thr: float | None = None
    # One JSON text per entry of predictions.json.
    records: list[str] = field(default_factory=list, init=False)
    images: list[Record] = field(default_factory=list, init=False)
    count: int = field(default=0, init=False)

    def add(self, prediction: Prediction) -> None:
        prediction.save(picture_path(self.folder, prediction.source), self.score_thr)
        write: Callable[[Prediction], None] = getattr(self, f'_add_{self.task}')
        write(prediction)
        self.count += 1

    def write_json(self) -> None:
        lines = ',\n'.join(self.records)
        (self.folder / 'predictions.json').write_text(f'[\n{lines}\n]\n', encoding='utf-8')
        if self.task == 'detection':
            content = coco_images(self.images, self.classes.names, self.classes.category_ids)
            text = json.dumps(content, ensure_ascii=False)
            (self.folder / 'images.json').write_text(text, encoding='utf-8')

    def _add_classification(self, prediction: Prediction) -> None:
        top = prediction.to_dict()['predictions']
        file = prediction.source.describe()
        self.records.append(to_json({'file': file, f'top{prediction.top_k or TOP_K}': top}, file))

    def _add_detection(self, prediction: Prediction) -> None:
        height, width = prediction.shape
        file = prediction.source.describe()
        self.records += [to_json(record, file) for record in prediction.to_coco()]
        self.images.append({'id': prediction.image_id, 'file_name': file, 'width': width, 'height': height})

    def _add_segmentation(self, prediction: Prediction) -> None:
        labels = prediction.label_map
        assert labels is not None
        path = labels_path(self.folder, prediction.source)
        write_image(path, labels.astype(np.uint8 if len(self.classes.names) <= 256 else np.uint16))
        counts = np.bincount(labels.reshape(-1), minlength=len(self.classes.names))
        shares = {
            name: count / labels.size
            for name, count in zip(self.classes.names, counts.tolist(), strict=True)
            if count
        }
        relative = path.relative_to(self.folder).as_posix()
        file = prediction.source.describe()
        self.records.append(to_json({'file': file, 'labels': relative, 'shares': shares}, file))


def run(args: argparse.Namespace) -> None:
    """Predict, draw and write, with the arguments of ``tools/predict.py``."""
    if args.score_thr is not None:
        check_range('--score-thr', args.score_thr, 0, 1)
    sources = _find_unique_files(args.inputs, args.out)
    _check_folder(args.out, sources, args.overwrite)
    model = InLineModel(
        args.config,
        args.checkpoint,
        args.device,
        trust_checkpoint=args.trust_checkpoint,
        runtime=args.runtime,
        precision=args.precision,
    )
    if not args.allow_other_classes:
        check_listed_classes(model.cfg, model.classes)
    predictions = model(
        sources,
        score_thr=args.score_thr,
        top_k=args.top_k,
        batch_size=args.batch_size,
        tile=args.tile,
        overlap=args.overlap,
        full_size=args.full_size,
        skip_bad=args.skip_bad,
        stream=True,
    )
    output = OutputFolder(args.out, model.task, model.classes, args.score_thr)
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
    done = output.count
    skipped = f', {len(predictions.skipped):,} skipped' if predictions.skipped else ''
    print(f'{done:,} {"image" if done == 1 else "images"}{skipped}: see {args.out / "predictions.json"}')


def picture_path(folder: Path, source: ImageSource) -> Path:
    return folder / 'pictures' / f'{source.name}.jpg'


def labels_path(folder: Path, source: ImageSource) -> Path:
    return folder / 'labels' / f'{source.name}.png'


def _find_unique_files(inputs: Sequence[str], out: Path) -> list[ImageSource]:
    """List each file once, even if it is given twice or is also in one of the folders."""
    unique: dict[Path | str | None, str | Path] = {}
    for source in find_images(inputs, exclude=out):
        given = source.path or source.location
        unique.setdefault(source.path.resolve() if source.path is not None else source.url, given)
    return find_images(unique.values())


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
