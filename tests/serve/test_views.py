"""Where a clicked point is in the image that a model sees, whatever the test pipeline does with it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.dataset import Compose
from mmengine.registry import DefaultScope
from numpy.typing import NDArray

from inline.errors import UserError
from inline.serve.views import View, make_view

Size = tuple[int, int]


def view_of(scope: str, steps: Sequence[dict[str, Any]], image: NDArray[np.uint8]) -> View:
    import mmpretrain.datasets  # noqa: F401 (registers its transforms)

    with DefaultScope.overwrite_default_scope(scope):
        pipeline = Compose(list(steps))

    def prepare(array: NDArray[np.uint8]) -> Mapping[str, Any]:
        shape = array.shape[:2]
        done = pipeline({'img': array, 'img_shape': shape, 'ori_shape': shape})['img']
        return {'inputs': torch.from_numpy(np.ascontiguousarray(done)).permute(2, 0, 1)}

    return make_view(prepare, image)


def photo(height: int, width: int) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3)).astype(np.uint8)


# What each does to an image of 200 rows and 300 columns: pixels of a side before the cut, and first kept.
FIT = {'type': 'Resize', 'scale': (90, 90), 'keep_ratio': True}
EDGE = {'type': 'ResizeEdge', 'scale': 100, 'edge': 'short', 'backend': 'pillow', 'interpolation': 'bicubic'}
PIPELINES: dict[str, tuple[str, list[dict[str, Any]], Size, Size, Size]] = {
    'as it is': ('mmpretrain', [], (200, 300), (0, 0), (200, 300)),
    'squeezed': ('mmpretrain', [{'type': 'Resize', 'scale': (48, 40)}], (40, 48), (0, 0), (40, 48)),
    'enlarged': ('mmpretrain', [{'type': 'Resize', 'scale': (448, 448)}], (448, 448), (0, 0), (448, 448)),
    'ratio kept': ('mmdet', [FIT], (60, 90), (0, 0), (60, 90)),
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
def test_a_point_is_found_where_the_pipeline_put_it(name: str) -> None:
    scope, steps, before, first, size = PIPELINES[name]
    view = view_of(scope, steps, photo(200, 300))
    assert view.size == size
    for y in np.linspace(0.002, 0.998, 41):
        for x in np.linspace(0.002, 0.998, 41):
            row, column = y * before[0] - first[0], x * before[1] - first[1]
            found = view.find(x, y)
            # Of points less than a pixel beyond a cut both may be said.
            if not (-1 < row < size[0] + 1 and -1 < column < size[1] + 1):
                assert found is None
            elif 0 <= row < size[0] and 0 <= column < size[1]:
                assert found is not None
                assert abs(found[0] + 0.5 - row) < 1
                assert abs(found[1] + 0.5 - column) < 1


def test_the_view_is_what_the_pipeline_gives_in_rgb() -> None:
    image = photo(40, 60)
    view = view_of('mmpretrain', [], image)
    assert (view.shown == image[..., ::-1]).all()
    assert (view.batch['inputs'][0].permute(1, 2, 0).numpy() == image).all()


def test_a_side_without_pixels_is_told() -> None:
    with pytest.raises(UserError, match='leaves 1 pixels of a side: too few to click on'):
        view_of('mmpretrain', [{'type': 'Resize', 'scale': (1, 64)}], photo(200, 300))
