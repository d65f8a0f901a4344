"""Layer-wise decay of the learning rate for any model with one of our backbones."""

from collections.abc import Callable
from typing import Any

from mmpretrain.engine.optimizers import LearningRateDecayOptimWrapperConstructor
from torch import nn

from inline.engine.check_config import check_paramwise
from inline.registry import OPTIM_WRAPPER_CONSTRUCTORS

LayerDepth = Callable[[str], tuple[int, int]]


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class LayerDecayConstructor(LearningRateDecayOptimWrapperConstructor):
    """mmpretrain's constructor, which knows classifiers only, for detectors and segmentors too.

    Necks and heads learn at the full rate, the backbone's last norm and each block before it at
    ``paramwise_cfg.layer_decay_rate`` times the rate of what follows.
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
            get_layer_depth = _depth_within(module)
        super().add_params(params, module, prefix=prefix, get_layer_depth=get_layer_depth, **kwargs)


def _depth_within(model: Any) -> LayerDepth:
    _, count = model.backbone.get_layer_depth('norm')

    def depth(name: str) -> tuple[int, int]:
        if not name.startswith('backbone.'):
            return count, count + 1
        return model.backbone.get_layer_depth(name, 'backbone.')[0], count + 1

    return depth
