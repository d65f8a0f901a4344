"""The position of a clicked point in the model's input, after resizing, cropping and padding."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.dataset import Compose
from mmengine.registry import DefaultScope
from numpy.typing import NDArray

from inline.apis.serve.attention_views import ModelInput, prepare_input
from inline.utils.errors import UserError

Size = tuple[int, int]


def apply(scope: str, steps: Sequence[dict[str, Any]], image: NDArray[np.uint8]) -> ModelInput:
    import mmpretrain.datasets  # noqa: F401 (registers its transforms)

    with DefaultScope.overwrite_default_scope(scope):
        transforms = Compose(list(steps))

    def pipeline(array: NDArray[np.uint8]) -> Mapping[str, Any]:
        shape = array.shape[:2]
        done = transforms({'img': array, 'img_shape': shape, 'ori_shape': shape})['img']
        return {'inputs': torch.from_numpy(np.ascontiguousarray(done)).permute(2, 0, 1)}

    return prepare_input(pipeline, image)


def photo(height: int, width: int) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3)).astype(np.uint8)


# Applied to an image of 200×300: scope, steps, size before cropping, first pixel kept, final size.
FIT = {'type': 'Resize', 'scale': (90, 90), 'keep_ratio': True}
EDGE = {'type': 'ResizeEdge', 'scale': 100, 'edge': 'short', 'backend': 'pillow', 'interpolation': 'bicubic'}
PIPELINES: dict[str, tuple[str, list[dict[str, Any]], Size, Size, Size]] = {
    'unchanged': ('mmpretrain', [], (200, 300), (0, 0), (200, 300)),
    'resized': ('mmpretrain', [{'type': 'Resize', 'scale': (48, 40)}], (40, 48), (0, 0), (40, 48)),
    'enlarged': ('mmpretrain', [{'type': 'Resize', 'scale': (448, 448)}], (448, 448), (0, 0), (448, 448)),
    'aspect ratio kept': ('mmdet', [FIT], (60, 90), (0, 0), (60, 90)),
    'padded': ('mmdet', [FIT, {'type': 'Pad', 'size_divisor': 32}], (60, 90), (0, 0), (64, 96)),
    'cropped': (
        'mmpretrain',
        [EDGE, {'type': 'CenterCrop', 'crop_size': 64}],
        (100, 150),
        (18, 43),
        (64, 64),
    ),
}


@pytest.mark.parametrize('name', PIPELINES)
def test_points_are_found_after_the_pipeline(name: str) -> None:
    scope, steps, before, first, size = PIPELINES[name]
    model_input = apply(scope, steps, photo(200, 300))
    assert model_input.size == size
    for y in np.linspace(0.002, 0.998, 41):
        for x in np.linspace(0.002, 0.998, 41):
            row, column = y * before[0] - first[0], x * before[1] - first[1]
            found = model_input.find_pixel(x, y)
            # Points less than a pixel outside may be found or not.
            if not (-1 < row < size[0] + 1 and -1 < column < size[1] + 1):
                assert found is None
            elif 0 <= row < size[0] and 0 <= column < size[1]:
                assert found is not None
                assert abs(found[0] + 0.5 - row) < 1
                assert abs(found[1] + 0.5 - column) < 1


def test_displayed_image_is_the_pipeline_output_in_rgb() -> None:
    image = photo(40, 60)
    model_input = apply('mmpretrain', [], image)
    assert (model_input.image == image[..., ::-1]).all()
    assert (model_input.batch['inputs'][0].permute(1, 2, 0).numpy() == image).all()


def test_too_small_input_raises() -> None:
    with pytest.raises(UserError, match='resizes a side to 1 pixels: too few to click on'):
        apply('mmpretrain', [{'type': 'Resize', 'scale': (1, 64)}], photo(200, 300))
