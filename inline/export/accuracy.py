"""An exported file measured with the test data and evaluators of its config."""

import copy
import tempfile
from typing import Any

import torch
from mmengine.config import Config
from mmengine.model import BaseModel
from torch import Tensor

from inline.engine.config import check_paths
from inline.engine.launch import build_runner
from inline.errors import UserError
from inline.export.formats import Run


def check_can_evaluate(cfg: Config) -> None:
    if cfg.get('test_dataloader') is None or cfg.get('test_evaluator') is None:
        raise UserError('--evaluate needs test_dataloader and test_evaluator in the config')
    check_paths(cfg, ('test_dataloader',))


def evaluate(cfg: Config, model: BaseModel, run: Run | None = None, size: Any = None) -> dict[str, float]:
    """The metrics of a toolbox's model, its network replaced by an exported one if `run` is given.

    Args:
        cfg: With the test data and evaluators.
        model: Which has the weights.
        run: The exported network of normalised images.
        size: Height and width that it is bound to, an image at a time; None for any batch and size.
    """
    model = copy.deepcopy(model)
    if run is not None:
        _replace_network(cfg, model, run if size is None else _one_by_one(run, size))
    with tempfile.TemporaryDirectory() as folder:
        cfg = copy.deepcopy(cfg)
        cfg.update(work_dir=folder, launcher='none', log_level='ERROR', load_from=None, resume=False)
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


def _one_by_one(run: Run, size: tuple[int, int]) -> Run:
    def run_each(images: Tensor) -> list[Tensor]:
        if tuple(images.shape[-2:]) != size:
            raise UserError(
                f'the file is for images of {size[0]}×{size[1]}, the test data has {images.shape[-2]}×'
                f'{images.shape[-1]}: export with --dynamic, or with that --size'
            )
        return [torch.cat(outs) for outs in zip(*(run(image[None]) for image in images), strict=True)]

    return run_each
