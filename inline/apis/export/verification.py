"""Verification of an exported file: comparison of its outputs and its accuracy with the model's."""

import copy
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import BaseDataset, pseudo_collate
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, DefaultScope
from mmengine.runner import Runner
from torch import Tensor, nn

from inline.apis.export.detection import DetectionNetwork, paste_masks
from inline.apis.export.formats import InferenceFn
from inline.apis.export.model import MIN_DYNAMIC_SIZE, ExportNetwork
from inline.apis.runtimes import to_instances
from inline.datasets.digits.rendering import DigitScenesOptions, render_scene
from inline.datasets.digits.sources import load_sources
from inline.engine.launch import build_runner
from inline.utils.errors import UserError

# Relative to the largest output, or to 1 if outputs are smaller.
TOLERANCE = 1e-4

# Detections above this score must agree: IoU of the boxes, scores, and pixels of the masks relative to their
# area. One pixel may always differ.
MIN_SCORE = 0.05
MIN_IOU = 0.999
SCORE_TOLERANCE = 1e-3
MASK_TOLERANCE = 0.01

# Batch size, height and width.
Shape = tuple[int, int, int]


def shapes_to_check(
    size: tuple[int, int],
    dynamic: bool,
    min_size: tuple[int, int] = (MIN_DYNAMIC_SIZE, MIN_DYNAMIC_SIZE),
    max_batch: int | None = None,
) -> list[Shape]:
    """Return the shapes at which to compare: the exported shape and, with `dynamic`, four others.

    The others include sizes that are not multiples of the stride.
    """
    (height, width), (low, left) = size, min_size
    if not dynamic:
        return [(1, height, width)]
    shapes = [
        (1, height, width),
        (1, height + 32, width + 64),
        (3, _other_side(height // 2 + 5, height, low), width),
        (2, height + 13, _other_side(width // 2 + 7, width, left)),
        (1, _other_side(low, height, low), _other_side(left, width, left)),
    ]
    return [(min(batch, max_batch or batch), *sides) for batch, *sides in shapes]  # type: ignore[misc]


def _other_side(side: int, different_from: int, minimum: int) -> int:
    """Return `side` or the smallest allowed value, changed if it equals `different_from`."""
    allowed = max(side, minimum)
    return allowed if allowed != different_from else different_from + 21


def check_outputs(network: nn.Module, run: InferenceFn, shapes: Sequence[Shape], channels: int) -> float:
    """Compare the outputs of a file with the network's and return the largest relative difference.

    Raises a :class:`UserError` if a difference exceeds the tolerance.
    """
    worst = 0.0
    for batch, height, width in shapes:
        generator = torch.Generator().manual_seed(height * width)
        image = torch.randn(batch, channels, height, width, generator=generator)
        with torch.no_grad():
            expected = network.reference(image) if isinstance(network, ExportNetwork) else network(image)
            difference = relative_difference(run(image), expected)
        # Not `difference > TOLERANCE`, which is false for NaN.
        if not difference <= TOLERANCE:
            raise UserError(
                f'outputs of the exported file differ from the model by {difference:.1e} for a batch of '
                f'{batch} at {height}×{width}, allowed are {TOLERANCE:.0e}: nothing was written'
            )
        worst = max(worst, difference)
    return worst


def relative_difference(outputs: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return the largest difference relative to the largest expected value of its output, or to 1."""
    if [out.shape for out in outputs] != [out.shape for out in expected]:
        return float('inf')
    differences = [
        (out - reference).abs().max() / reference.abs().max().clamp(min=1)
        for out, reference in zip(outputs, expected, strict=True)
    ]
    # Unlike Python's max, this propagates NaN.
    return float(torch.stack(differences).max())


@dataclass
class Agreement:
    """Agreement of an exported detector with mmdet: compared boxes, and the worst values among them."""

    boxes: int = 0
    iou: float = 1.0
    score: float = 0.0
    mask: float = 0.0


def check_detections(network: DetectionNetwork, run: InferenceFn, shapes: Sequence[Shape]) -> Agreement:
    """Compare the detections of a file with those of mmdet's ``predict`` on scenes of digits.

    Raises a :class:`UserError` if they differ.
    """
    agreement, mask_threshold = Agreement(), float(network.test_cfg.get('mask_thr_binary', 0.5))
    for batch, height, width in shapes:
        image = digit_images(network, batch, height, width)
        with torch.no_grad():
            expected = network.predict(image)
        outputs = run(image)
        for index, instances in enumerate(expected):
            single = [out[index] for out in outputs]
            try:
                compare_detections(single, instances, agreement, mask_threshold)
            except ValueError as error:
                raise UserError(
                    f'the exported file differs from the model for a batch of {batch} at {height}×{width}: '
                    f'{error}: nothing was written'
                ) from error
    return agreement


def digit_images(network: DetectionNetwork, batch: int, height: int, width: int) -> Tensor:
    """Return images (batch, 3, height, width) of many digits on photographs, as the input of a network."""
    options, sources = DigitScenesOptions(), load_sources(0)
    side = options.scene_size * max(1, round(min(height, width) / options.scene_size / 2))
    rows, columns = -(-height // side), -(-width // side)
    images = []
    for image in range(batch):
        tiles = [
            render_scene(sources, options, 'val', image * rows * columns + tile).image
            for tile in range(rows * columns)
        ]
        tiles = [np.asarray(cv2.resize(tile, (side, side))) for tile in tiles]
        grid = [np.concatenate(tiles[row * columns :][:columns], axis=1) for row in range(rows)]
        images.append(np.concatenate(grid)[:height, :width])
    pixels = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float()
    preprocessor: Any = network.module.data_preprocessor
    if getattr(preprocessor, '_channel_conversion', False):
        pixels = pixels.flip(1)
    if network.mean is None and getattr(preprocessor, '_enable_normalize', False):
        pixels = (pixels - preprocessor.mean.cpu()) / preprocessor.std.cpu()
    return pixels.contiguous()


def compare_detections(
    outputs: Sequence[Tensor], expected: Any, agreement: Agreement, mask_threshold: float = 0.5
) -> None:
    """Match the detections of one image with mmdet's, and update `agreement`.

    Raises a ValueError if a box has no counterpart. Boxes whose score is next to :data:`MIN_SCORE`, or to the
    lowest score if there are as many boxes as the file can return, may be missing.

    Args:
        outputs: Boxes (N, 4), scores (N,), labels (N,) and optionally masks (N, h, w) of the file.
        expected: mmdet's ``InstanceData``.
        agreement: Changed in place.
        mask_threshold: Probability from which a pixel belongs to a mask.
    """
    boxes, scores, labels = (out[outputs[2] >= 0] for out in outputs[:3])
    limit = MIN_SCORE
    if len(scores) == len(outputs[1]):
        limit = max(limit, float(scores.min()))
    candidates = (scores >= MIN_SCORE).nonzero().squeeze(1).tolist()
    for row in range(len(expected.scores)):
        box, score, label = expected.bboxes[row], float(expected.scores[row]), int(expected.labels[row])
        if score < MIN_SCORE:
            continue
        best, best_iou = None, MIN_IOU
        for candidate in candidates:
            if int(labels[candidate]) == label and abs(float(scores[candidate]) - score) <= SCORE_TOLERANCE:
                iou = _box_iou(boxes[candidate], box)
                if iou >= best_iou:
                    best, best_iou = candidate, iou
        if best is not None:
            candidates.remove(best)
            agreement.boxes += 1
            agreement.iou = min(agreement.iou, best_iou)
            agreement.score = max(agreement.score, abs(float(scores[best]) - score))
            if len(outputs) > 3:
                mask = outputs[3][outputs[2] >= 0][best]
                difference = _mask_difference(mask, boxes[best], expected.masks[row], mask_threshold)
                agreement.mask = max(agreement.mask, difference)
        elif score > limit + SCORE_TOLERANCE:
            raise ValueError(f'the box {_format(box)} of class {label} with score {score:.4f} is missing')
    for candidate in candidates:
        if float(scores[candidate]) > limit + SCORE_TOLERANCE:
            raise ValueError(
                f'the box {_format(boxes[candidate])} of class {int(labels[candidate])} with score '
                f'{float(scores[candidate]):.4f} is additional'
            )


def _format(box: Tensor) -> str:
    return '(' + ', '.join(f'{side:.2f}' for side in box.tolist()) + ')'


def _box_iou(box: Tensor, other: Tensor) -> float:
    """Return the IoU of two boxes; 1 if they are the same up to a thousandth of a pixel."""
    if float((box - other).abs().max()) <= 1e-3:
        return 1.0
    sides = torch.minimum(box[2:], other[2:]) - torch.maximum(box[:2], other[:2])
    common = float(sides.clamp(min=0).prod())
    areas = float((box[2:] - box[:2]).prod() + (other[2:] - other[:2]).prod())
    return common / max(areas - common, 1e-9)


def _mask_difference(mask: Tensor, box: Tensor, expected: Tensor, threshold: float) -> float:
    """Return the number of different pixels, except one, relative to the area. Raises if it is too large."""
    if mask.dtype != torch.bool:
        mask = paste_masks(mask[None], box[None], (expected.shape[0], expected.shape[1]))[0] >= threshold
    different, area = int((mask != expected).sum()), int(expected.sum())
    difference = max(different - 1, 0) / max(area, 1)
    if difference > MASK_TOLERANCE:
        raise ValueError(f'{different} pixels of the mask in {_format(box)} with {area} pixels are different')
    return difference


def check_test_size(cfg: Config, model: BaseModel, fixed_size: tuple[int, int] | None) -> None:
    """Raise before the export if the file would not accept the first test image.

    Args:
        cfg: Config with the test data.
        model: The toolbox's model, whose preprocessor may pad images.
        fixed_size: Height and width of the file's input; None for dynamic shapes.
    """
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        dataset = DATASETS.build(copy.deepcopy(cfg.test_dataloader.dataset))
    data = model.data_preprocessor(pseudo_collate([dataset[0]]), False)
    if cfg.default_scope == 'mmdet':
        # The file pads images itself.
        _check_size(data['data_samples'][0].img_shape, fixed_size)
    else:
        _check_size(data['inputs'].shape[-2:], fixed_size)


def evaluate(
    cfg: Config,
    model: BaseModel,
    run: InferenceFn | None = None,
    fixed_size: tuple[int, int] | None = None,
    images: Sequence[int] | None = None,
) -> dict[str, float]:
    """Evaluate a model on the test data of its config.

    Args:
        cfg: Config with the test data and evaluators.
        model: The toolbox's model, with weights.
        run: Replaces the network of the model by an exported file; called with normalised images.
        fixed_size: Height and width of the file's input, one image at a time; None for dynamic shapes.
        images: Indices of the test images to use; None for all.
    """
    model = copy.deepcopy(model)
    if run is not None:
        _replace_network(cfg, model, run, fixed_size)
    with tempfile.TemporaryDirectory() as folder:
        cfg = copy.deepcopy(cfg)
        cfg.update(work_dir=folder, launcher='none', log_level='ERROR', load_from=None, resume=False)
        # MMEngine reuses visualizers of the same name, which has a time in seconds only: make it unique.
        cfg.experiment_name = Path(folder).name
        if cfg.get('visualizer') is not None:
            cfg.visualizer.vis_backends = []
        if images is not None:
            cfg.test_dataloader.dataset.indices = list(images)
        runner = build_runner(cfg)
        if images is not None:
            _evaluate_only_loaded_images(runner)
        runner.model = model.to(next(runner.model.parameters()).device)
        metrics = runner.test()
    # Those of mmseg are numpy.float32, which is no float.
    return {name: float(value) for name, value in metrics.items() if isinstance(value, Real)}


def choose_test_images(cfg: Config, count: int | None) -> list[int] | None:
    """Return the indices of `count` random test images, in order; None for all of them."""
    if count is None:
        return None
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        dataset = DATASETS.build(copy.deepcopy(cfg.test_dataloader.dataset))
    if count >= len(dataset):
        return None
    if not isinstance(dataset, BaseDataset):
        raise UserError(
            f'--eval-images {count}: the test data is a {type(dataset).__name__}, which has no subsets: '
            'use --evaluate, for all images'
        )
    chosen = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0))[:count]
    return sorted(chosen.tolist())


def _evaluate_only_loaded_images(runner: Runner) -> None:
    """Restrict COCO's metrics to the images of the data set: others would count as images without boxes."""
    dataset = runner.test_loop.dataloader.dataset
    for metric in runner.test_evaluator.metrics:
        if hasattr(metric, 'img_ids'):
            metric.img_ids = [dataset.get_data_info(i)['img_id'] for i in range(len(dataset))]


def _replace_network(
    cfg: Config, model: BaseModel, run: InferenceFn, fixed_size: tuple[int, int] | None
) -> None:
    """Compute the logits or detections with an exported file; the toolbox's model prepares the images."""

    def compute_logits(images: Tensor, *_: Any) -> Tensor:
        _check_size(images.shape[-2:], fixed_size)
        # A file with fixed shapes has a batch size of 1.
        batches = [images] if fixed_size is None else images.split(1)
        return torch.cat([run(batch.cpu())[0] for batch in batches]).to(images.device)

    def detect(images: Tensor, samples: Sequence[Any], **_: Any) -> Sequence[Any]:
        for image, sample in zip(images, samples, strict=True):
            height, width = sample.img_shape[:2]
            _check_size((height, width), fixed_size)
            outputs = [out[0] for out in run(image[None, :, :height, :width].cpu().contiguous())]
            found = dict(zip(('boxes', 'scores', 'labels', 'masks'), outputs, strict=False))
            threshold = model.roi_head.test_cfg.mask_thr_binary if 'masks' in found else 0.5
            sample.pred_instances = to_instances(found, sample, (height, width), threshold)
        return samples

    if cfg.default_scope == 'mmpretrain':
        model.extract_feat = compute_logits
        model.head.forward = lambda logits: logits
    elif cfg.default_scope == 'mmdet':
        model.predict = detect
    else:
        # With sliding windows or without: they are part of the file.
        model.inference = compute_logits


def _check_size(size: Sequence[int], fixed_size: tuple[int, int] | None) -> None:
    height, width = size[:2]
    if fixed_size is None and min(height, width) < MIN_DYNAMIC_SIZE:
        raise UserError(
            f'with --dynamic, the file accepts images of at least {MIN_DYNAMIC_SIZE} pixels per side, but '
            f'the test images have {height}×{width}: export without --dynamic, or do not evaluate (with '
            '--int8: --eval-images 0)'
        )
    if fixed_size is not None and (height, width) != fixed_size:
        raise UserError(
            f'the file accepts images of {fixed_size[0]}×{fixed_size[1]}, but the test images have '
            f'{height}×{width}: export with --dynamic, or with that --size'
        )
