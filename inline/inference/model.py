"""A trained model that takes images as they come: files, folders, arrays, lists of them."""

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from tqdm import tqdm

from inline.compat import prepare
from inline.engine.safe_loading import install as install_safe_loading
from inline.engine.safe_loading import trusting
from inline.errors import TooSmallError, UnreadableError, UserError, one_line
from inline.inference.inputs import ImageInput, Preparation, Source, check_exist, find_sources, is_folder
from inline.inference.loading import build_model, find_config
from inline.inference.results import Prediction, Predictions, PredictionStream
from inline.inference.segmenting import Tiling, segment, segment_tiles

TASKS = {'mmpretrain': 'classification', 'mmdet': 'detection', 'mmseg': 'segmentation'}


class InLineModel:
    """A classifier, detector or segmentor of a config, with the weights of a checkpoint.

    Args:
        config: A path, an MMEngine config, or the name of a file in ``configs/`` without its ending.
        checkpoint: Must fit the whole model. None leaves the weights as they are drawn at random, which is
            enough to measure time and memory.
        device: ``'cpu'``, ``'cuda:0'``, …; None for the first GPU if there is one.
        trust_checkpoint: Load a checkpoint that holds more than data, and run the code in it.

    Attributes:
        task: ``'classification'``, ``'detection'`` or ``'segmentation'``.
        classes: Names and colours by label, from the checkpoint, or else from the config's data set.
        model: The toolbox's own.
    """

    def __init__(
        self,
        config: str | Path | Config,
        checkpoint: str | Path | None = None,
        device: str | torch.device | None = None,
        *,
        trust_checkpoint: bool = False,
    ) -> None:
        prepare()
        install_safe_loading()
        self.cfg = find_config(config)
        self.task = TASKS[self.cfg.default_scope]
        with trusting(trust_checkpoint):
            model, self.classes = build_model(self.cfg, None if checkpoint is None else str(checkpoint))
        self.device = _device(device)
        self.model = model.to(self.device)
        self._preparation = Preparation(self.cfg)
        self._full_size = Preparation(self.cfg, full_size=True)

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
    ) -> Predictions | PredictionStream:
        """Predictions for an image or a list of them; for a folder a stream, so that memory stays flat.

        Args:
            images: Paths, folders, arrays (H, W, 3) of uint8 in BGR as OpenCV reads them, or (H, W) for grey,
                images of Pillow.
            batch_size: Images at once, where neighbours have the same size after the test pipeline. Others
                go by themselves, because padding would change what attention sees.
            tile: Segmentation in square tiles of so many pixels of the image in its own size.
            overlap: Pixels that neighbouring tiles share at least; logits are averaged there.
            full_size: Segmentation of the image in its own size, without the resizing of the test pipeline.
            keep_logits: Segmentation with ``seg_logits``, which take 4 bytes a pixel and class.
            skip_bad: Leave out images that cannot be read or are too small and tell them, instead of stopping
                at the first.
            progress: A bar for more than one image.
        """
        stream = self.stream(
            find_sources(images),
            batch_size=batch_size,
            tile=tile,
            overlap=overlap,
            full_size=full_size,
            keep_logits=keep_logits,
            skip_bad=skip_bad,
            progress=progress,
        )
        return stream if is_folder(images) else Predictions(list(stream), stream.skipped)

    def stream(
        self,
        sources: list[Source],
        *,
        batch_size: int = 1,
        tile: int | None = None,
        overlap: int = 0,
        full_size: bool = False,
        keep_logits: bool = False,
        skip_bad: bool = False,
        progress: bool = True,
    ) -> PredictionStream:
        """Predictions one by one; the arguments are those of a call."""
        if batch_size < 1:
            raise UserError(f'batch_size {batch_size}: must be 1 or more')
        for name, given in (('tile', tile), ('full_size', full_size), ('keep_logits', keep_logits)):
            if given and self.task != 'segmentation':
                raise UserError(f'{name} is for segmentation: this model does {self.task}')
        if tile is not None and full_size:
            raise UserError('tile and full_size: give one of them, tiles are of the image in its own size')
        if overlap and tile is None:
            raise UserError(f'overlap {overlap} needs tile')
        tiling = None if tile is None else Tiling(tile, overlap)
        if not skip_bad:
            check_exist(sources)
        preparation = self._full_size if full_size or tiling else self._preparation
        skipped: list[str] = []

        def predict() -> Iterator[Prediction]:
            with tqdm(total=len(sources), unit='image', disable=not progress or len(sources) == 1) as bar:

                def skip(error: UnreadableError) -> None:
                    skipped.append(one_line(error))
                    tqdm.write(f'skipped: {skipped[-1]}', file=sys.stderr)
                    bar.update()

                for group, batch in _batches(sources, preparation, batch_size, skip if skip_bad else None):
                    try:
                        samples = self._predict(batch, tiling, keep_logits)
                    except TooSmallError as error:
                        # All of a group have one size.
                        for source in group:
                            told = UnreadableError(f'image {source.describe()!r} cannot be used: {error}')
                            if not skip_bad:
                                raise told from error
                            skip(told)
                        continue
                    for source, sample in zip(group, samples, strict=True):
                        yield Prediction(sample.to('cpu'), source, self.classes, preparation.read)
                    bar.update(len(group))

        return PredictionStream(predict(), len(sources), skipped)

    @torch.no_grad()
    def _predict(self, batch: dict[str, Any], tiling: Tiling | None, keep_logits: bool) -> list[Any]:
        if self.task != 'segmentation':
            samples: list[Any] = self.model.test_step(batch)
            return samples
        if tiling is not None:
            pairs = zip(batch['inputs'], batch['data_samples'], strict=True)
            return [segment_tiles(self.model, image, sample, tiling, keep_logits) for image, sample in pairs]
        return segment(self.model, batch, keep_logits)


def _batches(
    sources: Iterable[Source],
    preparation: Preparation,
    batch_size: int,
    skip: Callable[[UnreadableError], None] | None,
) -> Iterator[tuple[list[Source], dict[str, Any]]]:
    """Neighbours of one size together, up to `batch_size`; `skip` is told of images that cannot be read."""
    group: list[Source] = []
    packed: list[dict[str, Any]] = []
    for index, source in enumerate(sources):
        try:
            prepared = preparation(source, index)
        except UnreadableError as error:
            if skip is None:
                raise
            skip(error)
            continue
        if packed and (len(packed) == batch_size or packed[0]['inputs'].shape != prepared['inputs'].shape):
            yield group, pseudo_collate(packed)
            group, packed = [], []
        group.append(source)
        packed.append(prepared)
    if packed:
        yield group, pseudo_collate(packed)


def _device(device: str | torch.device | None) -> torch.device:
    if device is None:
        return torch.device('cuda' if torch.cuda.is_available() else 'cpu')
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f'device {str(device)!r} cannot be used: give cpu, or cuda:0 with a GPU') from error
    return chosen
