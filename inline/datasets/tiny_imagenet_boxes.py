"""Tiny-ImageNet for detection: the box of the object in every image."""

from typing import Any

from inline.datasets.tiny_imagenet import SIDE, read_classes, read_split
from inline.openmmlab.patches import apply_patches
from inline.registry import DATASETS

# A spawned worker imports this module first, to unpickle the dataset, before any patches are applied.
apply_patches()

from mmdet.datasets import BaseDetDataset  # noqa: E402


@DATASETS.register_module()
class TinyImageNetBoxes(BaseDetDataset):
    """Tiny-ImageNet for detection, with COCO's metric: set ``ann_file=None`` in ``CocoMetric``.

    Args:
        data_root: The folder ``tiny-imagenet-200``, or the zip next to it or in its place.
        split: ``'train'`` (100,000 images) or ``'val'`` (10,000).
    """

    def __init__(self, data_root: str, split: str, **kwargs: Any) -> None:
        self.split = split
        classes = tuple(read_classes(data_root).values())
        super().__init__(ann_file='', data_root=data_root, metainfo={'classes': classes}, **kwargs)

    def load_data_list(self) -> list[dict[str, Any]]:
        return [
            {
                'img_path': sample.path,
                'img_id': index,
                'height': SIDE,
                'width': SIDE,
                'instances': [{'bbox': list(sample.box), 'bbox_label': sample.label, 'ignore_flag': 0}],
            }
            for index, sample in enumerate(read_split(self.data_root, self.split))
        ]
