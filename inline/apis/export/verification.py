"""Verification of an exported file: comparison of its outputs and its accuracy with the model's."""

import copy
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, DefaultScope
from torch import Tensor, nn

from inline.apis.export.formats import MIN_DYNAMIC_SIZE, InferenceFn
from inline.engine.launch import build_runner
from inline.utils.errors import UserError

# Relative to the largest output, or to 1 if outputs are smaller.
TOLERANCE = 1e-4

# Batch size, height and width.
Shape = tuple[int, int, int]


def shapes_to_check(size: tuple[int, int], dynamic: bool) -> list[Shape]:
    """Return the shapes at which to compare: the exported shape and, with `dynamic`, four others.

    The others include sizes that are not multiples of the stride.
    """
    height, width = size
    if not dynamic:
        return [(1, height, width)]
    return [
        (1, height, width),
        (1, height + 32, width + 64),
        (3, _other_side(height // 2 + 5, height), width),
        (2, height + 13, _other_side(width // 2 + 7, width)),
        (1, _other_side(MIN_DYNAMIC_SIZE, height), _other_side(MIN_DYNAMIC_SIZE, width)),
    ]


def _other_side(side: int, different_from: int) -> int:
    """Return `side` or the smallest allowed value, changed if it equals `different_from`."""
    allowed = max(side, MIN_DYNAMIC_SIZE)
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
            difference = relative_difference(run(image), network(image))
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


def check_test_size(cfg: Config, model: BaseModel, fixed_size: tuple[int, int] | None) -> None:
    """Raise before the export if the file would not accept the first test image.

    Args:
        cfg: Config with the test data.
        model: The toolbox's model, whose preprocessor may pad images.
        fixed_size: Height and width of the file's input; None for dynamic shapes.
    """
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        dataset = DATASETS.build(copy.deepcopy(cfg.test_dataloader.dataset))
    _check_size(model.data_preprocessor(pseudo_collate([dataset[0]]), False)['inputs'], fixed_size)


def evaluate(
    cfg: Config,
    model: BaseModel,
    run: InferenceFn | None = None,
    fixed_size: tuple[int, int] | None = None,
) -> dict[str, float]:
    """Evaluate a model on the test data of its config.

    Args:
        cfg: Config with the test data and evaluators.
        model: The toolbox's model, with weights.
        run: Replaces the network of the model by an exported file.
        fixed_size: Height and width of the file's input, one image at a time; None for dynamic shapes.
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
        runner = build_runner(cfg)
        runner.model = model.to(next(runner.model.parameters()).device)
        metrics = runner.test()
    return {name: float(value) for name, value in metrics.items() if isinstance(value, int | float)}


def _replace_network(
    cfg: Config, model: BaseModel, run: InferenceFn, fixed_size: tuple[int, int] | None
) -> None:
    """Compute the logits with an exported file; the toolbox's model does pre- and postprocessing."""

    def compute_logits(images: Tensor, *_: Any) -> Tensor:
        _check_size(images, fixed_size)
        # A file with fixed shapes has a batch size of 1.
        batches = [images] if fixed_size is None else images.split(1)
        return torch.cat([run(batch.cpu())[0] for batch in batches]).to(images.device)

    if cfg.default_scope == 'mmpretrain':
        model.extract_feat = compute_logits
        model.head.forward = lambda logits: logits
    else:
        model.encode_decode = compute_logits


def _check_size(images: Tensor, fixed_size: tuple[int, int] | None) -> None:
    height, width = images.shape[-2:]
    if fixed_size is None and min(height, width) < MIN_DYNAMIC_SIZE:
        raise UserError(
            f'--evaluate with --dynamic: the file accepts images of at least {MIN_DYNAMIC_SIZE} pixels per '
            f'side, but the test images have {height}×{width}: evaluate without --dynamic'
        )
    if fixed_size is not None and (height, width) != fixed_size:
        raise UserError(
            f'the file accepts images of {fixed_size[0]}×{fixed_size[1]}, but the test images have '
            f'{height}×{width}: export with --dynamic, or with that --size'
        )
