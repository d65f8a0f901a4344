"""Dataset of images and label maps from a list of pairs; label maps may store values other than classes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.dataset import BaseDataset

from inline.registry import DATASETS
from inline.utils.errors import UserError


@DATASETS.register_module()
class ImagePairs(BaseDataset):
    """Images and label maps for semantic segmentation.

    Args:
        ann_file: A text file with an image, a tab and its label map per line, relative to `data_root`.
        label_values: Pairs of a stored value and its class index, 255 for ignored pixels. Other values are an
            error. None if label maps store class indices. A color is stored as ``0xRRGGBB``.
        color_coded: Whether the color of a pixel is its class.
        **others: Arguments of MMEngine's ``BaseDataset``.
    """

    def __init__(
        self,
        ann_file: str = '',
        label_values: Sequence[Sequence[int]] | None = None,
        color_coded: bool = False,
        **others: Any,
    ) -> None:
        # Sorted, because LoadLabelMap searches in it.
        self.label_values = (
            None if label_values is None else np.array(sorted(map(list, label_values)), np.int64)
        )
        self.color_coded = color_coded
        super().__init__(ann_file=ann_file, **others)

    def load_data_list(self) -> list[dict[str, Any]]:
        root = Path(self.data_root or '')
        samples: list[dict[str, Any]] = []
        for number, line in enumerate(Path(self.ann_file).read_text().splitlines(), start=1):
            names = line.split('\t')
            if len(names) != 2:
                raise UserError(
                    f'{self.ann_file!r}, line {number}: {line!r} must be an image, a tab and a label map'
                )
            samples.append(
                {
                    'img_path': str(root / names[0]),
                    'seg_map_path': str(root / names[1]),
                    'label_map': None,
                    'reduce_zero_label': False,
                    'seg_fields': [],
                }
            )
        return samples

    def get_data_info(self, idx: int) -> dict[str, Any]:
        # Not in the list of samples, which would repeat the table for every image.
        return {
            **super().get_data_info(idx),
            'label_values': self.label_values,
            'color_coded': self.color_coded,
        }
