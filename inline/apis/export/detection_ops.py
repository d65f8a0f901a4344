"""Operators of detectors as ONNX operators: non-maximum suppression and RoIAlign on a feature pyramid.

In PyTorch they call mmcv. ``torch.export`` records them as single operators with outputs of a fixed shape,
and :func:`onnx_translations` expresses them in standard ONNX operators, where the shapes of intermediate
results depend on the data.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


@torch.library.custom_op('inline_export::nms', mutates_args=())
def nms(boxes: Tensor, scores: Tensor, iou_threshold: float, max_boxes: int) -> Tensor:
    """Non-maximum suppression of each image.

    Args:
        boxes: (B, N, 4), as x1, y1, x2, y2.
        scores: (B, N); boxes with a score of at most 0 are not considered.
        iou_threshold: A box is removed if its IoU with a kept one exceeds this.
        max_boxes: Largest number of boxes to keep per image, the ones with the highest scores.

    Returns:
        (B, N) of bool: the boxes that are kept.
    """
    from mmcv.ops import nms as mmcv_nms

    keep = torch.zeros_like(scores, dtype=torch.bool)
    for image in range(len(boxes)):
        valid = (scores[image] > 0).nonzero().squeeze(1)
        if len(valid):
            _, index = mmcv_nms(boxes[image, valid], scores[image, valid], iou_threshold)
            keep[image, valid[index[:max_boxes]]] = True
    return keep


@nms.register_fake
def _(_boxes: Tensor, scores: Tensor, _iou_threshold: float, _max_boxes: int) -> Tensor:
    return torch.empty_like(scores, dtype=torch.bool)


@torch.library.custom_op('inline_export::pyramid_roi_align', mutates_args=())
def pyramid_roi_align(
    features: Sequence[Tensor],
    boxes: Tensor,
    levels: Tensor,
    scales: Sequence[float],
    output_size: Sequence[int],
    sampling_ratio: int,
    aligned: bool,
) -> Tensor:
    """RoIAlign of the boxes of one image, each on one level of a feature pyramid.

    Args:
        features: A feature map (1, C, H, W) per level.
        boxes: (N, 4) in pixels of the image, as x1, y1, x2, y2.
        levels: (N,) of int64: the level of each box.
        scales: Size of each feature map relative to the image.
        output_size: Height and width of the output.
        sampling_ratio: Samples per bin and axis; 0 chooses them by the size of the box.
        aligned: Whether pixel centres are at half-integer positions.

    Returns:
        (N, C, *output_size).
    """
    from mmcv.ops import roi_align

    out = features[0].new_zeros(len(boxes), features[0].shape[1], *output_size)
    rois = torch.cat((torch.zeros_like(boxes[:, :1]), boxes), dim=1)
    for level, (feature, scale) in enumerate(zip(features, scales, strict=True)):
        index = (levels == level).nonzero().squeeze(1)
        if len(index):
            out[index] = roi_align(
                feature, rois[index], tuple(output_size), scale, sampling_ratio, 'avg', aligned
            )
    return out


@pyramid_roi_align.register_fake
def _(
    features: Sequence[Tensor],
    boxes: Tensor,
    _levels: Tensor,
    _scales: Sequence[float],
    output_size: Sequence[int],
    *_: Any,
) -> Tensor:
    return features[0].new_empty(boxes.shape[0], features[0].shape[1], *output_size)


def onnx_translations() -> dict[Any, Callable[..., Any]]:
    """Return the functions that translate the operators of this module to ONNX."""
    import onnxscript
    from onnxscript import BOOL, FLOAT, INT64

    # Its annotations distinguish the types of all inputs.
    op: Any = onnxscript.opset18

    def translate_nms(boxes: FLOAT, scores: FLOAT, iou_threshold: float, max_boxes: int) -> BOOL:
        selected = op.NonMaxSuppression(
            boxes,
            op.Unsqueeze(scores, op.Constant(value_ints=[1])),
            op.Constant(value_ints=[max_boxes]),
            op.Constant(value_floats=[iou_threshold]),
            op.Constant(value_floats=[0.0]),
        )
        # Columns: image, class, box.
        index = op.Gather(selected, op.Constant(value_ints=[0, 2]), axis=1)
        return op.Greater(_scatter_ones(op, op.Shape(scores), index), op.Constant(value_float=0.5))

    def translate_roi_align(
        features: Sequence[FLOAT],
        boxes: FLOAT,
        levels: INT64,
        scales: Sequence[float],
        output_size: Sequence[int],
        sampling_ratio: int,
        aligned: bool,
    ) -> FLOAT:
        parts, indices = [], []
        for level, (feature, scale) in enumerate(zip(features, scales, strict=True)):
            here = op.Equal(levels, op.Constant(value_int=level))
            index = op.Squeeze(op.NonZero(op.Cast(here, to=1)), op.Constant(value_ints=[0]))
            zeros = op.Mul(index, op.Constant(value_int=0))
            indices.append(index)
            parts.append(
                op.RoiAlign(
                    feature,
                    op.Gather(boxes, index),
                    zeros,
                    coordinate_transformation_mode='half_pixel' if aligned else 'output_half_pixel',
                    mode='avg',
                    output_height=output_size[0],
                    output_width=output_size[1],
                    sampling_ratio=sampling_ratio,
                    spatial_scale=scale,
                )
            )
        # The boxes of all levels, back in their order.
        order = op.Concat(*indices, axis=0)
        count = op.Shape(order)
        position = op.Range(
            op.Constant(value_int=0),
            op.Squeeze(count, op.Constant(value_ints=[0])),
            op.Constant(value_int=1),
        )
        inverse = op.ScatterElements(position, order, position)
        return op.Gather(op.Concat(*parts, axis=0), inverse)

    ops = torch.ops.inline_export
    return {ops.nms.default: translate_nms, ops.pyramid_roi_align.default: translate_roi_align}


def _scatter_ones(op: Any, shape: Any, index: Any) -> Any:
    """Return a tensor with 1 at the rows of `index` and 0 elsewhere."""
    import onnx

    one, zero = (onnx.helper.make_tensor('value', onnx.TensorProto.FLOAT, [1], [x]) for x in (1.0, 0.0))
    ones = op.ConstantOfShape(op.Shape(index, start=0, end=1), value=one)
    return op.ScatterND(op.ConstantOfShape(shape, value=zero), index, ones)
