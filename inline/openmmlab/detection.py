"""RetinaNet with a loss that does not depend on the number of processes.

mmdet normalises the loss of each process by its own number of positive anchors, so an image with few objects
has more weight if it is alone on a rank. The COCO recipes keep that. A config that must train the
same with any number of processes uses ``bbox_head=dict(type='inline.RetinaHead')``, as the digits configs do.
"""

from typing import Any

import torch
from mmdet.models.dense_heads import RetinaHead as MMDetRetinaHead
from mmengine.dist import all_reduce

from inline.registry import MODELS


@MODELS.register_module()
class RetinaHead(MMDetRetinaHead):
    """mmdet's head with a loss normalised by the mean number of positive anchors over all ranks."""

    def get_targets(
        self, anchor_list: list[list[torch.Tensor]], *args: Any, **kwargs: Any
    ) -> tuple[Any, ...]:
        """Return mmdet's targets, with the number of positive anchors averaged over all ranks."""
        labels, label_weights, boxes, box_weights, num_positive, *others = super().get_targets(
            anchor_list, *args, **kwargs
        )
        mean_positive = torch.tensor(float(num_positive), device=anchor_list[0][0].device)
        all_reduce(mean_positive, op='mean')
        return labels, label_weights, boxes, box_weights, mean_positive, *others
