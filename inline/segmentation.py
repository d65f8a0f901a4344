"""Segmentation whose loss does not depend on how a batch is spread over processes.

With class weights mmseg divides the loss by the weights of the pixels in each process by itself, with
``avg_non_ignore`` by their number; a process with few labelled pixels then counts for as much as one with
many. A config that wants one process and many to train alike writes
``loss_decode=dict(type='inline.segmentation.CrossEntropyLoss')``.
"""

import torch
from mmengine.dist import all_reduce
from mmseg.models.losses import CrossEntropyLoss as MMSegCrossEntropyLoss
from torch import Tensor


class CrossEntropyLoss(MMSegCrossEntropyLoss):
    """mmseg's cross entropy, divided by the mean weight of a process's pixels over all processes.

    Pixels without a label are left out of the average with class weights or ``avg_non_ignore``, as in mmseg.
    """

    def forward(
        self, cls_score: Tensor, label: Tensor, weight: Tensor | None = None, ignore_index: int = -100
    ) -> Tensor:
        """cls_score (B, classes, H, W), label (B, H, W), weight of the pixels (B, H, W) to a number."""
        # Of the other kinds mmseg takes the mean over all pixels, which any spread of a batch leaves alone.
        total = None if self.use_sigmoid or self.use_mask else self._weight_of(label, ignore_index)
        return super().forward(cls_score, label, weight, avg_factor=total, ignore_index=ignore_index)

    def _weight_of(self, label: Tensor, ignore_index: int) -> Tensor:
        """The weights of all pixels of `label`, as a mean over processes."""
        counted = label[label != ignore_index] if self.class_weight or self.avg_non_ignore else label
        if self.class_weight:
            total = torch.tensor(self.class_weight, device=label.device)[counted].sum()
        else:
            total = torch.tensor(float(counted.numel()), device=label.device)
        all_reduce(total, op='mean')
        return total
