"""Whole detectors to export: RetinaNet, Mask R-CNN, Cascade Mask R-CNN and Faster R-CNN of mmdet.

The networks use mmdet's modules, and predict boxes like mmdet's heads, but with tensors of fixed shapes:
missing candidates have a score of -1, and missing detections a score of 0 and a label of -1.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inline.apis.export.detection_ops import nms, pyramid_roi_align
from inline.apis.export.model import MIN_DYNAMIC_SIZE, ExportNetwork
from inline.ops.symint import ceil_div
from inline.utils.errors import UserError

# mmdet's limit of the ratio between a box and its anchor or proposal.
_MAX_LOG_RATIO = abs(math.log(16 / 1000))

# Height and width, which may be symbolic.
Size = tuple[int, int]


class DetectionNetwork(ExportNetwork):
    """A detector: images (B, C, H, W) → boxes (B, N, 4), scores (B, N), labels (B, N) and masks (B, N, h, w).

    N is the largest number of detections per image of the config. Detections are ordered by score. Boxes are
    x1, y1, x2, y2 in pixels of the image. Masks are probabilities in the box; see :func:`paste_masks`.

    Args:
        detector: A detector of mmdet that :func:`check_detector` accepts.
        mean, std: (C, 1, 1), to normalise pixel values of 0 to 255; None if the images are normalised.
        image_masks: Return boolean masks (B, N, H, W) of the image instead of masks in the boxes.
    """

    def __init__(
        self,
        detector: nn.Module,
        mean: Tensor | None = None,
        std: Tensor | None = None,
        image_masks: bool = False,
    ) -> None:
        super().__init__(detector, 'detection', mean, std)
        check_detector(detector)
        preprocessor: Any = detector.data_preprocessor
        self.divisor = int(getattr(preprocessor, 'pad_size_divisor', 1))
        self.pad_value = float(getattr(preprocessor, 'pad_value', 0))
        self.image_masks = image_masks
        self.one_stage = not hasattr(detector, 'roi_head')
        dense = detector.bbox_head if self.one_stage else detector.rpn_head
        largest = max(max(stride) for stride in dense.prior_generator.strides)  # type: ignore[union-attr]
        # torch.export requires dynamic sizes of at least two, also on the coarsest level.
        self.min_size = (max(MIN_DYNAMIC_SIZE, largest + 1),) * 2
        # Proposals of several images would need the index of their image.
        self.max_batch = None if self.one_stage else 1
        self.outputs = ('boxes', 'scores', 'labels')
        if not self.one_stage and detector.roi_head.with_mask:  # type: ignore[union-attr]
            self.outputs = (*self.outputs, 'masks')

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        x = self.pad(self.normalize(image))
        detector: Any = self.module
        size = (image.shape[-2], image.shape[-1])
        features = detector.extract_feat(x)
        if self.one_stage:
            return _finish(*predict_dense(detector.bbox_head, features, size))
        proposals, scores, _ = predict_dense(detector.rpn_head, features, size)
        roi_head = detector.roi_head
        if type(roi_head).__name__ == 'CascadeRoIHead':
            detections = _predict_cascade(roi_head, features, proposals[0], scores[0], size)
        else:
            detections = _predict_rois(roi_head, features, proposals[0], scores[0], size)
        boxes, scores, labels = _finish(*detections)
        if 'masks' not in self.outputs:
            return boxes, scores, labels
        masks = _predict_masks(roi_head, features, boxes[0], labels[0])
        if self.image_masks:
            threshold = float(self.test_cfg.mask_thr_binary)
            masks = (paste_masks(masks, boxes[0], size) >= threshold) & (labels[0] >= 0)[:, None, None]
        return boxes, scores, labels, masks[None]

    def predict(self, image: Tensor) -> list[Any]:
        """Return mmdet's own predictions of each image, as ``InstanceData`` with boolean masks."""
        from mmdet.structures import DetDataSample

        x, size = self.pad(self.normalize(image)), (image.shape[-2], image.shape[-1])
        padded = (x.shape[-2], x.shape[-1])
        info = {'img_shape': size, 'ori_shape': size, 'scale_factor': (1.0, 1.0)}
        samples = [
            DetDataSample(metainfo={**info, 'batch_input_shape': padded, 'pad_shape': padded}) for _ in x
        ]
        detector: Any = self.module
        with warnings.catch_warnings():
            # mmdet copies tensors in a way that torch warns about.
            warnings.simplefilter('ignore')
            return [sample.pred_instances for sample in detector.predict(x, samples)]

    def describe(self) -> dict[str, Any]:
        cfg = self.test_cfg
        metadata: dict[str, Any] = {
            'max_detections': int(cfg.max_per_img),
            'score_threshold': float(cfg.get('score_thr', 0)),
        }
        if 'masks' in self.outputs:
            metadata['mask_threshold'] = float(cfg.mask_thr_binary)
            metadata['masks'] = 'image' if self.image_masks else 'box'
        return {'detection': metadata}

    @property
    def test_cfg(self) -> Any:
        """mmdet's settings of the final detections."""
        detector: Any = self.module
        return detector.bbox_head.test_cfg if self.one_stage else detector.roi_head.test_cfg

    def pad(self, x: Tensor) -> Tensor:
        """Pad normalised images at the right and the bottom to multiples of the divisor, as mmdet does."""
        height, width = (ceil_div(side, self.divisor) * self.divisor for side in x.shape[-2:])
        return F.pad(x, (0, width - x.shape[-1], 0, height - x.shape[-2]), value=self.pad_value)


def predict_dense(head: Any, features: Sequence[Tensor], size: Size) -> tuple[Tensor, Tensor, Tensor]:
    """Return the detections of a RetinaNet, or the proposals of a region proposal network.

    Args:
        head: A ``RetinaHead`` or ``RPNHead``.
        features: Feature maps (B, C, H, W).
        size: Height and width of the images.

    Returns:
        Boxes (B, N, 4), scores (B, N) and labels (B, N) or, for proposals, levels (B, N).
    """
    cfg, is_rpn = head.test_cfg, type(head).__name__ == 'RPNHead'
    levels = []
    for level, (logits, deltas) in enumerate(zip(*head(features), strict=True)):
        columns = logits.shape[-1]
        logits = _per_position(logits, head.cls_out_channels)
        scores = logits.sigmoid() if head.use_sigmoid_cls else logits.softmax(-1)[..., :-1]
        classes = scores.shape[-1]
        if not is_rpn:
            scores = torch.where(scores > cfg.get('score_thr', 0), scores, -1.0)
        scores, index = _top_candidates(scores.flatten(1), int(cfg.nms_pre))
        index, labels = index // classes, index % classes
        anchors = anchors_at(head.prior_generator, level, index, columns)
        deltas = _per_position(deltas, 4).gather(1, index[..., None].expand(-1, -1, 4))
        boxes = decode_boxes(head.bbox_coder, anchors, deltas, size)
        levels.append((boxes, scores, labels + level if is_rpn else labels))
    boxes, scores, groups = (torch.cat(parts, dim=1) for parts in zip(*levels, strict=True))
    min_size = cfg.get('min_bbox_size', -1)
    if min_size >= 0:
        sides = boxes[..., 2:] - boxes[..., :2]
        scores = torch.where((sides > min_size).all(-1), scores, -1.0)
    return suppress(boxes, scores, groups, cfg)


def _per_position(x: Tensor, channels: int) -> Tensor:
    """(B, anchors · channels, H, W) → (B, H · W · anchors, channels)."""
    # Not contiguous(), which is not recorded if the convolution of the example happens to use channels last.
    x = x.permute(0, 2, 3, 1).clone(memory_format=torch.contiguous_format)
    return x.view(x.shape[0], x.shape[1] * x.shape[2] * (x.shape[3] // channels), channels)


def _top_candidates(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the highest scores (B, count) and their indices. Fewer scores are filled up with -1."""
    padded = torch.cat((scores, torch.full_like(scores[:, :1], -1.0).expand(-1, count)), dim=1)
    top, index = padded.topk(count)
    # Indices of the padding would be out of range.
    last = torch.scalar_tensor(scores.shape[1] - 1, dtype=torch.int64)
    return top, torch.minimum(index, last)


def anchors_at(generator: Any, level: int, index: Tensor, columns: int) -> Tensor:
    """Return the anchors (…, 4) with the given indices (…) on a level whose feature map has `columns`.

    Only the anchors of the candidates are computed, not the grid of all anchors.
    """
    stride_x, stride_y = generator.strides[level]
    base = generator.base_anchors[level].float()
    position, anchor = index // len(base), index % len(base)
    # As a tensor: the exporter cannot divide by a symbol.
    width = torch.scalar_tensor(columns, dtype=torch.int64)
    row = position // width
    x, y = ((position - row * width) * stride_x).float(), (row * stride_y).float()
    return torch.stack((x, y, x, y), dim=-1) + base[anchor]


def decode_boxes(coder: Any, boxes: Tensor, deltas: Tensor, size: Size) -> Tensor:
    """Apply predicted offsets (…, 4) to anchors or proposals (…, 4)."""
    deltas = deltas * deltas.new_tensor(coder.stds) + deltas.new_tensor(coder.means)
    center, side = (boxes[..., :2] + boxes[..., 2:]) * 0.5, boxes[..., 2:] - boxes[..., :2]
    center = center + side * deltas[..., :2]
    side = side * deltas[..., 2:].clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()
    decoded = torch.cat((center - side * 0.5, center + side * 0.5), dim=-1)
    if not coder.clip_border:
        return decoded
    height, width = (torch.scalar_tensor(side, dtype=torch.float32) for side in size)
    limit = torch.stack((width, height, width, height))
    return torch.minimum(decoded.clamp(min=0), limit)


def suppress(
    boxes: Tensor, scores: Tensor, groups: Tensor, cfg: Mapping[str, Any]
) -> tuple[Tensor, Tensor, Tensor]:
    """Suppress overlapping boxes of the same group, and return those with the highest scores.

    Args:
        boxes: (B, N, 4).
        scores: (B, N); only positive scores are considered.
        groups: (B, N): class or pyramid level.
        cfg: mmdet's test_cfg with ``nms`` and ``max_per_img``.

    Returns:
        Boxes (B, K, 4), scores (B, K), which are -1 for missing boxes, and groups (B, K).
    """
    shifted = boxes
    if not cfg['nms'].get('class_agnostic', False):
        # Boxes of different groups do not overlap if they are shifted, as in mmcv's batched_nms.
        largest = torch.where(scores[..., None] > 0, boxes, 0.0).flatten(1).amax(dim=1)
        shifted = boxes + (groups.float() * (largest[:, None] + 1))[..., None]
    count = min(int(cfg['max_per_img']), scores.shape[1])
    keep = nms(shifted, scores, float(cfg['nms']['iou_threshold']), count)
    scores, index = torch.where(keep, scores, -1.0).topk(count)
    return boxes.gather(1, index[..., None].expand(-1, -1, 4)), scores, groups.gather(1, index)


def _finish(boxes: Tensor, scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Set missing boxes and their scores to 0, and their labels to -1."""
    found = scores > 0
    return (
        torch.where(found[..., None], boxes, 0.0),
        torch.where(found, scores, 0.0),
        torch.where(found, labels, -1),
    )


def _predict_rois(
    roi_head: Any, features: Sequence[Tensor], proposals: Tensor, scores: Tensor, size: Size
) -> tuple[Tensor, Tensor, Tensor]:
    """Return boxes (1, K, 4), scores (1, K) and labels (1, K) of proposals (N, 4) with scores (N,)."""
    logits, deltas = roi_head.bbox_head(_extract(roi_head.bbox_roi_extractor, features, proposals))
    return _classify(roi_head, roi_head.bbox_head, proposals, scores, logits, deltas, size)


def _predict_cascade(
    roi_head: Any, features: Sequence[Tensor], proposals: Tensor, scores: Tensor, size: Size
) -> tuple[Tensor, Tensor, Tensor]:
    """Like :func:`_predict_rois`, with proposals that each stage refines and logits averaged over stages."""
    boxes, all_logits = proposals, []
    stages = list(zip(roi_head.bbox_roi_extractor, roi_head.bbox_head, strict=True))
    for stage, (extractor, head) in enumerate(stages):
        logits, deltas = head(_extract(extractor, features, boxes))
        all_logits.append(logits)
        if stage < len(stages) - 1:
            if not head.reg_class_agnostic:
                label = logits[:, :-1].argmax(dim=1)
                deltas = deltas.unflatten(1, (-1, 4)).gather(1, label[:, None, None].expand(-1, 1, 4))
                deltas = deltas.squeeze(1)
            boxes = decode_boxes(head.bbox_coder, boxes, deltas, size)
    logits = torch.stack(all_logits).sum(dim=0) / len(all_logits)
    return _classify(roi_head, roi_head.bbox_head[-1], boxes, scores, logits, deltas, size)


def _classify(
    roi_head: Any,
    head: Any,
    boxes: Tensor,
    proposal_scores: Tensor,
    logits: Tensor,
    deltas: Tensor,
    size: Size,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the detections of boxes (N, 4) with logits (N, classes + 1) and offsets (N, classes · 4)."""
    cfg = roi_head.test_cfg
    scores = logits.softmax(-1)[:, :-1]
    found = (proposal_scores[:, None] > 0) & (scores > cfg.score_thr)
    scores = torch.where(found, scores, -1.0)
    decoded = decode_boxes(head.bbox_coder, boxes[:, None], deltas.unflatten(1, (-1, 4)), size)
    decoded = decoded.expand(-1, scores.shape[1], 4)
    labels = torch.arange(scores.shape[1]).expand(scores.shape[0], -1)
    return suppress(decoded.reshape(1, -1, 4), scores.reshape(1, -1), labels.reshape(1, -1), cfg)


def _predict_masks(roi_head: Any, features: Sequence[Tensor], boxes: Tensor, labels: Tensor) -> Tensor:
    """Return the mask probabilities (N, h, w) in boxes (N, 4), averaged over the stages of a cascade."""
    extractors, heads = roi_head.mask_roi_extractor, roi_head.mask_head
    if not isinstance(heads, nn.ModuleList):
        extractors, heads = [extractors], [heads]
    masks = []
    for extractor, head in zip(extractors, heads, strict=True):
        probabilities = head(_extract(extractor, features, boxes)).sigmoid()
        if probabilities.shape[1] > 1:
            index = labels.clamp(min=0)[:, None, None, None].expand(-1, 1, *probabilities.shape[2:])
            probabilities = probabilities.gather(1, index)
        masks.append(probabilities[:, 0])
    return torch.stack(masks).mean(dim=0) if len(masks) > 1 else masks[0]


def _extract(extractor: Any, features: Sequence[Tensor], boxes: Tensor) -> Tensor:
    """Return the features (N, C, h, w) of boxes (N, 4), each from the level that fits its size."""
    layers = list(extractor.roi_layers)
    sides = boxes[:, 2:] - boxes[:, :2]
    scale = (sides[:, 0] * sides[:, 1]).sqrt()
    level = torch.log2(scale / extractor.finest_scale + 1e-6).floor().clamp(0, len(layers) - 1).long()
    layer = layers[0]
    return pyramid_roi_align(
        list(features[: len(layers)]),
        boxes,
        level,
        [float(layer.spatial_scale) for layer in layers],
        list(layer.output_size),
        int(layer.sampling_ratio),
        bool(layer.aligned),
    )


def paste_masks(masks: Tensor, boxes: Tensor, size: Size) -> Tensor:
    """Paste masks in boxes into an image with bilinear interpolation, like mmdet.

    Interpolation along both axes is separable, so it is two matrix products.

    Args:
        masks: (N, h, w), probabilities.
        boxes: (N, 4), as x1, y1, x2, y2.
        size: Height and width of the image.

    Returns:
        (N, height, width), 0 outside the boxes.
    """
    rows = _paste_weights(boxes[:, 1], boxes[:, 3], size[0], masks.shape[1])
    columns = _paste_weights(boxes[:, 0], boxes[:, 2], size[1], masks.shape[2])
    return rows @ masks @ columns.transpose(1, 2)


def _paste_weights(start: Tensor, end: Tensor, side: int, bins: int) -> Tensor:
    """Return the weights (N, side, bins) of a mask's bins at the pixels along one axis of the image."""
    pixel = torch.arange(side, device=start.device).float() + 0.5
    length = (end - start).clamp(min=1e-6)
    position = (pixel - start[:, None]) / length[:, None] * bins - 0.5
    bin_index = torch.arange(bins, device=start.device).float()
    return (1 - (position[..., None] - bin_index).abs()).clamp(min=0)


def check_detector(detector: nn.Module) -> None:
    """Raise a :class:`UserError` if the detector has parts that cannot be exported."""
    rpn, roi = getattr(detector, 'rpn_head', None), getattr(detector, 'roi_head', None)
    dense = getattr(detector, 'bbox_head', None) if roi is None else rpn
    _require('head', dense, ('RetinaHead',) if roi is None else ('RPNHead',))
    assert dense is not None
    _require('anchor generator', dense.prior_generator, ('AnchorGenerator',))
    _check_nms('model.test_cfg' if roi is None else 'model.test_cfg.rpn', dense.test_cfg)
    if int(dense.test_cfg.get('nms_pre', -1)) <= 0:
        raise UserError(
            f'test_cfg of the detector: nms_pre {dense.test_cfg.get("nms_pre")!r} must be positive'
        )
    coders, extractors = [dense.bbox_coder], []
    if roi is not None:
        _require('RoI head', roi, ('StandardRoIHead', 'CascadeRoIHead'))
        _check_nms('model.test_cfg.rcnn', roi.test_cfg)
        if roi.with_shared_head:
            raise UserError('a detector with a shared RoI head (C4) cannot be exported: use --what backbone')
        for head in _as_list(roi.bbox_head):
            _require('box head', head, ('Shared2FCBBoxHead', 'Shared4Conv1FCBBoxHead', 'ConvFCBBoxHead'))
            if head.custom_cls_channels:
                raise UserError('a box head with a custom activation cannot be exported: use --what backbone')
            coders.append(head.bbox_coder)
        extractors += _as_list(roi.bbox_roi_extractor)
        if roi.with_mask:
            if roi.test_cfg.mask_thr_binary < 0:
                raise UserError(
                    f'model.test_cfg.rcnn.mask_thr_binary {roi.test_cfg.mask_thr_binary} must not be negative'
                )
            for head in _as_list(roi.mask_head):
                _require('mask head', head, ('FCNMaskHead',))
            extractors += _as_list(roi.mask_roi_extractor)
    for coder in coders:
        _require('box coder', coder, ('DeltaXYWHBBoxCoder',))
        if coder.add_ctr_clamp:
            raise UserError('a box coder with add_ctr_clamp cannot be exported: use --what backbone')
    for extractor in extractors:
        _require('RoI extractor', extractor, ('SingleRoIExtractor',))
        for layer in extractor.roi_layers:
            _require('RoI layer', layer, ('RoIAlign',))
            if layer.pool_mode != 'avg':
                raise UserError(f"RoIAlign with pool_mode {layer.pool_mode!r} cannot be exported, only 'avg'")


def _as_list(module: Any) -> list[Any]:
    return list(module) if isinstance(module, nn.ModuleList) else [module]


def _require(part: str, module: Any, allowed: Sequence[str]) -> None:
    """Raise unless the class of a part has an allowed name, in mmdet or as a subclass of this package."""
    name = type(module).__name__
    if name not in allowed:
        raise UserError(
            f'a detector with the {part} {name} cannot be exported as a whole model, only with '
            f'{" or ".join(allowed)}: use --what backbone'
        )


def _check_nms(name: str, cfg: Any) -> None:
    options = cfg.get('nms') or {}
    unknown = set(options) - {'type', 'iou_threshold', 'class_agnostic', 'split_thr'}
    if options.get('type', 'nms') != 'nms' or 'iou_threshold' not in options or unknown:
        raise UserError(
            f"{name}.nms is {dict(options)}: the export needs type='nms' with iou_threshold, and supports "
            'class_agnostic'
        )
    if int(cfg.get('max_per_img', -1)) <= 0:
        raise UserError(f'{name}.max_per_img {cfg.get("max_per_img")!r} must be positive')
