"""The thin layer that gives the plain backbones OpenMMLab's habits: ``init_cfg``, frozen stages,
reduced precision by an argument, and a name in the registry."""

from typing import Any

import torch
from mmengine.model import BaseModule, PretrainedInit
from mmengine.registry import WEIGHT_INITIALIZERS
from torch import Tensor, nn

from inline import models
from inline.arguments import check_choice, check_names, check_type, checked, parameters_of, told
from inline.engine.pretrained import load_pretrained
from inline.errors import UserError
from inline.registry import MODELS

_INITIALIZERS = sorted(WEIGHT_INITIALIZERS.module_dict)
AUTOCAST_DTYPES = {'bfloat16': torch.bfloat16, 'float16': torch.float16}


class ToolboxBackbone(BaseModule):
    """Mixed in before a plain backbone; what it does not know it hands on to that backbone.

    Args:
        frozen_stages: How much is kept as it is, counted from the input: -1 nothing, 0 what reads the
            image, k also the first k stages (of a DeiT: blocks). Frozen parts take no gradient and stay in
            evaluation mode.
        autocast: 'bfloat16' or 'float16' to run the backbone alone in that precision while training and
            return float32 features. On a CPU this is what ``--amp`` sets, because some operators of the
            detectors have no half precision there.
        init_cfg: MMEngine's, for example ``dict(type='Pretrained', checkpoint=…, prefix='backbone.')``.
    """

    @checked
    def __init__(
        self,
        *,
        frozen_stages: int = -1,
        autocast: str | None = None,
        init_cfg: dict[str, Any] | list[dict[str, Any]] | None = None,
        **backbone_options: Any,
    ) -> None:
        if autocast is not None:
            check_choice('autocast', autocast, AUTOCAST_DTYPES, ', or None')
        for config in [init_cfg] if isinstance(init_cfg, dict) else init_cfg or ():
            _check_init(config)
        # BaseModule's constructor goes on to the plain backbone's through the method resolution order
        # only without arguments, so the two are called one by one.
        super(BaseModule, self).__init__(**backbone_options)
        self._is_init = False
        self.init_cfg = init_cfg
        self.autocast = autocast
        self.frozen_stages = frozen_stages
        deepest = len(self.parts()) - 1
        if not -1 <= frozen_stages <= deepest:
            raise UserError(f'frozen_stages {frozen_stages}: must be from -1 (none) to {deepest} (all)')
        for module in self._frozen():
            module.requires_grad_(False)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        if self.autocast is None or not self.training:
            return super().forward(x)
        with torch.autocast(x.device.type, AUTOCAST_DTYPES[self.autocast]):
            outs = super().forward(x)
        return tuple(out.float() for out in outs)

    def init_weights(self) -> None:
        """As ``init_cfg`` says; pretrained weights last, and only those of the same architecture."""
        configs = [self.init_cfg] if isinstance(self.init_cfg, dict) else list(self.init_cfg or ())
        begun_before = self._is_init
        self.init_cfg = [config for config in configs if config['type'] != 'Pretrained']
        super().init_weights()
        self.init_cfg = configs
        for config in configs:
            if config['type'] == 'Pretrained' and not begun_before:
                load_pretrained(self, config['checkpoint'], config.get('prefix') or '')

    def train(self, mode: bool = True) -> 'ToolboxBackbone':
        super().train(mode)
        for module in self._frozen():
            module.eval()
        return self

    def _frozen(self) -> list[nn.Module]:
        return [module for part in self.parts()[: self.frozen_stages + 1] for module in part]


def _check_init(config: dict[str, Any]) -> None:
    """Refuse a way to begin that MMEngine does not know, or pretrained weights that are not named."""
    if 'type' not in config:
        raise UserError(f'init_cfg {told(config)} lacks type: choose one of {", ".join(_INITIALIZERS)}')
    check_choice('unknown init_cfg type', config['type'], _INITIALIZERS)
    if config['type'] == 'Pretrained':
        check_names(config, ('type', *parameters_of(PretrainedInit)), 'key', 'init_cfg')
        check_type('init_cfg.checkpoint', config.get('checkpoint'), str)
        check_type('init_cfg.prefix', config.get('prefix'), str | None)


@MODELS.register_module()
class InLineDeiT(ToolboxBackbone, models.InLineDeiT):
    """:class:`inline.models.InLineDeiT` for the toolboxes."""


@MODELS.register_module()
class InLinePVT(ToolboxBackbone, models.InLinePVT):
    """:class:`inline.models.InLinePVT` for the toolboxes."""


@MODELS.register_module()
class InLineSwin(ToolboxBackbone, models.InLineSwin):
    """:class:`inline.models.InLineSwin` for the toolboxes."""


@MODELS.register_module()
class InLineCSwin(ToolboxBackbone, models.InLineCSwin):
    """:class:`inline.models.InLineCSwin` for the toolboxes."""
