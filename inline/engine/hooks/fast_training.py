"""Faster training of small networks: images that grow during training, and a compiled backbone."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
import torch.nn.functional as F
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import nn

from inline.engine.hooks.nonfinite import unwrap_model
from inline.registry import HOOKS
from inline.utils.errors import UserError


@HOOKS.register_module()
class ProgressiveResizeHook(Hook):
    """Train on small images first: the batches are resized to a side that grows in steps.

    Validation and testing keep the images of their pipelines.

    Args:
        sizes: Pairs (fraction of the training, side in pixels), in order. The first fraction is 0.
    """

    def __init__(self, sizes: Sequence[tuple[float, int]]) -> None:
        fractions = [fraction for fraction, _ in sizes]
        if not sizes or fractions[0] != 0 or fractions != sorted(fractions) or fractions[-1] >= 1:
            raise UserError(
                f'sizes={list(sizes)!r}: the fractions must start at 0, increase and stay below 1'
            )
        self.sizes = sizes

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:  # noqa: ARG002 (MMEngine's signature)
        fraction = runner.iter / runner.max_iters
        side = next(side for start, side in reversed(self.sizes) if start <= fraction)
        shapes = {tuple(image.shape) for image in data_batch['inputs']}
        if len(shapes) != 1:
            raise UserError(f'ProgressiveResizeHook needs images of one shape, not {sorted(shapes)}')
        images = torch.stack(tuple(data_batch['inputs']))
        if images.shape[-2:] != (side, side):
            # Antialiasing of uint8 images is exact to rounding and fast on a CPU.
            images = F.interpolate(images, (side, side), mode='bilinear', antialias=True)
        data_batch['inputs'] = images


@HOOKS.register_module()
class CompileBackboneHook(Hook):
    """Compile the backbone for training with ``torch.compile``; validate in eager mode.

    Compiling takes a minute or two. With ``dynamic=False`` every new shape of a batch compiles again; use a
    batch size that divides the dataset, or drop the last batch. With ``dynamic=True`` one program serves all
    image sizes and batches; None starts with the shape of the first batch and adds such a program for the
    second shape.

    Args:
        options: Arguments of ``torch.compile``.
    """

    def __init__(self, **options: Any) -> None:
        self.options = {'dynamic': False, 'fullgraph': True, **options}
        self._settings = ExitStack()

    def before_train(self, runner: Runner) -> None:
        if self.options['dynamic'] is not False:
            import torch.fx.experimental._config as shape_config

            # Otherwise sizes that are equal in the first batch, such as height and width, are one size.
            setting = shape_config.patch(use_duck_shape=False)  # type: ignore[attr-defined]
            self._settings.enter_context(setting)
        find_backbone(runner.model).compile(**self.options)
        runner.logger.info('The backbone is compiled in the first step, which can take minutes.')

    def after_train(self, runner: Runner) -> None:  # noqa: ARG002 (MMEngine's signature)
        self._settings.close()

    def before_val(self, runner: Runner) -> None:  # noqa: ARG002
        torch.compiler.set_stance('force_eager')

    def after_val(self, runner: Runner) -> None:  # noqa: ARG002
        torch.compiler.set_stance('default')


def find_backbone(model: Any) -> nn.Module:
    """Return the backbone of a model of any toolbox, or of the student of a distiller."""
    model = unwrap_model(model)
    model = getattr(model, 'student', model)
    if not hasattr(model, 'backbone'):
        raise UserError(f'{type(model).__name__} has no backbone to compile')
    return model.backbone
