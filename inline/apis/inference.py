"""Inference with a trained classifier, detector or segmentor."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.structures import BaseDataElement
from tqdm import tqdm

from inline.apis.conversion import image_ids
from inline.apis.inputs import (
    ImageInput,
    ImageSource,
    InferencePipeline,
    check_files_exist,
    find_images,
    is_collection,
)
from inline.apis.loading import TASKS, build_model, find_config
from inline.apis.results import Prediction, Predictions, PredictionStream, count_images
from inline.apis.stored_config import config_of_checkpoint
from inline.apis.tiling import Tiling, segment, segment_tiles
from inline.checkpoints import read_checkpoint, trust_checkpoints
from inline.openmmlab.patches import apply_patches
from inline.utils.arguments import check_choice, check_positive, check_range, check_type
from inline.utils.errors import TooSmallError, UnreadableError, UserError, first_line
from inline.utils.extras import require_extras

RUNTIMES = ('torch', 'onnx', 'openvino')
PRECISIONS = ('fp32', 'bf16', 'int8')
# Suffixes of exported files that can be loaded.
EXPORTED = ('.onnx', '.xml')


class InLineModel:
    """A classifier, detector or segmentor of a config, with the weights of a checkpoint.

    Args:
        config: A path, an MMEngine config, or the name of a file in ``configs/`` without suffix. None to take
            it from the checkpoint: a classifier with metadata (published, saved or packaged weights), or
            another model that was trained with a config of this project.
        checkpoint: Must contain all weights of the model. None keeps the random initialisation, which is
            enough to measure time and memory.
        device: ``'cpu'``, ``'cuda:0'``, …; by default the first GPU if there is one.
        trust_checkpoint: Load a checkpoint that contains pickled code, and execute that code.
        runtime: ``'torch'``, ``'onnx'`` (ONNX Runtime) or ``'openvino'``. The last two export the model once
            and run it on the CPU. `config` or `checkpoint` can also be a file that ``inline export`` wrote,
            .onnx or .xml, which determines the runtime. By default torch, or that of the file.
        precision: ``'fp32'``, ``'bf16'`` (torch: in the backbone; OpenVINO) or ``'int8'`` (ONNX Runtime and
            OpenVINO; the export needs the training data of the config). By default fp32, or that of the file.

    Attributes:
        cfg: The config.
        task: ``'classification'``, ``'detection'`` or ``'segmentation'``.
        classes: Class names and colours, from the checkpoint or else from the config's dataset.
        model: The toolbox's model; for other runtimes, an :class:`inline.apis.runtimes.ExportedModel`.
        device: The device of the model.
        runtime, precision: As given, or those of the file.
    """

    def __init__(
        self,
        config: str | Path | Config | None = None,
        checkpoint: str | Path | None = None,
        device: str | torch.device | None = None,
        *,
        trust_checkpoint: bool = False,
        runtime: str | None = None,
        precision: str | None = None,
    ) -> None:
        apply_patches()
        for name, value, choices in (('runtime', runtime, RUNTIMES), ('precision', precision, PRECISIONS)):
            if value is not None:
                check_choice(name, value, choices)
        if is_exported(config) or is_exported(checkpoint):
            self._load_file(config, checkpoint, device, runtime, precision)
        else:
            self._load_checkpoint(config, checkpoint, device, trust_checkpoint, runtime, precision)
        self.pipeline = InferencePipeline(self.cfg)
        self._full_size_pipeline = InferencePipeline(self.cfg, full_size=True)

    def _load_checkpoint(
        self,
        config: str | Path | Config | None,
        checkpoint: str | Path | None,
        device: str | torch.device | None,
        trust_checkpoint: bool,
        runtime: str | None,
        precision: str | None,
    ) -> None:
        self.runtime, self.precision = runtime or 'torch', precision or 'fp32'
        if (self.runtime, self.precision) != ('torch', 'fp32'):
            from inline.apis import runtimes

            runtimes.check_runtime(self.runtime, self.precision)
        cfg = None if config is None else find_config(config)
        with trust_checkpoints(trust_checkpoint):
            weights = None if checkpoint is None else read_checkpoint(checkpoint)
        self.cfg = config_of_checkpoint(weights) if cfg is None else cfg
        self.task = TASKS[self.cfg.default_scope]
        if self.runtime != 'torch':
            with runtimes.exported_model(self.cfg, weights, self.runtime, self.precision) as path:
                self._load_file(None, path, device, self.runtime, self.precision, self.cfg)
            return
        model, self.classes = build_model(self.cfg, weights)
        self.device = _choose_device(device)
        self.model: Any = model.to(self.device)
        if self.precision == 'bf16':
            runtimes.use_bfloat16(model.backbone)

    def _load_file(
        self,
        config: str | Path | Config | None,
        checkpoint: str | Path | None,
        device: str | torch.device | None,
        runtime: str | None,
        precision: str | None,
        cfg: Config | None = None,
    ) -> None:
        """Load an exported file. A config, if there is one, has the test pipeline."""
        from inline.apis import runtimes
        from inline.apis.export.portable import classes_of_metadata, config_of_metadata, read_metadata

        require_extras('an exported file', 'export')
        if is_exported(config):
            if checkpoint is not None:
                raise UserError(f'{str(config)!r} is an exported model: it takes no checkpoint')
            config, checkpoint = None, config
        if device is not None and torch.device(device).type != 'cpu':
            raise UserError(f'device {str(device)!r}: exported models run on the CPU')
        assert checkpoint is not None
        path = Path(checkpoint)
        metadata = read_metadata(path)
        self.runtime, self.precision = runtimes.choose_runtime(path, metadata, runtime, precision)
        if cfg is None:
            cfg = config_of_metadata(metadata, path) if config is None else find_config(config)
        self.cfg, self.task = cfg, metadata['task']
        if TASKS[cfg.default_scope] != self.task:
            raise UserError(
                f'{str(path)!r} is for {self.task}, but the config is for {TASKS[cfg.default_scope]}'
            )
        self.classes = classes_of_metadata(metadata)
        self.device = torch.device('cpu')
        self.model = runtimes.load_exported_model(path, metadata, cfg, self.precision)

    def __call__(
        self,
        images: ImageInput | Iterable[ImageInput],
        *,
        score_thr: float | None = None,
        top_k: int | None = None,
        batch_size: int = 1,
        channel_order: str | None = None,
        tile: int | None = None,
        overlap: int = 0,
        full_size: bool = False,
        keep_logits: bool = False,
        skip_bad: bool = False,
        progress: bool = True,
        stream: bool | None = None,
    ) -> Predictions | PredictionStream:
        """Predict for one image or several.

        Args:
            images: Paths, folders (searched recursively), glob patterns, http and https URLs, videos (frame
                by frame), Pillow images, encoded images as bytes; arrays of uint8 (H, W, 3), or (H, W) for
                grey; tensors (3, H, W) or (N, 3, H, W) of uint8, or of floats from 0 to 1.
            score_thr: Detection: return only boxes with at least this score. By default, all boxes that the
                model's ``test_cfg`` keeps.
            top_k: Detection: return only this many boxes, with the highest scores. Classification: list this
                many classes in drawings, tables and JSON, by default 5.
            batch_size: Consecutive images that have the same size after the test pipeline share a batch.
                Images of different sizes do not: padding would change the attention.
            channel_order: ``'bgr'`` or ``'rgb'``, for arrays and tensors. By default arrays are BGR, as
                OpenCV reads them, and tensors are RGB, as torchvision reads them.
            tile: Segment in square tiles of this size, in pixels of the original image.
            overlap: Minimum number of pixels that neighbouring tiles share. Logits are averaged there.
            full_size: Segment the image at its original size: skip the resizing of the test pipeline.
            keep_logits: Add ``seg_logits`` to the segmentation result: 4 bytes per pixel and class.
            skip_bad: Skip images that cannot be read or are too small, with a warning, instead of raising.
            progress: Show a progress bar for more than one image.
            stream: Compute the predictions one by one while iterating over them, and do not keep them. Memory
                does not grow with the number of images. The default is True for a folder, a glob pattern or a
                video, else False.
        """
        check_positive('batch_size', batch_size)
        self._check_task('detection', score_thr=score_thr)
        self._check_task('detection', 'classification', top_k=top_k)
        self._check_task('segmentation', tile=tile, full_size=full_size, keep_logits=keep_logits)
        select = Selection(score_thr, top_k)
        if tile is not None and full_size:
            raise UserError('tile and full_size exclude each other: tiles always have the original size')
        if overlap and tile is None:
            raise UserError(f'overlap {overlap} requires tile')
        tiling = None if tile is None else Tiling(tile, overlap)
        sources = find_images(images, channel_order=channel_order)
        if not skip_bad:
            check_files_exist(sources)
        pipeline = self._full_size_pipeline if full_size or tiling else self.pipeline
        ids = image_ids(sources)

        def predict(chosen: Sequence[ImageSource], skipped: list[str]) -> Iterator[Prediction]:
            total = count_images(chosen)
            with tqdm(total=total, unit='image', disable=not progress or total == 1) as bar:

                def handle(error: UnreadableError) -> None:
                    if not skip_bad:
                        raise error
                    skipped.append(first_line(error))
                    tqdm.write(f'skipped: {skipped[-1]}', file=sys.stderr)
                    bar.update()

                for group, batch in _batches(chosen, pipeline, batch_size, ids, handle):
                    try:
                        samples = self._predict_batch(batch, tiling, keep_logits)
                    except TooSmallError as error:
                        # All images of a batch have the same size.
                        for source, _ in group:
                            handle(UnreadableError(f'image {source.describe()!r} cannot be used: {error}'))
                        continue
                    for (source, image_id), sample in zip(group, samples, strict=True):
                        selected = select(sample.to('cpu'))
                        yield Prediction(
                            selected, source, self.classes, pipeline.read, image_id, score_thr, top_k
                        )
                    bar.update(len(group))

        predictions = PredictionStream(sources, predict)
        if stream is None:
            stream = is_collection(images) or any(source.is_video for source in sources)
        if stream:
            return predictions
        return Predictions(list(predictions), predictions.skipped)

    def _check_task(self, *tasks: str, **options: object) -> None:
        for name, value in options.items():
            if value not in (None, False) and self.task not in tasks:
                raise UserError(f'{name} is for {" and ".join(tasks)} only: this is a {self.task} model')

    @torch.no_grad()
    def _predict_batch(self, batch: dict[str, Any], tiling: Tiling | None, keep_logits: bool) -> list[Any]:
        if self.task != 'segmentation':
            samples: list[Any] = self.model.test_step(batch)
            return samples
        if tiling is not None:
            pairs = zip(batch['inputs'], batch['data_samples'], strict=True)
            return [segment_tiles(self.model, image, sample, tiling, keep_logits) for image, sample in pairs]
        return segment(self.model, batch, keep_logits)


@dataclass(frozen=True)
class Selection:
    """The boxes of a detector to return: those with at least a score, and the k with the highest scores."""

    score_thr: float | None
    top_k: int | None

    def __post_init__(self) -> None:
        if self.score_thr is not None:
            check_type('score_thr', self.score_thr, float)
            check_range('score_thr', self.score_thr, 0, 1)
        check_positive('top_k', self.top_k)

    def __call__(self, sample: BaseDataElement) -> BaseDataElement:
        if 'pred_instances' not in sample:
            return sample
        found = sample.pred_instances
        if self.score_thr is not None:
            found = found[found.scores >= self.score_thr]
        if self.top_k is not None:
            found = found[found.scores.argsort(descending=True, stable=True)[: self.top_k]]
        sample.pred_instances = found
        return sample


# Images of a batch with their COCO ids.
Group = list[tuple[ImageSource, int]]


def _batches(
    sources: Iterable[ImageSource],
    pipeline: InferencePipeline,
    batch_size: int,
    ids: Mapping[str, int],
    handle: Callable[[UnreadableError], None],
) -> Iterator[tuple[Group, dict[str, Any]]]:
    """Batch consecutive images of equal size; `handle` gets the errors of images that cannot be read."""
    group: Group = []
    packed: list[dict[str, Any]] = []
    count = 0
    for source in sources:
        try:
            for image in pipeline.expand(source):
                image_id, count = ids.get(image.name, count), count + 1
                inputs = pipeline(image, image_id)
                if packed and (
                    len(packed) == batch_size or packed[0]['inputs'].shape != inputs['inputs'].shape
                ):
                    yield group, pseudo_collate(packed)
                    group, packed = [], []
                group.append((image, image_id))
                packed.append(inputs)
        except UnreadableError as error:
            # `handle` may raise: the images before this one come first.
            if packed:
                yield group, pseudo_collate(packed)
                group, packed = [], []
            handle(error)
    if packed:
        yield group, pseudo_collate(packed)


def _choose_device(device: str | torch.device | None) -> torch.device:
    if device is None:
        return torch.device('cuda' if torch.cuda.is_available() else 'cpu')
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f'device {str(device)!r} is not available: use cpu, or cuda:0 with a GPU') from error
    return chosen


def is_exported(source: object) -> bool:
    """Return whether this is the name of an exported file."""
    return isinstance(source, str | Path) and Path(source).suffix in EXPORTED
