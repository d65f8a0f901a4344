"""Boxes, masks and label maps are drawn in the colour of their class, at the right place."""

import cv2
import numpy as np
import pytest
from PIL import Image, ImageDraw

from inline.engine.config import load_config
from inline.utils.drawing import BASE_PALETTE as PALETTE
from inline.utils.drawing import class_palette, draw_instances, draw_label_map, draw_tag
from tests.conftest import ROOT

NAMES = tuple('0123456789')
ZOOM = 3
MASK = np.zeros((64, 64), bool)
MASK[30:50, 30:50] = True


@pytest.fixture
def image() -> np.ndarray:
    return np.full((64, 64, 3), 100, np.uint8)


def test_digit_scenes_use_the_base_palette() -> None:
    cfg = load_config(ROOT / 'configs' / 'digits' / 'semantic-fpn_inline-pvt-micro_digits.py')
    assert [tuple(color) for color in cfg.test_dataloader.dataset.metainfo.palette[1:]] == list(PALETTE[:10])


def test_boxes_and_masks_have_the_class_color(image: np.ndarray) -> None:
    drawn = draw_instances(
        image, [(20, 20, 60, 60)], [3], NAMES, PALETTE, scores=[0.9], masks=[MASK], zoom=ZOOM
    )
    assert drawn.shape == (64 * ZOOM, 64 * ZOOM, 3)
    assert tuple(drawn[40 * ZOOM, 20 * ZOOM]) == PALETTE[3]
    assert abs(drawn[40 * ZOOM, 40 * ZOOM] - (0.6 * 100 + 0.4 * np.array(PALETTE[3]))).max() < 2
    assert (drawn[5, 5] == 100).all()
    assert (image == 100).all(), 'the input is not changed'


def test_ground_truth_has_tags_without_scores(image: np.ndarray) -> None:
    box = [(20, 30, 60, 60)]
    plain = draw_instances(image, box, [3], NAMES, PALETTE, zoom=ZOOM)
    scored = draw_instances(image, box, [3], NAMES, PALETTE, scores=[0.5], zoom=ZOOM)
    width = [int((drawn[25 * ZOOM] == PALETTE[3]).all(axis=-1).sum()) for drawn in (plain, scored)]
    assert 0 < width[0] < width[1]
    assert (draw_instances(image, [], [], NAMES, PALETTE) == image).all()


@pytest.mark.parametrize('scores', [[0.9, 0.5], [0.5, 0.9]])
def test_highest_score_is_on_top(image: np.ndarray, scores: list[float]) -> None:
    boxes = [(20, 20, 60, 60), (20, 20, 60, 60)]
    drawn = draw_instances(image, boxes, [1, 2], NAMES, PALETTE, scores=scores)
    assert tuple(drawn[40, 20]) == PALETTE[1 + int(np.argmax(scores))]


def test_tags_avoid_each_other_and_the_border() -> None:
    pen = ImageDraw.Draw(Image.new('RGB', (200, 100)))
    first = draw_tag(pen, (50, 50, 150, 90), 'cat', PALETTE[0], 15)
    second = draw_tag(pen, (50, 50, 150, 90), 'dog', PALETTE[1], 15, [first])
    assert first[3] == pytest.approx(50, abs=1)
    assert second[0] >= first[2] or second[1] >= first[3]
    assert draw_tag(pen, (-20, -20, 500, 500), 'cow', PALETTE[2], 15)[:2] == (0, 0)


def test_label_maps_blend_with_the_gray_image(image: np.ndarray) -> None:
    image[..., 0] = 200
    gray = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)[0, 0]
    drawn = draw_label_map(image, np.where(MASK, 4, 0), PALETTE, ZOOM)
    for y, label in ((31, 4), (5, 0)):
        expected = 0.4 * gray + 0.6 * np.array(PALETTE[label])
        assert abs(drawn[y * ZOOM, y * ZOOM] - expected).max() < 2


def test_class_colors_differ_and_do_not_depend_on_the_number_of_classes() -> None:
    colors = class_palette(150)
    assert len(set(colors)) == 150
    assert all(0 <= channel <= 255 for color in colors for channel in color)
    assert class_palette(3) == PALETTE[:3] == colors[:3]
    assert class_palette(0) == ()


def test_twenty_class_colours_are_clearly_distinct() -> None:
    """By CIEDE2000, in which differences below 2 are hardly visible; also from grey, white and black."""
    from skimage.color import deltaE_ciede2000, rgb2lab

    assert len(PALETTE) == 20
    greys = [(level, level, level) for level in range(0, 256, 15)]
    colors, neutral = (rgb2lab(np.array([given]) / 255)[0] for given in (PALETTE, greys))
    distance = deltaE_ciede2000(colors[:, None], colors[None])
    assert distance[~np.eye(20, dtype=bool)].min() > 16
    assert deltaE_ciede2000(colors[:, None], neutral[None]).min() > 10
    # On label maps the colours are mixed with the grey image.
    images = [np.full((1, 20, 3), level, np.uint8) for level in (0, 128, 255)]
    mixed = [draw_label_map(image, np.arange(20)[None], PALETTE)[0] for image in images]
    for row in rgb2lab(np.array(mixed) / 255):
        assert deltaE_ciede2000(row[:, None], row[None])[~np.eye(20, dtype=bool)].min() > 8
