"""Exported files as models: ONNX Runtime and OpenVINO behind the interface of the toolboxes' models."""

import hashlib
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from mmengine.config import Config, ConfigDict
from mmengine.registry import MODELS, DefaultScope
from mmengine.structures import BaseDataElement, InstanceData
from torch import Tensor, nn

from inline.apis.export import openvino_ir
from inline.apis.export.formats import FORMATS, InferenceFn, load_exported
from inline.apis.export.portable import RUNTIMES
from inline.apis.inputs import ImageSource, InferencePipeline
from inline.checkpoints import Checkpoint
from inline.utils.arguments import check_choice
from inline.utils.errors import TooSmallError, UserError
from inline.utils.extras import require_extras

# Precisions of each runtime.
PRECISIONS = {'torch': ('fp32', 'bf16'), 'onnx': ('fp32', 'int8'), 'openvino': ('fp32', 'bf16', 'int8')}


def check_runtime(runtime: str, precision: str) -> None:
    """Raise a :class:`UserError` for an unknown runtime or a precision that it does not have."""
    check_choice('runtime', runtime, PRECISIONS)
    check_choice('precision', precision, ('fp32', 'bf16', 'int8'))
    if precision not in PRECISIONS[runtime]:
        allowed = ', '.join(f'{name} ({", ".join(PRECISIONS[name])})' for name in PRECISIONS)
        raise UserError(f'runtime {runtime!r} has no precision {precision!r}: choose from {allowed}')
    if runtime != 'torch':
        require_extras(f'runtime {runtime!r}', 'export')
    if runtime == 'openvino' and precision == 'bf16' and not openvino_ir.has_bf16():
        raise UserError("precision 'bf16': this CPU has no instructions for bfloat16, use 'fp32' or 'int8'")


def choose_runtime(
    path: Path, metadata: Mapping[str, Any], runtime: str | None, precision: str | None
) -> tuple[str, str]:
    """Return runtime and precision of an exported file; raise if other ones are asked for than it has."""
    found = RUNTIMES[path.suffix]
    if runtime not in (None, found):
        raise UserError(f'runtime {runtime!r}: {str(path)!r} is a file for {found!r}')
    is_int8 = str(metadata.get('weights', '')).startswith('int8')
    if precision is not None:
        check_runtime(found, precision)
        if (precision == 'int8') != is_int8:
            has = 'int8' if is_int8 else 'float32'
            raise UserError(f'precision {precision!r}: {str(path)!r} has {has} weights')
    stored = str(metadata.get('precision', 'fp32'))
    chosen = precision or ('int8' if is_int8 else stored)
    check_choice('precision', chosen, PRECISIONS[found])
    return found, chosen


def use_bfloat16(backbone: nn.Module) -> None:
    """Let a backbone compute in bfloat16 and return float32: heads have operators without bfloat16."""
    forward = backbone.forward

    def run(x: Tensor) -> tuple[Tensor, ...]:
        with torch.autocast(x.device.type, torch.bfloat16):
            outs = forward(x)
        return tuple(out.float() for out in outs)

    backbone.forward = run


class ExportedModel:
    """An exported file with the interface of the toolbox's model that inference uses.

    Args:
        run: Runs the file on images (B, C, H, W).
        metadata: The metadata of the file.
        cfg: Config with the preprocessor of the images.

    Attributes:
        data_preprocessor: The toolbox's preprocessor: padding, order of the channels, normalisation.
    """

    def __init__(self, run: InferenceFn, metadata: Mapping[str, Any], cfg: Config) -> None:
        self._run = run
        self._task: str = metadata['task']
        self._input: Mapping[str, Any] = metadata['input']
        self._outputs: Sequence[str] = metadata['outputs']
        post: Mapping[str, Any] = metadata['postprocessing']
        self._post = post
        preprocessor = dict(cfg.model.get('data_preprocessor') or cfg.get('data_preprocessor') or {})
        # The statistics of the file are those of its weights.
        preprocessor.update(mean=self._input['mean'], std=self._input['std'])
        if self._input['values'] == '0 to 255' and self._input['mean'] is not None:
            # The file normalises the images. The toolbox pads after that, so that the borders are the same
            # only if its normalisation is undone.
            mean, std = (torch.tensor(self._input[name]).view(-1, 1, 1) for name in ('mean', 'std'))
            self._run = lambda images: run(images * std + mean)
        if self._task == 'detection':
            # The file pads the images: it must know their size to clip boxes.
            preprocessor['pad_size_divisor'] = 1
        preprocessor.setdefault('type', 'ClsDataPreprocessor')
        with DefaultScope.overwrite_default_scope(cfg.default_scope):
            self.data_preprocessor = MODELS.build(preprocessor)
        if self._task == 'classification' and post.get('scores') != 'softmax':
            raise UserError('the classifier in this file has scores that are not a softmax of its logits')
        if self._task == 'segmentation':
            self.align_corners = bool(post.get('align_corners'))
            self.test_cfg = ConfigDict(self._sliding_window(metadata))
            self.decode_head = SimpleNamespace(threshold=post.get('threshold'))
            self.out_channels = 1 if post.get('threshold') is not None else len(metadata['classes'])

    def _sliding_window(self, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return mmseg's ``test_cfg`` if windows slide outside of the file: not if the file slides them.

        A file that takes exactly one window has nothing to slide.
        """
        test_cfg = self._post.get('test_cfg') or {}
        crop = [self._input['height'], self._input['width']]
        return {} if 'windows' in metadata and crop != list(test_cfg.get('crop_size', ())) else test_cfg

    def test_step(self, batch: dict[str, Any]) -> list[BaseDataElement]:
        """Return the data samples of a batch with the predictions of a classifier or a detector."""
        prepared = self.data_preprocessor(batch, False)
        images, samples = prepared['inputs'], prepared['data_samples']
        outputs = self._compute(images)
        if self._task == 'classification':
            return [
                sample.set_pred_score(score).set_pred_label(score.argmax(dim=0, keepdim=True))
                for sample, score in zip(samples, F.softmax(outputs['logits'], dim=1), strict=True)
            ]
        for index, sample in enumerate(samples):
            found = {name: tensor[index] for name, tensor in outputs.items()}
            sample.pred_instances = to_instances(
                found,
                sample,
                (images.shape[-2], images.shape[-1]),
                float(self._post.get('mask_threshold', 0.5)),
            )
        return list(samples)

    def encode_decode(self, images: Tensor, _: Sequence[Mapping[str, Any]]) -> Tensor:
        """Return the logits (B, classes, H, W) of a segmentor at the size of the images."""
        return self._compute(images)['logits']

    def inference(self, images: Tensor, metas: list[dict[str, Any]]) -> Tensor:
        """Return the logits of a segmentor that is tested with a sliding window."""
        from mmseg.models import EncoderDecoder

        logits: Tensor = EncoderDecoder.slide_inference(self, images, metas)
        return logits

    def _compute(self, images: Tensor) -> dict[str, Tensor]:
        """Run the file, one image at a time if it takes only one."""
        self._check_size(images)
        batches = [images] if self._input['batch'] == 'any' else images.split(1)
        results = [self._run(batch.float()) for batch in batches]
        outputs = (torch.cat(parts) if len(parts) > 1 else parts[0] for parts in zip(*results, strict=True))
        return dict(zip(self._outputs, outputs, strict=True))

    def _check_size(self, images: Tensor) -> None:
        height, width = images.shape[-2:]
        wanted = self._input['height'], self._input['width']
        if isinstance(wanted[0], int):
            if (height, width) != wanted:
                raise UserError(
                    f'the file takes images of {wanted[0]}×{wanted[1]} pixels, and this image has '
                    f'{height}×{width} after the test pipeline: export with --dynamic, or with that --size'
                )
        elif height < wanted[0]['from'] or width < wanted[1]['from']:
            smallest = f'{wanted[0]["from"]}×{wanted[1]["from"]}'
            raise TooSmallError(f'{height}×{width} pixels, the file takes at least {smallest}')


def to_instances(
    found: Mapping[str, Tensor], sample: BaseDataElement, size: tuple[int, int], threshold: float
) -> InstanceData:
    """Return the objects of an image in pixels of the original image.

    Args:
        found: ``boxes`` (N, 4) in pixels of the input, ``scores`` (N,), ``labels`` (N,), and perhaps
            ``masks``: probabilities (N, m, m) within the boxes, or (N, H, W) at the size of the input.
            Objects without a positive score are padding.
        sample: Data sample with ``scale_factor``, ``img_shape`` and ``ori_shape``.
        size: Height and width of the input.
        threshold: Probability from which a pixel belongs to a mask.
    """
    kept = (found['scores'] > 0) & (found['labels'] >= 0)
    boxes, scores, labels = (found[name][kept] for name in ('boxes', 'scores', 'labels'))
    scale = boxes.new_tensor(sample.get('scale_factor', (1.0, 1.0))).repeat(2)
    boxes = boxes / scale
    instances = InstanceData(bboxes=boxes, scores=scores, labels=labels.long())
    if 'masks' in found:
        height, width = (int(side) for side in sample.ori_shape[:2])
        masks = found['masks'][kept].float().reshape(len(boxes), *found['masks'].shape[-2:])
        if masks.shape[-2:] == size:
            full = F.interpolate(masks[:, None], (height, width), mode='bilinear', align_corners=False)[:, 0]
            instances.masks = full >= threshold
        else:
            instances.masks = _paste(masks, boxes, (height, width), threshold)
    return instances


def _paste(masks: Tensor, boxes: Tensor, size: tuple[int, int], threshold: float) -> Tensor:
    """Return masks (N, H, W) of an image from masks (N, m, m) within boxes, as mmdet computes them."""
    from mmdet.models.roi_heads.mask_heads.fcn_mask_head import _do_paste_mask

    pasted = torch.zeros(len(masks), *size, dtype=torch.bool)
    for index in range(len(masks)):
        chunk, spatial = _do_paste_mask(
            masks[index : index + 1, None], boxes[index : index + 1], *size, skip_empty=True
        )
        pasted[(slice(index, index + 1), *spatial)] = chunk >= threshold
    return pasted


def load_exported_model(
    path: Path, metadata: Mapping[str, Any], cfg: Config, precision: str
) -> ExportedModel:
    """Load a file; for an int8 file, the other operators compute in the precision that the file states."""
    hint = str(metadata.get('precision', 'fp32')) if precision == 'int8' else precision
    if hint == 'bf16' and not openvino_ir.has_bf16():
        hint = 'fp32'
    return ExportedModel(load_exported(RUNTIMES[path.suffix], path, hint), metadata, cfg)


@contextmanager
def exported_model(
    cfg: Config, checkpoint: Checkpoint | None, runtime: str, precision: str
) -> Iterator[Path]:
    """Export a config's model for a runtime and yield the file.

    The file is kept in torch's cache folder and used again for the same weights, config and versions. That of
    a model without a checkpoint, whose weights are random, is temporary.
    """
    name = f'model{FORMATS[runtime].suffix}'
    if checkpoint is None:
        with tempfile.TemporaryDirectory(prefix='inline-export-') as folder:
            _export(cfg, None, runtime, precision, Path(folder, name))
            yield Path(folder, name)
        return
    out = Path(torch.hub.get_dir(), 'inline-exports', _digest(cfg, checkpoint, runtime, precision), name)
    # Written last.
    if not Path(f'{out}.json').is_file():
        _export(cfg, checkpoint, runtime, precision, out)
    yield out


def _export(cfg: Config, checkpoint: Checkpoint | None, runtime: str, precision: str, out: Path) -> None:
    from inline.apis.export.run import ExportOptions, export

    size = fixed_size(cfg)
    # What is not quantised computes in bfloat16 where the CPU can.
    in_bf16 = runtime == 'openvino' and precision != 'fp32' and openvino_ir.has_bf16()
    options = ExportOptions(
        name=Path(cfg.filename or 'model').stem,
        checkpoint=checkpoint,
        format=runtime,
        dynamic=size is None,
        size=size,
        precision='bf16' if in_bf16 else 'fp32',
        int8=precision == 'int8',
        out=out,
        measure=False,
    )
    for line in export(cfg, options):
        print(f'export for {runtime}, {precision}: {line}', file=sys.stderr, flush=True)


def fixed_size(cfg: Config) -> tuple[int, int] | None:
    """Return height and width of all images after the test pipeline; None if they depend on the image."""
    pipeline = InferencePipeline(cfg)
    shapes = {
        tuple(pipeline(ImageSource('probe', array=np.zeros((*side, 3), np.uint8)))['inputs'].shape[-2:])
        for side in ((480, 640), (640, 480), (700, 500))
    }
    (shape, *others) = shapes
    preprocessor = cfg.model.get('data_preprocessor') or {}
    # Files of detectors pad the images themselves.
    divisor = 1 if cfg.default_scope == 'mmdet' else preprocessor.get('pad_size_divisor') or 1
    if others or preprocessor.get('test_cfg') or any(side % divisor for side in shape):
        return None
    return shape[0], shape[1]


def _digest(cfg: Config, checkpoint: Checkpoint, runtime: str, precision: str) -> str:
    """Return a digest of what an exported file depends on, including the source of this package."""
    digest = hashlib.sha256()
    packages = ('torch', 'onnx', 'onnxscript', 'onnxruntime', 'openvino', 'nncf')
    settings = [
        runtime,
        precision,
        *(version(package) for package in packages),
        dict(checkpoint.dataset_meta),
    ]
    digest.update(json.dumps([settings, cfg._cfg_dict.to_dict()], default=repr, sort_keys=True).encode())
    for name, weight in sorted(checkpoint.state_dict.items()):
        digest.update(f'{name} {weight.dtype} {tuple(weight.shape)}'.encode())
        digest.update(weight.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    root = Path(__file__).resolve().parents[1]
    for path in sorted(root.rglob('*.py')):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:24]
