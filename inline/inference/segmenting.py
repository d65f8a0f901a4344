"""Label maps of images of any size, in memory that the network needs and little more.

mmseg resizes the logits of all classes to the size of the image, twice: for 150 classes and 4096×4096 pixels
that is 20 GB, many times what the network took. Here rows of the image are resized and decided a few at a
time. Tiles overlap, and where they do their logits are averaged; what no further tile touches is decided at
once, so that memory grows with the width of the image and not with its area.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from mmengine.model import BaseModel
from mmengine.structures import BaseDataElement, PixelData
from torch import Tensor
from tqdm import tqdm

from inline.errors import UserError

Size = tuple[int, int]
# Gives the rows from one to another, (classes, rows, W).
Rows = Callable[[int, int], Tensor]

# Numbers in a strip of rows that is decided at once: 64 MB.
_STRIP = 2**24
# What every family takes.
_SMALLEST_TILE = 32


@dataclass(frozen=True)
class Tiling:
    """Square tiles of `size` pixels, each sharing at least `overlap` with the next."""

    size: int
    overlap: int = 0

    def __post_init__(self) -> None:
        if self.size < _SMALLEST_TILE:
            raise UserError(f'tile {self.size}: must be {_SMALLEST_TILE} pixels or more')
        if not 0 <= self.overlap < self.size:
            raise UserError(f'overlap {self.overlap}: must be from 0 to less than the tile, {self.size}')

    def spans(self, length: int) -> list[tuple[int, int]]:
        """First and last pixel but one of the tiles along a side, evenly spread over it."""
        if length <= self.size:
            return [(0, length)]
        last, step = length - self.size, self.size - self.overlap
        count = -(-last // step) + 1
        return [(i * last // (count - 1), i * last // (count - 1) + self.size) for i in range(count)]


def segment(model: BaseModel, batch: dict[str, Any], keep_logits: bool) -> list[BaseDataElement]:
    """Predictions for a batch as the toolbox's test pipeline packs it, each image as a whole."""
    prepared = model.data_preprocessor(batch, False)
    samples: list[BaseDataElement] = prepared['data_samples']
    if model.test_cfg.get('mode') == 'slide':
        logits = model.inference(prepared['inputs'], [sample.metainfo for sample in samples])
    else:
        logits = _coarse_logits(model, prepared['inputs'], samples)
    inner = (int(prepared['inputs'].shape[-2]), int(prepared['inputs'].shape[-1]))
    for sample, own in zip(samples, logits, strict=True):
        rows = _rows_of_image(own, inner, sample, model.align_corners)
        _decide(model, sample, rows, (len(own), *sample.ori_shape[:2]), keep_logits)
    return samples


def segment_tiles(
    model: BaseModel, inputs: Tensor, sample: BaseDataElement, tiling: Tiling, keep_logits: bool
) -> BaseDataElement:
    """Prediction for one image (3, H, W), tile by tile."""
    height, width = int(inputs.shape[-2]), int(inputs.shape[-1])
    bands, columns = tiling.spans(height), tiling.spans(width)
    labels = torch.empty(1, height, width, dtype=torch.int64)
    kept: Tensor | None = None
    # Sums of logits in the rows that a band shares with the one above it.
    above: Tensor | None = None
    with tqdm(total=len(bands) * len(columns), unit='tile', leave=False, delay=2) as bar:
        for i, (top, bottom) in enumerate(bands):
            ready = bands[i + 1][0] if i + 1 < len(bands) else bottom
            below: Tensor | None = None
            # Sums in the columns that a tile shares with those to the left of it.
            left: Tensor | None = None
            for j, (start, stop) in enumerate(columns):
                done = columns[j + 1][0] if j + 1 < len(columns) else stop
                total = _tile_logits(model, inputs[:, top:bottom, start:stop], sample)
                if left is not None:
                    total[:, :, : left.shape[-1]] += left
                left = total[:, :, done - start :].clone()
                total = total[:, :, : done - start]
                if above is not None:
                    total[:, : above.shape[1]] += above[:, :, start:done]
                if ready < bottom:
                    if below is None:
                        below = total.new_empty(len(total), bottom - ready, width)
                    below[:, :, start:done] = total[:, ready - top :]
                total = total[:, : ready - top]
                total /= _covered(bands, top, ready)[:, None] * _covered(columns, start, done)
                labels[:, top:ready, start:done] = _choose(model, total)
                if keep_logits:
                    kept = total.new_empty(len(total), height, width) if kept is None else kept
                    kept[:, top:ready, start:done] = total
                bar.update()
            above = below
    return _set(sample, labels, kept)


def _tile_logits(model: BaseModel, tile: Tensor, of: BaseDataElement) -> Tensor:
    """Logits (classes, h, w) of a tile on the CPU."""
    size = (int(tile.shape[-2]), int(tile.shape[-1]))
    sample = type(of)(metainfo={'img_shape': size, 'ori_shape': size})
    prepared = model.data_preprocessor({'inputs': [tile], 'data_samples': [sample]}, False)
    inputs, samples = prepared['inputs'], prepared['data_samples']
    inner = (int(inputs.shape[-2]), int(inputs.shape[-1]))
    (logits,) = _coarse_logits(model, inputs, samples)
    rows = _rows_of_image(logits, inner, samples[0], model.align_corners)
    return rows(0, size[0]).float().cpu()


def _covered(spans: Sequence[tuple[int, int]], start: int, stop: int) -> Tensor:
    """How many tiles each pixel from `start` to `stop` is in, along one side."""
    pixels = torch.arange(start, stop)
    return sum(((first <= pixels) & (pixels < last)).float() for first, last in spans)  # type: ignore[return-value]


def _coarse_logits(model: BaseModel, inputs: Tensor, samples: Sequence[BaseDataElement]) -> Tensor:
    """Logits (B, classes, h, w) before they are resized to the size of the inputs, where that can be told."""
    from mmseg.models import EncoderDecoder
    from mmseg.models.decode_heads.decode_head import BaseDecodeHead

    head = model.decode_head
    is_plain = (
        type(model).encode_decode is EncoderDecoder.encode_decode
        and type(head).predict is BaseDecodeHead.predict
        and type(head).predict_by_feat is BaseDecodeHead.predict_by_feat
    )
    logits: Tensor
    if is_plain:
        logits = head(model.extract_feat(inputs))
    else:
        logits = model.encode_decode(inputs, [sample.metainfo for sample in samples])
    return logits


def _rows_of_image(logits: Tensor, inner: Size, sample: BaseDataElement, align_corners: bool) -> Rows:
    """Rows of an image in its own size from its logits (classes, h, w), in mmseg's two steps.

    First to the size of the inputs, `inner`; from there, without their padding, to that of the image.
    """
    left, right, top, bottom = sample.get('img_padding_size', sample.get('padding_size', (0, 0, 0, 0)))
    unpadded = (inner[0] - top - bottom, inner[1] - left - right)

    def rows_of_inputs(start: int, stop: int) -> Tensor:
        padded = resize_rows(
            lambda a, b: logits[:, a:b], _size(logits), inner, (start + top, stop + top), align_corners
        )
        return padded[:, :, left : inner[1] - right]

    def rows(start: int, stop: int) -> Tensor:
        return resize_rows(
            rows_of_inputs, unpadded, tuple(sample.ori_shape[:2]), (start, stop), align_corners
        )

    return rows


def resize_rows(rows: Rows, source: Size, size: Size, span: tuple[int, int], align_corners: bool) -> Tensor:
    """Some rows of a map after bilinear resizing from `source` to `size`; `rows` gives those before it."""
    start, stop = span
    if source == size:
        return rows(start, stop)
    index = torch.arange(start, stop, dtype=torch.float64)
    if align_corners:
        place = index * ((source[0] - 1) / max(size[0] - 1, 1))
    else:
        place = ((index + 0.5) * (source[0] / size[0]) - 0.5).clamp(min=0)
    upper = place.floor().long()
    lower = (upper + 1).clamp(max=source[0] - 1)
    first = int(upper[0])
    block = rows(first, int(lower[-1]) + 1)
    share = (place - upper).to(block)[:, None]
    mixed = torch.lerp(block[:, upper - first], block[:, lower - first], share)
    # The rows are there already: only the columns change.
    return F.interpolate(
        mixed[None], size=(stop - start, size[1]), mode='bilinear', align_corners=align_corners
    )[0]


def _decide(
    model: BaseModel,
    sample: BaseDataElement,
    rows: Rows,
    shape: tuple[int, int, int],
    keep_logits: bool,
) -> None:
    classes, height, width = shape
    labels = torch.empty(1, height, width, dtype=torch.int64)
    kept = torch.empty(shape) if keep_logits else None
    count = max(1, _STRIP // (classes * width))
    for start in range(0, height, count):
        stop = min(start + count, height)
        strip = rows(start, stop)
        labels[:, start:stop] = _choose(model, strip)
        if kept is not None:
            kept[:, start:stop] = strip
    _set(sample, labels, kept)


def _choose(model: BaseModel, logits: Tensor) -> Tensor:
    """Labels (1, H, W) on the CPU from logits (classes, H, W); one class is there or is not."""
    if len(logits) > 1:
        return logits.argmax(dim=0, keepdim=True).cpu()
    return (logits.sigmoid() > model.decode_head.threshold).long().cpu()


def _set(sample: BaseDataElement, labels: Tensor, logits: Tensor | None) -> BaseDataElement:
    sample.set_data({'pred_sem_seg': PixelData(data=labels)})
    if logits is not None:
        sample.set_data({'seg_logits': PixelData(data=logits)})
    return sample


def _size(logits: Tensor) -> Size:
    return int(logits.shape[-2]), int(logits.shape[-1])
