"""An exported file measured with the test data and evaluators of its config."""

import copy
import tempfile
from typing import Any

import torch
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, DefaultScope
from torch import Tensor

from inline.engine.config import check_paths
from inline.engine.launch import build_runner
from inline.errors import UserError
from inline.export.formats import MIN_OPEN_SIZE, Run


def check_can_evaluate(cfg: Config) -> None:
    if cfg.get('test_dataloader') is None or cfg.get('test_evaluator') is None:
        raise UserError('--evaluate needs test_dataloader and test_evaluator in the config')
    check_paths(cfg, ('test_dataloader',))


def check_test_size(cfg: Config, model: BaseModel, size: tuple[int, int] | None) -> None:
    """Refuse test data that the file will not take, by its first image, before the file is made.

    Args:
        cfg: With the test data.
        model: Whose preprocessor may pad images.
        size: Height and width that the file is for; None for any.
    """
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        dataset = DATASETS.build(copy.deepcopy(cfg.test_dataloader.dataset))
    _check_size(model.data_preprocessor(pseudo_collate([dataset[0]]), False)['inputs'], size)


def evaluate(
    cfg: Config, model: BaseModel, run: Run | None = None, size: tuple[int, int] | None = None
) -> dict[str, float]:
    """The metrics of a toolbox's model, its network replaced by an exported one if `run` is given.

    Args:
        cfg: With the test data and evaluators.
        model: Which has the weights.
        run: The exported network of normalised images.
        size: Height and width that it is bound to, an image at a time; None for any batch and size.
    """
    model = copy.deepcopy(model)
    if run is not None:
        _replace_network(cfg, model, _checked(run, size))
    with tempfile.TemporaryDirectory() as folder:
        cfg = copy.deepcopy(cfg)
        cfg.update(work_dir=folder, launcher='none', log_level='ERROR', load_from=None, resume=False)
        if cfg.get('visualizer') is not None:
            cfg.visualizer.vis_backends = []
        runner = build_runner(cfg)
        runner.model = model.to(next(runner.model.parameters()).device)
        metrics = runner.test()
    return {name: float(value) for name, value in metrics.items() if isinstance(value, int | float)}


def _replace_network(cfg: Config, model: BaseModel, run: Run) -> None:
    """Let the toolbox's model do what comes before and after the network, and the file the rest."""

    def logits_of(image: Tensor, *_: Any) -> Tensor:
        return run(image.cpu())[0].to(image.device)

    if cfg.default_scope == 'mmpretrain':
        model.extract_feat = logits_of
        model.head.forward = lambda logits: logits
    else:
        model.encode_decode = logits_of


def _checked(run: Run, size: tuple[int, int] | None) -> Run:
    """What refuses images that the file does not take, and gives it one at a time if it is for one size."""

    def run_each(images: Tensor) -> list[Tensor]:
        _check_size(images, size)
        if size is None:
            return run(images)
        return [torch.cat(outs) for outs in zip(*(run(image[None]) for image in images), strict=True)]

    return run_each


def _check_size(images: Tensor, size: tuple[int, int] | None) -> None:
    height, width = images.shape[-2:]
    if size is None and min(height, width) < MIN_OPEN_SIZE:
        raise UserError(
            f'--evaluate with --dynamic: the file takes images from {MIN_OPEN_SIZE} pixels a side, the test '
            f'data has {height}×{width}: evaluate without --dynamic'
        )
    if size is not None and (height, width) != size:
        raise UserError(
            f'the file is for images of {size[0]}×{size[1]}, the test data has {height}×{width}: '
            'export with --dynamic, or with that --size'
        )
