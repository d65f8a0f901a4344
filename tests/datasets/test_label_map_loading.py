"""Invalid label maps raise an error with file and reason; unusual ones are loaded in a defined way."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from inline.datasets.loading import LoadLabelMap
from inline.utils.errors import BadDataError, UnreadableError, UserError
from tests.datasets.invalid_data import RANDOM, Case, encode

LABELS = RANDOM.integers(0, 4, (6, 9), dtype=np.uint8)
LABELS[1, 2] = 255


def png(array: np.ndarray) -> bytes:
    return encode(Image.fromarray(array), 'PNG')


def with_value(value: int, dtype: type = np.uint8) -> np.ndarray:
    labels = LABELS.astype(dtype)
    labels[3, 5] = value
    return labels


def with_palette() -> bytes:
    image = Image.fromarray(LABELS)
    image.putpalette([200, 10, 10] * 256)
    return encode(image, 'PNG')


BAD = {
    'a label that is not a class': Case(
        'error', 'has label 4 at x=5, y=3: must be 0 to 3, or 255 (ignored)', lambda: png(with_value(4))
    ),
    'a 16-bit label map with a label that is not a class': Case(
        'error',
        'has label 300 at x=5, y=3: must be 0 to 3, or 255 (ignored)',
        lambda: png(with_value(300, np.uint16)),
    ),
    'a label map of fractional numbers': Case(
        'error',
        'has label 0.5 at x=5, y=3: must be 0 to 3',
        lambda: encode(Image.fromarray(with_value(0.5, np.float32)), 'TIFF'),
    ),
    'a label map of colors instead of labels': Case(
        'error',
        'has 3 channels: must have one, with class indices',
        lambda: png(np.repeat(LABELS[..., None], 3, axis=-1)),
    ),
    'a label map whose size differs from its image': Case(
        'error', 'is 9x5 pixels, but its image is 9x6', lambda: png(LABELS[:5])
    ),
    'a label map that is rotated relative to its image': Case(
        'error', 'is 6x9 pixels, but its image is 9x6', lambda: png(np.ascontiguousarray(LABELS.T))
    ),
    'a missing label map': Case('skipped', 'No such file or directory', lambda: None),
    'an empty label map': Case('skipped', 'the file is empty', lambda: b''),
    'a truncated label map': Case('skipped', 'cannot be read', lambda: png(LABELS)[:70]),
}
GOOD = {
    'a label map with a palette': Case('loaded', 'as indices, not colors', with_palette),
    'a 16-bit label map': Case('loaded', 'as the same labels', lambda: png(LABELS.astype(np.uint16))),
    'a 1-bit label map': Case(
        'loaded', 'as labels 0 and 1', lambda: encode(Image.fromarray(LABELS > 1), 'PNG')
    ),
}


def load(path: Path, shape: tuple[int, int] = (6, 9), reduce: bool = False, **options: Any) -> np.ndarray:
    results = {
        'seg_map_path': str(path),
        'seg_fields': [],
        'ori_shape': shape,
        'reduce_zero_label': reduce,
        'label_map': None,
    }
    loaded = LoadLabelMap(**{'num_classes': 4, **options})(results)
    assert loaded['seg_fields'] == ['gt_seg_map']
    assert loaded['gt_seg_map'].dtype == np.uint8
    return loaded['gt_seg_map']


@pytest.mark.parametrize('name', BAD)
def test_invalid_label_maps_raise_with_file_and_reason(name: str, tmp_path: Path) -> None:
    row, path = BAD[name], tmp_path / 'labels.png'
    content = row.make()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadDataError) as caught:
        load(path)
    assert repr(str(path)) in str(caught.value)
    assert row.message in str(caught.value)
    assert isinstance(caught.value, UnreadableError) == (row.outcome == 'skipped')


@pytest.mark.parametrize('name', GOOD)
def test_unusual_label_maps_are_loaded_as_documented(name: str, tmp_path: Path) -> None:
    path = tmp_path / 'labels.png'
    path.write_bytes(GOOD[name].make())
    expected = (LABELS > 1).astype(np.uint8) if '1-bit' in name else LABELS
    assert np.array_equal(load(path), expected)


def test_reduce_zero_label(tmp_path: Path) -> None:
    path = tmp_path / 'labels.png'
    path.write_bytes(png(with_value(4)))
    expected = np.where((with_value(4) == 0) | (with_value(4) == 255), 255, with_value(4).astype(int) - 1)
    assert np.array_equal(load(path, reduce=True), expected)
    path.write_bytes(png(with_value(5)))
    with pytest.raises(
        BadDataError, match=r'has label 5 at x=5, y=3: must be 1 to 4, or 255 or 0 \(ignored\)'
    ):
        load(path, reduce=True)
    with pytest.raises(UserError, match='reduce_zero_label is True in the pipeline but False in the dataset'):
        load(path, reduce_zero_label=True)


def test_labels_equal_those_of_mmseg(tmp_path: Path) -> None:
    from mmseg.datasets.transforms import LoadAnnotations

    path = tmp_path / 'labels.png'
    path.write_bytes(png(RANDOM.choice(np.uint8([0, 1, 2, 3, 4, 255]), (30, 40))))
    for reduce in (False, True):
        for label_map in (None, {0: 2, 1: 255, 2: 0, 3: 1}):
            results = {'seg_map_path': str(path), 'reduce_zero_label': reduce, 'label_map': label_map}
            theirs = LoadAnnotations()({**results, 'seg_fields': []})
            ours = LoadLabelMap(num_classes=5)({**results, 'seg_fields': [], 'ori_shape': (30, 40)})
            assert ours.keys() - {'ori_shape'} == theirs.keys()
            assert np.array_equal(ours['gt_seg_map'], theirs['gt_seg_map'])


def test_a_label_map_of_one_row_keeps_its_shape(tmp_path: Path) -> None:
    path = tmp_path / 'labels.png'
    path.write_bytes(png(LABELS[:1]))
    assert load(path, (1, 9)).shape == (1, 9)


def test_up_to_255_classes(tmp_path: Path) -> None:
    path = tmp_path / 'labels.png'
    path.write_bytes(png(with_value(254)))
    assert load(path, num_classes=255)[3, 5] == 254
    with pytest.raises(BadDataError, match='has label 254 at x=5, y=3: must be 0 to 253'):
        load(path, num_classes=254)
