"""Segmentation by strips and tiles: the same label maps as mmseg's, with less memory."""

import resource
from itertools import pairwise
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from mmengine.config import ConfigDict
from mmengine.dataset import pseudo_collate
from mmseg.structures import SegDataSample
from torch import Tensor, nn

from inline import InLineModel
from inline.apis import tiling
from inline.apis.inputs import InferencePipeline, find_images
from inline.apis.tiling import Tiling, resize_rows, segment, segment_tiles
from inline.benchmark import CPU, peak_memory
from inline.utils.errors import UserError
from tests.apis.small_models import read
from tests.engine.distributed.ranks import run_ranks


def photo(height: int, width: int) -> np.ndarray:
    image = np.random.default_rng(1).integers(0, 256, (height // 8, width // 8, 3)).astype(np.uint8)
    return cv2.resize(image, (width, height))


@pytest.mark.parametrize('align_corners', [False, True])
@pytest.mark.parametrize(
    ('source', 'size'), [((7, 5), (28, 20)), ((9, 6), (5, 13)), ((3, 4), (3, 4)), ((1, 1), (4, 6))]
)
def test_resized_rows_equal_interpolate(
    source: tuple[int, int], size: tuple[int, int], align_corners: bool
) -> None:
    map_ = torch.randn(4, *source, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = F.interpolate(map_[None], size=size, mode='bilinear', align_corners=align_corners)[0]
    edges = [0, 1, 3, size[0]] if size[0] > 3 else [0, 1, size[0]]
    strips = [
        resize_rows(lambda a, b: map_[:, a:b], source, size, span, align_corners) for span in pairwise(edges)
    ]
    torch.testing.assert_close(torch.cat(strips, dim=1), expected)


@pytest.mark.parametrize('align_corners', [False, True])
def test_resized_and_padded_image_gets_the_label_map_of_mmseg(
    monkeypatch: pytest.MonkeyPatch, align_corners: bool
) -> None:
    monkeypatch.setattr(tiling, '_MAX_STRIP', 5000)
    cfg = read('segmentation')
    cfg.model.data_preprocessor.test_cfg = ConfigDict(size_divisor=64)
    cfg.model.decode_head.align_corners = align_corners
    cfg.test_dataloader.dataset.pipeline.insert(
        1, ConfigDict(type='Resize', scale=(160, 80), keep_ratio=True)
    )
    torch.manual_seed(0)
    model = InLineModel(cfg, device='cpu')
    image = photo(72, 120)
    packed = InferencePipeline(cfg)(find_images(image)[0])
    assert packed['inputs'].shape == (3, 80, 133)
    with torch.no_grad():
        (expected,) = model.model.test_step(pseudo_collate([packed]))
    (prediction,) = model(image, keep_logits=True)
    assert prediction.seg_logits.data.shape == (11, 72, 120)
    torch.testing.assert_close(prediction.seg_logits.data, expected.seg_logits.data)
    assert torch.equal(prediction.pred_sem_seg.data, expected.pred_sem_seg.data)
    assert 'seg_logits' not in model(image)[0].sample


def test_sliding_window_config_equals_mmseg() -> None:
    cfg = read('segmentation')
    cfg.model.test_cfg = ConfigDict(mode='slide', crop_size=(64, 64), stride=(40, 40))
    torch.manual_seed(0)
    model = InLineModel(cfg, device='cpu')
    image = photo(88, 104)
    packed = InferencePipeline(cfg)(find_images(image)[0])
    with torch.no_grad():
        (expected,) = model.model.test_step(pseudo_collate([packed]))
    (prediction,) = model(image, keep_logits=True)
    torch.testing.assert_close(prediction.seg_logits.data, expected.seg_logits.data)


@pytest.mark.parametrize(
    ('length', 'size', 'overlap'), [(100, 40, 10), (97, 32, 31), (33, 32, 0), (64, 32, 0)]
)
def test_tiles_cover_a_side_with_the_overlap(length: int, size: int, overlap: int) -> None:
    spans = Tiling(size, overlap).spans(length)
    assert spans[0][0] == 0
    assert spans[-1][1] == length
    assert all(stop - start == size for start, stop in spans)
    assert all(before[1] - after[0] >= overlap for before, after in pairwise(spans))
    # One tile less would not be enough.
    assert (len(spans) - 1) * (size - overlap) + overlap < length


def test_small_image_is_one_tile_and_invalid_tiles_raise() -> None:
    assert Tiling(64).spans(40) == [(0, 40)]
    with pytest.raises(UserError, match='tile 16: must be at least 32 pixels'):
        Tiling(16)
    with pytest.raises(UserError, match='overlap 64: must be at least 0 and less than the tile size 64'):
        Tiling(64, 64)


class Pointwise(nn.Module):
    """A segmentor whose logits depend on the pixel only."""

    align_corners = False
    test_cfg = ConfigDict(mode='whole')

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(2)
        self.mix = torch.randn(classes, 3, generator=generator)
        self.decode_head = ConfigDict(threshold=0.3)
        self.tiles = 0

    def data_preprocessor(self, batch: dict[str, Any], training: bool) -> dict[str, Any]:
        assert not training
        return {'inputs': torch.stack(batch['inputs']).float(), 'data_samples': batch['data_samples']}

    def encode_decode(self, inputs: Tensor, metas: list[dict[str, Any]]) -> Tensor:
        assert metas[0]['img_shape'] == tuple(inputs.shape[-2:])
        self.tiles += 1
        return torch.einsum('kc,bchw->bkhw', self.mix, inputs)


class Counting(Pointwise):
    """Returns the logits (n, 0) for every pixel of the n-th tile."""

    def encode_decode(self, inputs: Tensor, metas: list[dict[str, Any]]) -> Tensor:
        super().encode_decode(inputs, metas)
        flat = torch.zeros(1, 2, *inputs.shape[-2:])
        flat[:, 0] = self.tiles
        return flat


def sample_of(inputs: Tensor) -> SegDataSample:
    size = tuple(inputs.shape[-2:])
    return SegDataSample(metainfo={'img_shape': size, 'ori_shape': size})


@pytest.mark.parametrize('classes', [4, 1])
@pytest.mark.parametrize(('size', 'overlap'), [(32, 0), (40, 12), (33, 30), (64, 5), (200, 0)])
def test_tiles_of_a_pointwise_model_equal_the_full_label_map(classes: int, size: int, overlap: int) -> None:
    inputs = torch.randn(3, 70, 101, generator=torch.Generator().manual_seed(3))
    model = Pointwise(classes)
    (full,) = segment(model, {'inputs': [inputs], 'data_samples': [sample_of(inputs)]}, True)
    tiled = segment_tiles(model, inputs, sample_of(inputs), Tiling(size, overlap), True)
    torch.testing.assert_close(tiled.seg_logits.data, full.seg_logits.data)
    assert torch.equal(tiled.pred_sem_seg.data, full.pred_sem_seg.data)
    assert len(tiled.pred_sem_seg.data.unique()) == max(classes, 2)


def test_logits_are_averaged_where_tiles_overlap() -> None:
    inputs = torch.zeros(3, 48, 48)
    tiled = segment_tiles(Counting(), inputs, sample_of(inputs), Tiling(32, 16), True)
    logits = tiled.seg_logits.data[0]
    # Tiles 1 and 2 are above, 3 and 4 below. Strips of 16 pixels belong to two tiles, the centre to four.
    expected = torch.tensor([[1, 1.5, 2], [2, 2.5, 3], [3, 3.5, 4]])
    torch.testing.assert_close(logits, expected.repeat_interleave(16, 0).repeat_interleave(16, 1))


def test_one_tile_equals_the_full_image() -> None:
    cfg = read('segmentation')
    torch.manual_seed(0)
    model = InLineModel(cfg, device='cpu')
    image = photo(72, 104)
    (full,), (tiled,) = model(image, keep_logits=True), model(image, tile=128, keep_logits=True)
    torch.testing.assert_close(tiled.seg_logits.data, full.seg_logits.data)
    (small,) = model(image, tile=64, overlap=16)
    assert small.pred_sem_seg.data.shape == (1, 72, 104)


def test_tiles_and_full_size_skip_resizing() -> None:
    cfg = read('segmentation')
    cfg.test_dataloader.dataset.pipeline.insert(1, ConfigDict(type='Resize', scale=(64, 32), keep_ratio=True))
    model = InLineModel(cfg, device='cpu')
    image = photo(64, 96)
    assert model(image)[0].img_shape == (32, 48)
    assert model(image, full_size=True)[0].img_shape == (64, 96)
    assert model(image, tile=48)[0].img_shape == (64, 96)
    with pytest.raises(UserError, match='tile and full_size exclude each other'):
        model(image, tile=48, full_size=True)


def test_memory_is_linear_in_pixels_and_constant_with_tiles() -> None:
    torch.manual_seed(0)
    model = InLineModel(read('segmentation'), device='cpu')

    def peak(height: int, width: int, tile: int | None = None) -> int:
        image = photo(height, width)
        return peak_memory(lambda: model(image, full_size=tile is None, tile=tile), CPU)

    # Four times the pixels are 16 times the token pairs.
    assert 2 < peak(512, 512) / peak(256, 256) < 5
    labels = 8 * (1024 - 256) * 128
    assert peak(1024, 128, tile=128) - peak(256, 128, tile=128) < 2 * labels


@pytest.mark.slow
def test_large_image_with_many_classes_fits_in_memory(tmp_path: Path) -> None:
    """With 150 classes, as in ADE20K, the logits of all pixels would take 2.5 GB, in mmseg twice."""
    cfg = read('segmentation')
    cfg.model.neck.out_channels = 16
    cfg.model.decode_head.update(
        in_channels=[16] * 4, channels=16, num_classes=150, loss_decode={'type': 'CrossEntropyLoss'}
    )
    model = InLineModel(cfg, device='cpu')

    def work() -> tuple[tuple[int, ...], int, int]:
        labels = model(photo(2048, 2048), full_size=True)[0].sample.pred_sem_seg.data
        return tuple(labels.shape), len(labels.unique()), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    ((shape, count, kilobytes),) = run_ranks(1, work, tmp_path / 'ranks')
    assert shape == (1, 2048, 2048)
    assert count > 1
    assert kilobytes < 2e6
