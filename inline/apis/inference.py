"""Inference with a trained classifier, detector or segmentor."""

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from tqdm import tqdm

from inline.apis.inputs import (
    ImageInput,
    ImageSource,
    InferencePipeline,
    check_files_exist,
    find_images,
)
from inline.apis.loading import TASKS, build_model, find_config
from inline.apis.results import Prediction, Predictions, PredictionStream
from inline.apis.tiling import Tiling, segment, segment_tiles
from inline.checkpoints import trust_checkpoints
from inline.openmmlab.patches import apply_patches
from inline.utils.errors import TooSmallError, UnreadableError, UserError, first_line


class InLineModel:
    """A classifier, detector or segmentor of a config, with the weights of a checkpoint.

    Args:
        config: A path, an MMEngine config, or the name of a file in ``configs/`` without suffix.
        checkpoint: Must contain all weights of the model. None keeps the random initialisation, which is
            enough to measure time and memory.
        device: ``'cpu'``, ``'cuda:0'``, …; by default the first GPU if there is one.
        trust_checkpoint: Load a checkpoint that contains pickled code, and execute that code.

    Attributes:
        cfg: The config.
        task: ``'classification'``, ``'detection'`` or ``'segmentation'``.
        classes: Class names and colours, from the checkpoint or else from the config's data set.
        model: The toolbox's model.
        device: The device of the model.
    """

    def __init__(
        self,
        config: str | Path | Config,
        checkpoint: str | Path | None = None,
        device: str | torch.device | None = None,
        *,
        trust_checkpoint: bool = False,
    ) -> None:
        apply_patches()
        self.cfg = find_config(config)
        self.task = TASKS[self.cfg.default_scope]
        with trust_checkpoints(trust_checkpoint):
            model, self.classes = build_model(self.cfg, checkpoint)
        self.device = _choose_device(device)
        self.model = model.to(self.device)
        self.pipeline = InferencePipeline(self.cfg)
        self._full_size_pipeline = InferencePipeline(self.cfg, full_size=True)

    def __call__(
        self,
        images: ImageInput | Iterable[ImageInput],
        *,
        batch_size: int = 1,
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
            images: Paths, folders, arrays of uint8 (H, W, 3) in BGR as OpenCV reads them or (H, W) for grey,
                Pillow images.
            batch_size: Consecutive images that have the same size after the test pipeline share a batch.
                Images of different sizes do not: padding would change the attention.
            tile: Segment in square tiles of this size, in pixels of the original image.
            overlap: Minimum number of pixels that neighbouring tiles share. Logits are averaged there.
            full_size: Segment the image at its original size: skip the resizing of the test pipeline.
            keep_logits: Add ``seg_logits`` to the segmentation result: 4 bytes per pixel and class.
            skip_bad: Skip images that cannot be read or are too small, with a warning, instead of raising.
            progress: Show a progress bar for more than one image.
            stream: Return an iterator that computes the predictions one by one. Memory does not grow with the
                number of images. The default is True for a folder, else False.
        """
        if batch_size < 1:
            raise UserError(f'batch_size {batch_size}: must be at least 1')
        for name, given in (('tile', tile), ('full_size', full_size), ('keep_logits', keep_logits)):
            if given and self.task != 'segmentation':
                raise UserError(f'{name} is for segmentation only: this is a {self.task} model')
        if tile is not None and full_size:
            raise UserError('tile and full_size exclude each other: tiles always have the original size')
        if overlap and tile is None:
            raise UserError(f'overlap {overlap} requires tile')
        tiling = None if tile is None else Tiling(tile, overlap)
        sources = find_images(images)
        if not skip_bad:
            check_files_exist(sources)
        pipeline = self._full_size_pipeline if full_size or tiling else self.pipeline
        skipped: list[str] = []

        def predict() -> Iterator[Prediction]:
            with tqdm(total=len(sources), unit='image', disable=not progress or len(sources) == 1) as bar:

                def handle(error: UnreadableError) -> None:
                    if not skip_bad:
                        raise error
                    skipped.append(first_line(error))
                    tqdm.write(f'skipped: {skipped[-1]}', file=sys.stderr)
                    bar.update()

                for group, batch in _batches(sources, pipeline, batch_size, handle):
                    try:
                        samples = self._predict_batch(batch, tiling, keep_logits)
                    except TooSmallError as error:
                        # All images of a batch have the same size.
                        for source in group:
                            handle(UnreadableError(f'image {source.describe()!r} cannot be used: {error}'))
                        continue
                    for source, sample in zip(group, samples, strict=True):
                        yield Prediction(sample.to('cpu'), source, self.classes, pipeline.read)
                    bar.update(len(group))

        predictions = PredictionStream(predict(), len(sources), skipped)
        is_folder = isinstance(images, str | Path) and Path(images).is_dir()
        if stream or (stream is None and is_folder):
            return predictions
        return Predictions(list(predictions), skipped)

    @torch.no_grad()
    def _predict_batch(self, batch: dict[str, Any], tiling: Tiling | None, keep_logits: bool) -> list[Any]:
        if self.task != 'segmentation':
            samples: list[Any] = self.model.test_step(batch)
            return samples
        if tiling is not None:
            pairs = zip(batch['inputs'], batch['data_samples'], strict=True)
            return [segment_tiles(self.model, image, sample, tiling, keep_logits) for image, sample in pairs]
        return segment(self.model, batch, keep_logits)


def _batches(
    sources: Iterable[ImageSource],
    pipeline: InferencePipeline,
    batch_size: int,
    handle: Callable[[UnreadableError], None],
) -> Iterator[tuple[list[ImageSource], dict[str, Any]]]:
    """Batch consecutive images of equal size; `handle` gets the errors of images that cannot be read."""
    group: list[ImageSource] = []
    packed: list[dict[str, Any]] = []
    for index, source in enumerate(sources):
        try:
            inputs = pipeline(source, index)
        except UnreadableError as error:
            handle(error)
            continue
        if packed and (len(packed) == batch_size or packed[0]['inputs'].shape != inputs['inputs'].shape):
            yield group, pseudo_collate(packed)
            group, packed = [], []
        group.append(source)
        packed.append(inputs)
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
