"""The methods that timm's models have, so that code written for timm can use ours."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from inline.checkpoints.official import Backbone
from inline.checkpoints.pretrained_cfg import PretrainedCfg, parse_pretrained_cfg
from inline.hub.features import (
    FeatureInfo,
    Indices,
    Intermediates,
    LinearHead,
    format_intermediates,
    take_indices,
)
from inline.models import InLineDeiT
from inline.models.layers import ClassToken, PositionEmbedding, RelativePositionBias
from inline.utils.arguments import check_choice, check_range
from inline.utils.errors import UserError

MAX_CLASSES = 2**20


class TimmInterface(nn.Module):
    """A backbone with an optional linear classifier, and timm's methods around them.

    Attributes:
        backbone: Returns feature maps, or class tokens.
        head: The classifier; None if there is none.
        features_only: Whether the model returns feature maps.
        global_pool: 'avg', 'token' or ''.
        num_classes: Classes of the head, 0 without one.
        num_features, head_hidden_size: Channels of the pooled vector.
        feature_info: Channels and reductions of the stages (DeiT: blocks).
    """

    backbone: Backbone
    head: LinearHead | None
    features_only: bool
    global_pool: str
    num_classes: int
    num_features: int
    head_hidden_size: int
    feature_info: FeatureInfo
    _pretrained_cfg: PretrainedCfg

    @property
    def pretrained_cfg(self) -> dict[str, Any]:
        """Mean, std, image size, crop and classes of the weights, with timm's keys.

        ``num_classes`` and ``classes`` are those of the classifier, or of the weights if there is none.
        """
        cfg = self._pretrained_cfg
        if self.num_classes and self.num_classes != cfg.num_classes:
            cfg = replace(cfg, num_classes=self.num_classes, classes=())
        stem = 'patch_embed' if isinstance(self.backbone, InLineDeiT) else 'stages.0.downsample'
        return {**vars(cfg), 'first_conv': f'backbone.{stem}.proj', 'classifier': 'head.fc'}

    @property
    def default_cfg(self) -> dict[str, Any]:
        """The older name of ``pretrained_cfg`` in timm."""
        return self.pretrained_cfg

    def update_pretrained_cfg(self, values: Mapping[str, Any]) -> None:
        """Change mean, std, image size, crop or classes, such as the class names after fine-tuning."""
        cfg = vars(self._pretrained_cfg)
        if 'classes' in values:
            cfg = {**cfg, 'num_classes': self.num_classes or len(values['classes'])}
        self._pretrained_cfg = parse_pretrained_cfg({**cfg, **values}, 'the model')

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Images (B, C_in, H, W) → tuple of maps (B, C, h, w), vector (B, C), or logits (B, classes)."""
        if self.features_only:
            return self.backbone(x)
        return self.forward_head(self.forward_features(x))

    def forward_features(self, x: Tensor) -> Tensor:
        """Images → the last map (B, C, h, w), or class token and patches (B, 1 + h·w, C) of a DeiT."""
        return self.backbone.forward_features(x)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Result of :meth:`forward_features` → logits (B, classes); the pooled vector with `pre_logits`."""
        if self.global_pool == 'token':
            x = x[:, 0]
        elif self.global_pool == 'avg':
            x = x[:, 1:].mean(dim=1) if isinstance(self.backbone, InLineDeiT) else x.mean(dim=(2, 3))
        return x if pre_logits or self.head is None else self.head(x)

    def forward_intermediates(
        self,
        x: Tensor,
        indices: Indices = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = 'NCHW',
        intermediates_only: bool = False,
    ) -> Intermediates | tuple[Tensor, Intermediates]:
        """Return the features of several stages (DeiT: blocks), as in timm.

        Args:
            x: Images (B, C_in, H, W).
            indices: Levels, negative ones from the end; the number of last levels; or None for all.
            return_prefix_tokens: Return pairs of features and class token (B, 1, C), for a DeiT.
            norm: Apply the output norms, where the model has them.
            stop_early: Do not compute what follows the last of `indices`.
            output_fmt: 'NCHW' for maps, 'NLC' for tokens.
            intermediates_only: Return the list alone, else the result of :meth:`forward_features` (with
                `stop_early`: the last features that were computed) and the list.
        """
        taken = take_indices(indices, len(self._levels()))
        final, found = self.backbone.forward_intermediates(x, taken, norm, stop_early)
        by_level = dict(zip(sorted(set(taken)), found, strict=True))
        features = format_intermediates([by_level[i] for i in taken], output_fmt, return_prefix_tokens)
        return features if intermediates_only else (final, features)

    def prune_intermediate_layers(
        self, indices: Indices = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Delete all layers after the last of `indices`, including the head; return the indices from 0."""
        taken = take_indices(indices, len(self._levels()))
        last = max(taken)
        self.backbone.prune(last, prune_norm)
        kept = [i for i in self.feature_info.out_indices if i <= last]
        self.feature_info = FeatureInfo(self.feature_info.info[: last + 1], kept)
        self.num_features = self.head_hidden_size = self.backbone.dims[last]
        if prune_head:
            self.reset_classifier(0, '')
        elif self.head is not None and self.head.fc.in_features != self.num_features:
            self.reset_classifier(self.num_classes)
        return taken

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the classifier by a new one, or remove it for 0 classes; None keeps the pooling."""
        pools = ('avg', 'token', '') if isinstance(self.backbone, InLineDeiT) else ('avg', '')
        if global_pool is not None:
            check_choice('global_pool', global_pool, pools)
            self.global_pool = global_pool
        check_range('num_classes', num_classes, 0, MAX_CLASSES)
        if num_classes and not self.global_pool:
            raise UserError(f"num_classes {num_classes}: must be 0 with global_pool '', which does not pool")
        self.num_classes = num_classes
        self.head = LinearHead(self.num_features, num_classes) if num_classes else None
        parameter = next(self.backbone.parameters())
        if self.head is not None:
            self.head.to(parameter.device, parameter.dtype)

    def get_classifier(self) -> nn.Module:
        """Return the linear layer of the classifier; an identity if there is none."""
        return nn.Identity() if self.head is None else self.head.fc

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute blocks in the backward pass, which saves memory."""
        self.backbone.with_cp = enable

    def no_weight_decay(self) -> set[str]:
        """Return the names of the class token and the position tables."""
        tables = (ClassToken, PositionEmbedding, RelativePositionBias)
        return {
            f'{name}.{parameter}'
            for name, module in self.named_modules()
            if isinstance(module, tables)
            for parameter, _ in module.named_parameters(recurse=False)
        }

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Return timm's patterns for groups of parameters: the stem, then stages if coarse, else blocks."""
        if isinstance(self.backbone, InLineDeiT):
            stem = r'^backbone\.(?:patch_embed|class_token|position)'
            return {
                'stem': stem,
                'blocks': [(r'^backbone\.blocks\.(\d+)', None), (r'^backbone\.norm', (99999,))],
            }
        stem = r'^backbone\.stages\.0\.(?:downsample|position)'
        if coarse:
            return {'stem': stem, 'blocks': r'^backbone\.stages\.(\d+)'}
        return {
            'stem': stem,
            'blocks': [
                # A stage's downsampling belongs to its first block.
                (r'^backbone\.stages\.(\d+)\.(?:downsample|position)', (0,)),
                (r'^backbone\.stages\.(\d+)\.blocks\.(\d+)', None),
                (r'^backbone\.out_norms', (99999,)),
            ],
        }

    def _levels(self) -> nn.ModuleList:
        """Return the stages, or the blocks of a DeiT, that are built."""
        return self.backbone.blocks if isinstance(self.backbone, InLineDeiT) else self.backbone.stages

    def _describe_level(self, level: int) -> dict[str, Any]:
        if isinstance(self.backbone, InLineDeiT):
            reduction, module = int(self.backbone.patch_embed.stride), f'backbone.blocks.{level}'
        else:
            reduction, module = 4 * 2**level, f'backbone.stages.{level}'
        return {'num_chs': self.backbone.dims[level], 'reduction': reduction, 'module': module}
