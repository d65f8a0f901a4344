"""Semantic segmentation of large images with little more memory than the network needs.

mmseg resizes the logits of all classes to the size of the image, twice: for 150 classes and 4096×4096 pixels
that is 20 GB, many times the memory of the network. Here the logits are resized a few rows at a time, and
only the labels are kept. In tiled inference, logits are averaged where tiles overlap. Pixels that no further
tile covers are labelled at once: memory for logits grows with the width of the image, not with its area.
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

from inline.utils.errors import UserError

Size = tuple[int, int]
# Returns the rows from start to stop, (classes, rows, W).
GetRows = Callable[[int, int], Tensor]

# Maximum number of logits that are resized at once: 64 MB.
_MAX_STRIP = 2**24
# The smallest image that all backbones accept.
_MIN_TILE = 32


@dataclass(frozen=True)
class Tiling:
    """Square tiles of `size` pixels; neighbours share at least `overlap` pixels."""

    size: int
    overlap: int = 0

    def __post_init__(self) -> None:
        if self.size < _MIN_TILE:
            raise UserError(f'tile {self.size}: must be at least {_MIN_TILE} pixels')
        if not 0 <= self.overlap < self.size:
            raise UserError(
                f'overlap {self.overlap}: must be at least 0 and less than the tile size {self.size}'
            )

    def spans(self, length: int) -> list[tuple[int, int]]:
        """Return start and stop of the tiles along a side, evenly distributed."""
        if length <= self.size:
            return [(0, length)]
        last, step = length - self.size, self.size - self.overlap
        count = -(-last // step) + 1
        return [(i * last // (count - 1), i * last // (count - 1) + self.size) for i in range(count)]


def segment(model: BaseModel, batch: dict[str, Any], keep_logits: bool) -> list[BaseDataElement]:
    """Segment the images of a batch from the test pipeline, without tiles."""
    prepared = model.data_preprocessor(batch, False)
    samples: list[BaseDataElement] = prepared['data_samples']
    if model.test_cfg.get('mode') == 'slide':
        logits = model.inference(prepared['inputs'], [sample.metainfo for sample in samples])
    else:
        logits = _coarse_logits(model, prepared['inputs'], samples)
    input_size = _size(prepared['inputs'])
    for sample, image_logits in zip(samples, logits, strict=True):
        get_rows = _image_rows(image_logits, input_size, sample, model.align_corners)
        _set_labels(model, sample, get_rows, (len(image_logits), *sample.ori_shape[:2]), keep_logits)
    return samples


def segment_tiles(
    model: BaseModel, inputs: Tensor, sample: BaseDataElement, tiling: Tiling, keep_logits: bool
) -> BaseDataElement:
    """Segment one image (3, H, W) tile by tile."""
    height, width = _size(inputs)
    bands, columns = tiling.spans(height), tiling.spans(width)
    labels = torch.empty(1, height, width, dtype=torch.int64)
    all_logits: Tensor | None = None
    # Sum of logits in the rows that a band shares with the band above.
    above: Tensor | None = None
    with tqdm(total=len(bands) * len(columns), unit='tile', leave=False, delay=2) as bar:
        for i, (top, bottom) in enumerate(bands):
            # Rows from here on also belong to the next band.
            next_top = bands[i + 1][0] if i + 1 < len(bands) else bottom
            below: Tensor | None = None
            # Sum of logits in the columns that a tile shares with the tiles to its left.
            left: Tensor | None = None
            for j, (start, stop) in enumerate(columns):
                next_start = columns[j + 1][0] if j + 1 < len(columns) else stop
                logits = _tile_logits(model, inputs[:, top:bottom, start:stop], sample)
                if left is not None:
                    logits[:, :, : left.shape[-1]] += left
                left = logits[:, :, next_start - start :].clone()
                logits = logits[:, :, : next_start - start]
                if above is not None:
                    logits[:, : above.shape[1]] += above[:, :, start:next_start]
                if next_top < bottom:
                    if below is None:
                        below = logits.new_empty(len(logits), bottom - next_top, width)
                    below[:, :, start:next_start] = logits[:, next_top - top :]
                logits = logits[:, : next_top - top]
                logits /= _count_tiles(bands, top, next_top)[:, None] * _count_tiles(
                    columns, start, next_start
                )
                labels[:, top:next_top, start:next_start] = _predict_labels(model, logits)
                if keep_logits:
                    if all_logits is None:
                        all_logits = logits.new_empty(len(logits), height, width)
                    all_logits[:, top:next_top, start:next_start] = logits
                bar.update()
            above = below
    return _set_result(sample, labels, all_logits)


def _tile_logits(model: BaseModel, tile: Tensor, image_sample: BaseDataElement) -> Tensor:
    """Return the logits (classes, h, w) of a tile, on the CPU."""
    size = _size(tile)
    sample = type(image_sample)(metainfo={'img_shape': size, 'ori_shape': size})
    prepared = model.data_preprocessor({'inputs': [tile], 'data_samples': [sample]}, False)
    inputs, samples = prepared['inputs'], prepared['data_samples']
    (logits,) = _coarse_logits(model, inputs, samples)
    get_rows = _image_rows(logits, _size(inputs), samples[0], model.align_corners)
    return get_rows(0, size[0]).float().cpu()


def _count_tiles(spans: Sequence[tuple[int, int]], start: int, stop: int) -> Tensor:
    """Return the number of tiles that contain each pixel from `start` to `stop`, along one side."""
    pixels = torch.arange(start, stop)
    return sum(((first <= pixels) & (pixels < last)).float() for first, last in spans)  # type: ignore[return-value]


def _coarse_logits(model: BaseModel, inputs: Tensor, samples: Sequence[BaseDataElement]) -> Tensor:
    """Return logits (B, classes, h, w) at the resolution of the head.

    A model that overrides how mmseg decodes returns logits at the size of the inputs.
    """
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


def _image_rows(logits: Tensor, input_size: Size, sample: BaseDataElement, align_corners: bool) -> GetRows:
    """Return a function that resizes logits (classes, h, w) to rows of the original image.

    Like mmseg, it resizes twice: to the size of the inputs, then, without their padding, to the image.
    """
    left, right, top, bottom = sample.get('img_padding_size', sample.get('padding_size', (0, 0, 0, 0)))
    unpadded = (input_size[0] - top - bottom, input_size[1] - left - right)

    def input_rows(start: int, stop: int) -> Tensor:
        padded = resize_rows(
            lambda a, b: logits[:, a:b], _size(logits), input_size, (start + top, stop + top), align_corners
        )
        return padded[:, :, left : input_size[1] - right]

    def image_rows(start: int, stop: int) -> Tensor:
        return resize_rows(input_rows, unpadded, tuple(sample.ori_shape[:2]), (start, stop), align_corners)

    return image_rows


def resize_rows(
    get_rows: GetRows, source: Size, size: Size, span: tuple[int, int], align_corners: bool
) -> Tensor:
    """Return the rows `span` of a map after bilinear resizing from `source` to `size`.

    Args:
        get_rows: Returns rows of the map before resizing.
        source: Height and width before resizing.
        size: Height and width after resizing.
        span: First row and the row after the last.
        align_corners: As in ``F.interpolate``.
    """
    start, stop = span
    if source == size:
        return get_rows(start, stop)
    index = torch.arange(start, stop, dtype=torch.float64)
    if align_corners:
        position = index * ((source[0] - 1) / max(size[0] - 1, 1))
    else:
        position = ((index + 0.5) * (source[0] / size[0]) - 0.5).clamp(min=0)
    upper = position.floor().long()
    lower = (upper + 1).clamp(max=source[0] - 1)
    first = int(upper[0])
    block = get_rows(first, int(lower[-1]) + 1)
    weight = (position - upper).to(block)[:, None]
    mixed = torch.lerp(block[:, upper - first], block[:, lower - first], weight)
    # The rows are interpolated already: this changes the columns only.
    return F.interpolate(
        mixed[None], size=(stop - start, size[1]), mode='bilinear', align_corners=align_corners
    )[0]


def _set_labels(
    model: BaseModel,
    sample: BaseDataElement,
    get_rows: GetRows,
    shape: tuple[int, int, int],
    keep_logits: bool,
) -> None:
    """Compute the labels of an image a strip of rows at a time, and store them in the sample."""
    classes, height, width = shape
    labels = torch.empty(1, height, width, dtype=torch.int64)
    logits = torch.empty(shape) if keep_logits else None
    count = max(1, _MAX_STRIP // (classes * width))
    for start in range(0, height, count):
        stop = min(start + count, height)
        strip = get_rows(start, stop)
        labels[:, start:stop] = _predict_labels(model, strip)
        if logits is not None:
            logits[:, start:stop] = strip
    _set_result(sample, labels, logits)


def _predict_labels(model: BaseModel, logits: Tensor) -> Tensor:
    """Return labels (1, H, W) on the CPU from logits (classes, H, W). A single class uses a threshold."""
    if len(logits) > 1:
        return logits.argmax(dim=0, keepdim=True).cpu()
    return (logits.sigmoid() > model.decode_head.threshold).long().cpu()


def _set_result(sample: BaseDataElement, labels: Tensor, logits: Tensor | None) -> BaseDataElement:
    sample.set_data({'pred_sem_seg': PixelData(data=labels)})
    if logits is not None:
        sample.set_data({'seg_logits': PixelData(data=logits)})
    return sample


def _size(map_: Tensor) -> Size:
    return int(map_.shape[-2]), int(map_.shape[-1])
