"""What the page answers, without a server: predictions of three tasks, maps of four families, mistakes."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from mmengine.structures import InstanceData

from inline.engine.config import load_config
from inline.inference import InLineModel
from inline.serve import panels
from inline.serve.desk import Answer, Desk, Visit
from inline.serve.looks import look
from inline.serve.predictions import state
from inline.serve.served import ServedModel
from inline.serve.uploads import Limits
from tests.report.report_helpers import Page

CLASSIFIER = 'configs/digits_quick/inline-pvt-nano_digits.py'
DEIT = {
    'type': 'inline.InLineDeiT',
    'arch': {'embed_dims': 32, 'depth': 2, 'num_heads': 2, 'patch_size': 8},
    'img_size': 48,
    'out_type': 'cls_token',
}
SWIN = {
    'type': 'inline.InLineSwin',
    'arch': {'embed_dims': (32, 64), 'depths': (2, 1), 'num_heads': (2, 4), 'mlp_ratios': (2, 2)},
    'mixers': {'type': 'Softmax', 'window_size': 4},
    'out_indices': (1,),
}
CSWIN = {
    'type': 'inline.InLineCSwin',
    'arch': {'embed_dims': (32, 64), 'depths': (1, 1), 'num_heads': (2, 4), 'mlp_ratios': (2, 2)},
    'out_indices': (1,),
}


def serve(config: str = CLASSIFIER, label: str = 'nano', scale: Any = None, **backbone: Any) -> ServedModel:
    """An untrained model; images of a classifier are resized to `scale`, (width, height)."""
    cfg = load_config(config)
    if backbone:
        cfg.model.backbone = backbone
        cfg.model.head.in_channels = 32 if 'DeiT' in backbone['type'] else 64
        if 'DeiT' in backbone['type']:
            cfg.model.neck = None
    if scale is not None:
        cfg.test_dataloader.dataset.pipeline[1].scale = scale
    torch.manual_seed(0)
    return ServedModel(InLineModel(cfg), label)


@pytest.fixture(scope='module')
def desk() -> Desk:
    return Desk([serve()], Limits())


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    """60 rows and 80 columns."""
    path = tmp_path / 'photo.png'
    cv2.imwrite(str(path), np.random.default_rng(0).integers(0, 256, (60, 80, 3)).astype(np.uint8))
    return path


def accepted(desk: Desk, path: Path) -> tuple[Answer, Visit]:
    answer = desk.accept(path)
    assert answer.visit is not None, answer.message
    return answer, answer.visit


def frames(layers: str | None) -> list[tuple[float, ...]]:
    """Left, top, width and height of the marked tokens, as shares."""
    styles = re.findall(r'il-token" style="([^"]*)"', layers or '')
    return [tuple(float(number) / 100 for number in re.findall(r'([\d.]+)%', style)) for style in styles]


def pictures(layers: str | None) -> list[str]:
    return re.findall(r'src="data:image/png;base64,([^"]*)"', layers or '')


def residuals(layers: str | None) -> list[str]:
    """The lengths, and what stands in the nine squares, of each layer."""
    pattern = r'<figcaption>(residual [^<]*)</figcaption><div class="il-kernel">(.*?)</div>'
    return [length + squares for length, squares in re.findall(pattern, layers or '')]


def test_an_image_is_answered_with_its_prediction(desk: Desk, photo: Path) -> None:
    answer, visit = accepted(desk, photo)
    assert 'photo.png, 80×60 pixels' in Page(answer.message).text
    assert visit.views[0].size == (32, 32)
    text = Page(answer.predictions or '').text
    shown = [float(n) for n in re.findall(r'il-number">([\d.]+)%', answer.predictions or '')]
    expected = desk.models[0].model(cv2.imread(str(photo)))[0].pred_score.sort(descending=True)
    assert shown == pytest.approx((100 * expected.values[:5]).tolist(), abs=0.06)
    assert f'Class {int(expected.indices[0])}, score' in text
    assert answer.layers == ''


@pytest.mark.parametrize(
    ('name', 'backbone', 'tokens'),
    [
        ('pvt', {}, [(8, 12), (4, 6), (2, 3), (1, 2)]),
        ('deit', DEIT, [(4, 6)] * 2),
        ('swin', SWIN, [(8, 12)] * 2 + [(4, 6)]),
        ('cswin', CSWIN, [(8, 12), (4, 6)]),
    ],
)
def test_the_clicked_token_is_marked_in_every_layer(
    name: str, backbone: dict[str, Any], tokens: list[tuple[int, int]], photo: Path
) -> None:
    """An image of 60×80 pixels, seen by the model as 32×48."""
    desk = Desk([serve(label=name, scale=(48, 32), **backbone)], Limits())
    _, visit = accepted(desk, photo)
    for x, y in ((0.02, 0.03), (0.31, 0.7), (0.99, 0.98)):
        answer = desk.point(visit, x, y)
        text = Page(answer.layers or '').text
        assert [text.count(f'{height}×{width} tokens') for height, width in dict.fromkeys(tokens)] == [
            tokens.count(hw) for hw in dict.fromkeys(tokens)
        ]
        marked = frames(answer.layers)
        assert len(marked) == len(pictures(answer.layers)) == len(tokens)
        for (left, top, width, height), (rows, columns) in zip(marked, tokens, strict=True):
            assert left <= x <= left + width
            assert top <= y <= top + height
            assert (width, height) == pytest.approx((1 / columns, 1 / rows), abs=0.35 / min(rows, columns))
        assert f'{x:.0%} of the width' in Page(answer.message).text
    assert ('residual' in text) == (name != 'swin')


def test_another_point_gives_other_maps_and_the_same_point_the_same(desk: Desk, photo: Path) -> None:
    _, visit = accepted(desk, photo)
    first, other, again = (desk.point(visit, x, 0.4) for x in (0.1, 0.9, 0.1))
    assert first.layers == again.layers
    # In the fourth layer the image is one token.
    for shown in (pictures, residuals):
        pairs = list(zip(shown(first.layers)[:3], shown(other.layers)[:3], strict=True))
        assert len(pairs) == 3
        assert all(one != two for one, two in pairs)
    beyond = desk.point(visit, -3, 7).visit
    assert beyond is not None
    assert beyond.point == (0, 1)


def test_the_squares_say_what_each_neighbour_adds(desk: Desk, photo: Path) -> None:
    """At the upper left corner, in the first layer: there is nothing above and on the left."""
    _, visit = accepted(desk, photo)
    shown = residuals(desk.point(visit, 0.01, 0.01).layers)
    assert len(shown) == 4
    served = desk.models[0]
    first = look(served.subject, visit.views[0], (0, 0))[0].residual
    assert first is not None
    assert f'residual {first.residual:.3g}, attention {first.attention:.3g}' in shown[0]
    beyond, number = '<span class="il-beyond">', r'<span style="[^"]*">([^<]*)</span>'
    assert shown[0].count(beyond) == 5
    shown_lengths = [float(text) for text in re.findall(number, shown[0])]
    assert shown_lengths == pytest.approx(first.neighbours[1:, 1:].flatten().tolist(), rel=0.06)


def test_a_head_is_shown_where_a_layer_has_it(desk: Desk, photo: Path) -> None:
    _, visit = accepted(desk, photo)
    clicked = desk.point(visit, 0.5, 0.5).visit
    assert desk.most_heads() == 6
    chosen = desk.choose_head(clicked, 4)
    # The stages have 2, 4, 4 and 6 heads.
    assert len(pictures(chosen.layers)) == 1
    text = Page(chosen.layers or '').text
    assert (text.count('has 2 heads'), text.count('has 4 heads')) == (1, 2)
    whole = desk.choose_head(clicked, None)
    assert len(pictures(whole.layers)) == 4
    assert pictures(desk.choose_head(clicked, 1).layers)[0] != pictures(whole.layers)[0]
    # It stays chosen for the next image.
    following = desk.accept(photo, 4).visit
    assert following is not None
    assert desk.point(following, 0.5, 0.5).layers == chosen.layers


def test_two_models_stand_in_one_grid(desk: Desk, photo: Path) -> None:
    softmax = serve('configs/digits_quick/pvt-nano_digits.py', 'softmax <b>')
    both = Desk([desk.models[0], softmax], Limits())
    answer, visit = accepted(both, photo)
    assert (answer.predictions or '').count('class="il-prediction"') == 2
    layers = both.point(visit, 0.2, 0.3).layers or ''
    assert layers.count('class="il-grid"') == 1
    names = re.findall(r'<b>(.*?)</b><br>(\w+)', layers)
    assert names == [('nano', 'attention'), ('nano', 'residual'), ('softmax &lt;b&gt;', 'attention')]
    assert len(pictures(layers)) == 8


def test_many_layers_begin_new_lines() -> None:
    """Eight layers: six and two, with the other model's two beside the first ones."""
    view = serve(scale=(48, 32)).view(np.zeros((32, 48, 3), np.uint8))
    deep = serve(**{**DEIT, 'arch': {**DEIT['arch'], 'depth': 8}}, scale=(48, 32))  # type: ignore[dict-item]
    looks = look(deep.subject, view, (10, 20))
    html = panels.show_layers([panels.Row('a', looks, view), panels.Row('b', looks[:2], view)])
    assert re.findall(r'--columns:(\d)', html) == ['6', '2']
    assert html.count('il-cell attention') == 6 + 6 + 2
    assert len(pictures(html)) == 8 + 2


def test_clicks_at_once_do_not_mix(desk: Desk, photo: Path) -> None:
    _, visit = accepted(desk, photo)
    alone = [desk.point(visit, x, 0.5).layers for x in (0.1, 0.4, 0.6, 0.9)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda x: desk.point(visit, x, 0.5).layers, (0.1, 0.4, 0.6, 0.9))) == alone


def test_a_point_that_is_cut_off_is_told(photo: Path) -> None:
    cfg = serve(scale=(64, 64)).model.cfg
    cfg.test_dataloader.dataset.pipeline.insert(2, {'type': 'CenterCrop', 'crop_size': (64, 32)})
    desk = Desk([ServedModel(InLineModel(cfg), 'cropped')], Limits())
    _, visit = accepted(desk, photo)
    answer = desk.point(visit, 0.5, 0.05)
    assert 'That point is cut off before cropped sees it.' in Page(answer.message).text
    assert answer.layers == ''


def test_a_label_map_comes_as_a_picture(photo: Path) -> None:
    desk = Desk([serve('configs/digits_quick/semantic-fpn_inline-pvt-nano_digits.py')], Limits())
    answer, visit = accepted(desk, photo)
    assert len(pictures(answer.predictions)) == 1
    assert re.search(r'\d+ class(es)? on the map', Page(answer.predictions or '').text)
    assert len(pictures(desk.point(visit, 0.5, 0.5).layers)) == 4


def test_a_detector_draws_its_boxes_and_lists_the_surest(photo: Path) -> None:
    """A Mask R-CNN, untrained but for a leaning towards the class 3."""
    cfg = load_config('configs/digits/mask-rcnn_inline-pvt-micro_digits.py')
    cfg.model.test_cfg.rcnn.score_thr = 0.0
    torch.manual_seed(0)
    served = ServedModel(InLineModel(cfg), 'detector')
    with torch.no_grad():
        served.model.model.roi_head.bbox_head.fc_cls.bias[3] = 6.0
    desk = Desk([served], Limits())
    answer, visit = accepted(desk, photo)
    found = served.model(cv2.imread(str(photo)))[0].pred_instances
    sure = found.scores[found.scores >= 0.3].sort(descending=True).values
    assert len(sure) > 5
    assert len(found.masks) == len(found.scores)
    text = Page(answer.predictions or '').text
    assert f'{len(sure)} objects with a score of at least 0.3, here the surest 5' in text
    rows = re.findall(r'<th>(.*?)</th>.*?il-number">([\d.]+)%', answer.predictions or '')
    assert [name for name, _ in rows] == ['3'] * 5
    assert [float(score) for _, score in rows] == pytest.approx((100 * sure[:5]).tolist(), abs=0.06)
    (drawn,), (plain,) = pictures(answer.predictions), pictures(answer.picture)
    assert drawn != plain
    layers = desk.point(visit, 0.5, 0.5).layers
    assert len(pictures(layers)) == len(residuals(layers)) == len(served.subject.layers)


def test_boxes_are_listed_by_their_score() -> None:
    from mmdet.structures import DetDataSample

    found = InstanceData(scores=torch.tensor([0.4, 0.9, 0.1]), labels=torch.tensor([3, 7, 1]))
    sample, picture = DetDataSample(pred_instances=found), np.zeros((4, 4, 3), np.uint8)
    said = state(sample, tuple('0123456789'), lambda: picture)
    assert said.summary == '2 objects with a score of at least 0.3'
    assert said.scores == [('7', pytest.approx(0.9)), ('3', pytest.approx(0.4))]
    assert said.picture is picture


def test_colours_tell_more_less_and_out_of_sight() -> None:
    """Four places of 20 pixels on an image of 40×50, whose last columns belong to the last place."""
    image = np.full((40, 50, 3), 100, np.uint8)
    drawn = panels.draw_weights(image, np.array([[3.0, 1.0], [-1.0, np.nan]]), 20).astype(int)
    assert drawn.shape == (192, 240, 3)
    for y, x, expected in (
        (10, 10, 'red'),
        (95, 95, 'red'),
        (10, 100, 'even'),
        (97, 10, 'blue'),
        (97, 239, 'grey'),
    ):
        red, green, blue = drawn[y, x]
        if expected in ('red', 'blue'):
            assert (red - blue > 40) if expected == 'red' else (blue - red > 40)
        else:
            assert max(red, green, blue) - min(red, green, blue) < 8
    # Out of sight the image is dimmed, not coloured over.
    assert drawn[97, 239].mean() < drawn[10, 100].mean() - 30


def test_mistakes_come_back_as_messages(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 'No image yet' in desk.point(None, 0.5, 0.5).message
    assert 'No image yet' in desk.choose_head(None, 1).message
    (tmp_path / '<b>.jpg').write_bytes(b'no image')
    refused = desk.accept(tmp_path / '<b>.jpg')
    assert 'role="alert"' in refused.message
    assert '&lt;b&gt;.jpg' in refused.message
    assert (refused.visit, refused.picture, refused.predictions, refused.layers) == (None, None, None, None)
    secret = f'{tmp_path}/secret'

    def fail(*_: object) -> None:
        raise RuntimeError(secret)

    monkeypatch.setattr('inline.serve.desk.read_upload', fail)
    failed = desk.accept(tmp_path / 'photo.png')
    assert 'The terminal of the server says why' in failed.message
    assert secret not in failed.message
    assert secret in capsys.readouterr().err
