"""Segmentation with a loss that does not depend on the number of processes.

mmseg normalises the loss of each process by the weights of its own pixels if there are class weights, and by
their number with ``avg_non_ignore``. A rank with few labelled pixels then has the same weight as one with
many. A config that must train the same with any number of processes uses
``loss_decode=dict(type='inline.CrossEntropyLoss')``.
"""

import torch
from mmengine.dist import all_reduce
from mmseg.models.losses import CrossEntropyLoss as MMSegCrossEntropyLoss
from torch import Tensor

from inline.registry import MODELS


@MODELS.register_module()
class CrossEntropyLoss(MMSegCrossEntropyLoss):
    """mmseg's cross entropy, normalised by the total pixel weight per rank, averaged over all ranks.

    Ignored pixels do not count with class weights or ``avg_non_ignore``, as in mmseg.
    """

    def forward(
        self, cls_score: Tensor, label: Tensor, weight: Tensor | None = None, ignore_index: int = -100
    ) -> Tensor:
        """Return the loss.

        Args:
            cls_score: Logits, (B, classes, H, W).
            label: Class indices, (B, H, W).
            weight: Weight of each pixel, (B, H, W).
            ignore_index: Label of pixels without a class.
        """
        # Only a mean is normalised, and mmseg averages binary and mask losses over all pixels, regardless of
        # the ranks.
        is_normalized = self.reduction == 'mean' and not (self.use_sigmoid or self.use_mask)
        avg_factor = self._mean_weight(label, ignore_index) if is_normalized else None
        return super().forward(cls_score, label, weight, avg_factor=avg_factor, ignore_index=ignore_index)

    def _mean_weight(self, label: Tensor, ignore_index: int) -> Tensor:
        """Return the total weight of the pixels of `label`, averaged over ranks."""
        counted = label[label != ignore_index] if self.class_weight or self.avg_non_ignore else label
        if self.class_weight:
            total = torch.tensor(self.class_weight, device=label.device)[counted].sum()
        else:
            total = torch.tensor(float(counted.numel()), device=label.device)
        all_reduce(total, op='mean')
        return total
