"""The backbones as OpenMMLab modules: ``init_cfg``, frozen stages, autocast, and a name in the registry."""

import logging
from typing import Any

import torch
from mmengine.logging import MessageHub, print_log
from mmengine.model import BaseModule, PretrainedInit
from mmengine.registry import WEIGHT_INITIALIZERS
from torch import Tensor, nn

from inline import models
from inline.checkpoints import (
    CONVERTED_KEY,
    LoadReport,
    check_num_heads,
    load_partial_state_dict,
    read_checkpoint,
    select_submodule,
)
from inline.registry import MODELS
from inline.utils.arguments import check_choice, check_names, check_type, checked, format_value, parameters_of
from inline.utils.errors import UserError

_INITIALIZERS = sorted(WEIGHT_INITIALIZERS.module_dict)
# Key of the message hub of a run with one line for each checkpoint that it has loaded.
LOAD_REPORTS = 'load_reports'
AUTOCAST_DTYPES = {'bfloat16': torch.bfloat16, 'float16': torch.float16}


class MMBackboneMixin(BaseModule):
    """Mixin that turns a plain backbone, the next base class, into an MMEngine module.

    Args:
        frozen_stages: Number of stages (of a DeiT: blocks) that are frozen, counted from the input; 0 freezes
            the patch embedding only, -1 nothing. Frozen modules have no gradient and stay in evaluation mode.
        autocast: 'bfloat16' or 'float16' to run the backbone in that precision while training and return
            float32 features. ``--amp`` sets it on a CPU and in detectors, whose operators do not all support
            bfloat16.
        init_cfg: As in MMEngine, for example ``dict(type='Pretrained', checkpoint=…, prefix='backbone.')``.
        **backbone_options: Arguments of the plain backbone.
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
        # The constructor of BaseModule passes no arguments to the next class: skip it and set its attributes
        # below.
        super(BaseModule, self).__init__(**backbone_options)
        self._is_init = False
        self.init_cfg = init_cfg
        self.autocast = autocast
        self.frozen_stages = frozen_stages
        deepest = len(self.stage_modules()) - 1
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
        """Initialise as in ``init_cfg``; pretrained weights are loaded last."""
        configs = [self.init_cfg] if isinstance(self.init_cfg, dict) else list(self.init_cfg or ())
        was_initialized = self._is_init
        self.init_cfg = [config for config in configs if config['type'] != 'Pretrained']
        super().init_weights()
        self.init_cfg = configs
        for config in configs:
            if config['type'] == 'Pretrained' and not was_initialized:
                load_pretrained(self, config['checkpoint'], config.get('prefix') or 'backbone.')

    def train(self, mode: bool = True) -> 'MMBackboneMixin':
        super().train(mode)
        for module in self._frozen():
            module.eval()
        return self

    def _frozen(self) -> list[nn.Module]:
        return [module for stage in self.stage_modules()[: self.frozen_stages + 1] for module in stage]


def load_pretrained(backbone: nn.Module, source: str, prefix: str = 'backbone.') -> LoadReport:
    """Load the weights of a checkpoint that match a backbone, and log the report.

    Args:
        backbone: Must have the architecture of the checkpoint; attention and position tables may differ.
        source: As in :func:`inline.checkpoints.read_checkpoint`; also weights of a plain DeiT, ViT, PVT, Swin
            or CSwin of other projects, which are converted.
        prefix: The backbone's name in the model of the checkpoint. A file of a backbone alone has none.
    """
    checkpoint = read_checkpoint(source, convert_softmax_models=True)
    note = check_num_heads(backbone, checkpoint.meta, source)
    is_converted = CONVERTED_KEY in checkpoint.meta
    state_dict = select_submodule(checkpoint.state_dict, 'backbone.' if is_converted else prefix)
    report = load_partial_state_dict(backbone, state_dict, source)
    layers = f'; {report.describe_layers()}' if is_converted and not report.exact else ''
    log_load_report(f'pretrained weights {source!r}: {report.describe()}{layers}{note}', report.complete)
    return report


def log_load_report(line: str, is_expected: bool) -> None:
    """Log a line about loaded weights, as a warning if it is not as expected, and keep it for summaries."""
    # Not with `update_info`, which would list the key in checkpoints.
    infos = MessageHub.get_current_instance().runtime_info
    infos[LOAD_REPORTS] = [*infos.get(LOAD_REPORTS, []), line]
    print_log(line, logger='current', level=logging.INFO if is_expected else logging.WARNING)


def _check_init(config: dict[str, Any]) -> None:
    """Raise a :class:`UserError` for an unknown initializer, or for pretrained weights without a path."""
    if 'type' not in config:
        raise UserError(
            f'init_cfg {format_value(config)} lacks type: choose one of {", ".join(_INITIALIZERS)}'
        )
    check_choice('unknown init_cfg type', config['type'], _INITIALIZERS)
    if config['type'] == 'Pretrained':
        check_names(config, ('type', *parameters_of(PretrainedInit)), 'key', 'init_cfg')
        check_type('init_cfg.checkpoint', config.get('checkpoint'), str)
        check_type('init_cfg.prefix', config.get('prefix'), str | None)


@MODELS.register_module()
class InLineDeiT(MMBackboneMixin, models.InLineDeiT):
    """:class:`inline.models.InLineDeiT` as an OpenMMLab module."""


@MODELS.register_module()
class InLinePVT(MMBackboneMixin, models.InLinePVT):
    """:class:`inline.models.InLinePVT` as an OpenMMLab module."""


@MODELS.register_module()
class InLineSwin(MMBackboneMixin, models.InLineSwin):
    """:class:`inline.models.InLineSwin` as an OpenMMLab module."""


@MODELS.register_module()
class InLineCSwin(MMBackboneMixin, models.InLineCSwin):
    """:class:`inline.models.InLineCSwin` as an OpenMMLab module."""
