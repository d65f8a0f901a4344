"""Layer-wise learning rate decay for any model with one of our backbones."""

from collections.abc import Callable
from typing import Any

from mmpretrain.engine.optimizers import LearningRateDecayOptimWrapperConstructor
from torch import nn

from inline.engine.config import check_paramwise
from inline.registry import OPTIM_WRAPPER_CONSTRUCTORS

LayerDepth = Callable[[str], tuple[int, int]]


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class LayerDecayConstructor(LearningRateDecayOptimWrapperConstructor):
    """mmpretrain's constructor, which supports classifiers only, for detectors and segmentors as well.

    Necks and heads have the full learning rate. The last norm of the backbone, and each block before it, have
    ``paramwise_cfg.layer_decay_rate`` times the learning rate of the layer that follows.
    """

    def _validate_cfg(self) -> None:
        check_paramwise(self.paramwise_cfg)
        super()._validate_cfg()

    def add_params(
        self,
        params: list[dict[str, Any]],
        module: nn.Module,
        prefix: str = '',
        get_layer_depth: LayerDepth | None = None,
        **kwargs: Any,
    ) -> None:
        if get_layer_depth is None:
            get_layer_depth = _layer_depth_of(module)
        super().add_params(params, module, prefix=prefix, get_layer_depth=get_layer_depth, **kwargs)


def _layer_depth_of(model: Any) -> LayerDepth:
    """Return a function from a parameter name to its layer and the number of layers.

    Of a distiller, the layers of its student.
    """
    prefix = 'student.backbone.' if hasattr(model, 'student') else 'backbone.'
    backbone = model.get_submodule(prefix.removesuffix('.'))
    _, count = backbone.get_layer_depth('norm')

    def depth(name: str) -> tuple[int, int]:
        if not name.startswith(prefix):
            return count, count + 1
        return backbone.get_layer_depth(name, prefix)[0], count + 1

    return depth
