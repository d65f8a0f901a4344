"""Detection whose loss does not depend on how a batch is spread over processes.

mmdet divides RetinaNet's loss by the positive anchors of each process by itself, so that an image with few
objects counts for more if it is alone. The recipes for COCO keep that; a config that wants one process and
many to train alike, as those for digits do, writes ``bbox_head=dict(type='inline.detection.RetinaHead')``.
"""

from typing import Any

import torch
from mmdet.models.dense_heads import RetinaHead as MMDetRetinaHead
from mmengine.dist import all_reduce


class RetinaHead(MMDetRetinaHead):
    """mmdet's head, its loss divided by the mean count of positive anchors over all processes."""

    def get_targets(
        self, anchor_list: list[list[torch.Tensor]], *args: Any, **kwargs: Any
    ) -> tuple[Any, ...]:
        """mmdet's arguments and targets, the count of positive anchors among them."""
        labels, label_weights, boxes, box_weights, count, *others = super().get_targets(
            anchor_list, *args, **kwargs
        )
        total = torch.tensor(float(count), device=anchor_list[0][0].device)
        all_reduce(total, op='mean')
        return labels, label_weights, boxes, box_weights, total, *others
