"""Event handlers of the page without a server: three tasks, four families, invalid input."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from mmengine.structures import InstanceData

from inline.apis import InLineModel, Prediction
from inline.apis.inputs import ImageSource
from inline.apis.loading import Classes
from inline.apis.serve import html
from inline.apis.serve.attention_views import compute_attention_views
from inline.apis.serve.controller import (
    Controller,
    PageModel,
    PageUpdate,
    SessionState,
    distinct_labels,
    example_images,
    load_models,
    shrink,
)
from inline.apis.serve.uploads import UploadLimits
from inline.engine.config import load_config
from tests.reproduce.report.report_helpers import Page

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


def build(config: str = CLASSIFIER, label: str = 'nano', scale: Any = None, **backbone: Any) -> PageModel:
    """Build an untrained model; a classifier resizes images to `scale`, (width, height)."""
    cfg = load_config(config)
    if backbone:
        cfg.model.backbone = backbone
        cfg.model.head.in_channels = 32 if 'DeiT' in backbone['type'] else 64
        if 'DeiT' in backbone['type']:
            cfg.model.neck = None
    if scale is not None:
        cfg.test_dataloader.dataset.pipeline[1].scale = scale
    torch.manual_seed(0)
    return PageModel(InLineModel(cfg), label)


@pytest.fixture(scope='module')
def controller() -> Controller:
    return Controller([build()], UploadLimits())


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    """An image of 60×80 pixels."""
    path = tmp_path / 'photo.png'
    cv2.imwrite(str(path), np.random.default_rng(0).integers(0, 256, (60, 80, 3)).astype(np.uint8))
    return path


def upload(controller: Controller, path: Path) -> tuple[PageUpdate, SessionState]:
    update = controller.upload(path)
    assert update.state is not None, update.message
    return update, update.state


def frames(layers: str | None) -> list[tuple[float, ...]]:
    """Return left, top, width and height of the marked tokens, relative to the image."""
    styles = re.findall(r'il-token" style="([^"]*)"', layers or '')
    return [tuple(float(number) / 100 for number in re.findall(r'([\d.]+)%', style)) for style in styles]


def pictures(layers: str | None) -> list[str]:
    return re.findall(r'src="data:image/png;base64,([^"]*)"', layers or '')


def residuals(layers: str | None) -> list[str]:
    """Return the norms and the nine squares of each layer."""
    pattern = r'<figcaption>(residual [^<]*)</figcaption><div class="il-kernel">(.*?)</div>'
    return [norms + squares for norms, squares in re.findall(pattern, layers or '')]


def test_upload_shows_the_prediction(controller: Controller, photo: Path) -> None:
    update, state = upload(controller, photo)
    assert 'photo.png, 80×60 pixels' in Page(update.message).text
    assert state.inputs[0].size == (32, 32)
    text = Page(update.predictions or '').text
    shown = [float(n) for n in re.findall(r'il-number">([\d.]+)%', update.predictions or '')]
    expected = controller.models[0].model(cv2.imread(str(photo)))[0].pred_score.sort(descending=True)
    assert shown == pytest.approx((100 * expected.values[:5]).tolist(), abs=0.06)
    assert f'Class {int(expected.indices[0])}, score' in text
    assert update.layers == ''


@pytest.mark.parametrize(
    ('name', 'backbone', 'tokens'),
    [
        ('pvt', {}, [(8, 12), (4, 6), (2, 3), (1, 2)]),
        ('deit', DEIT, [(4, 6)] * 2),
        ('swin', SWIN, [(8, 12)] * 2 + [(4, 6)]),
        ('cswin', CSWIN, [(8, 12), (4, 6)]),
    ],
)
def test_clicked_token_is_marked_in_every_layer(
    name: str, backbone: dict[str, Any], tokens: list[tuple[int, int]], photo: Path
) -> None:
    """The pipeline resizes the image of 60×80 pixels to 32×48."""
    controller = Controller([build(label=name, scale=(48, 32), **backbone)], UploadLimits())
    _, state = upload(controller, photo)
    for x, y in ((0.02, 0.03), (0.31, 0.7), (0.99, 0.98)):
        update = controller.click(state, x, y)
        text = Page(update.layers or '').text
        assert [text.count(f'{height}×{width} tokens') for height, width in dict.fromkeys(tokens)] == [
            tokens.count(hw) for hw in dict.fromkeys(tokens)
        ]
        marked = frames(update.layers)
        assert len(marked) == len(pictures(update.layers)) == len(tokens)
        for (left, top, width, height), (rows, columns) in zip(marked, tokens, strict=True):
            assert left <= x <= left + width
            assert top <= y <= top + height
            assert (width, height) == pytest.approx((1 / columns, 1 / rows), abs=0.35 / min(rows, columns))
        assert f'{x:.0%} of the width' in Page(update.message).text
    assert ('residual' in text) == (name != 'swin')


def test_maps_depend_on_the_point(controller: Controller, photo: Path) -> None:
    _, state = upload(controller, photo)
    first, other, again = (controller.click(state, x, 0.4) for x in (0.1, 0.9, 0.1))
    assert first.layers == again.layers
    # In the fourth layer the image is a single token.
    for shown in (pictures, residuals):
        pairs = list(zip(shown(first.layers)[:3], shown(other.layers)[:3], strict=True))
        assert len(pairs) == 3
        assert all(one != two for one, two in pairs)
    outside = controller.click(state, -3, 7).state
    assert outside is not None
    assert outside.point == (0, 1)


def test_squares_show_the_norm_of_each_neighbour(controller: Controller, photo: Path) -> None:
    """In the upper left corner, the neighbours above and to the left do not exist."""
    _, state = upload(controller, photo)
    shown = residuals(controller.click(state, 0.01, 0.01).layers)
    assert len(shown) == 4
    model = controller.models[0]
    first = compute_attention_views(model.analysis_model, state.inputs[0], (0, 0))[0].residual
    assert first is not None
    assert f'residual {first.residual:.3g}, attention {first.attention:.3g}' in shown[0]
    beyond, number = '<span class="il-beyond">', r'<span style="[^"]*">([^<]*)</span>'
    assert shown[0].count(beyond) == 5
    shown_norms = [float(text) for text in re.findall(number, shown[0])]
    assert shown_norms == pytest.approx(first.neighbors[1:, 1:].flatten().tolist(), rel=0.06)


def test_one_head_is_shown_in_layers_that_have_it(controller: Controller, photo: Path) -> None:
    _, state = upload(controller, photo)
    clicked = controller.click(state, 0.5, 0.5).state
    assert controller.max_heads() == 6
    chosen = controller.select_head(clicked, 4)
    # The stages have 2, 4, 4 and 6 heads.
    assert len(pictures(chosen.layers)) == 1
    text = Page(chosen.layers or '').text
    assert (text.count('has 2 heads'), text.count('has 4 heads')) == (1, 2)
    mean = controller.select_head(clicked, None)
    assert len(pictures(mean.layers)) == 4
    assert pictures(controller.select_head(clicked, 1).layers)[0] != pictures(mean.layers)[0]
    # The choice is kept for the next image.
    following = controller.upload(photo, 4).state
    assert following is not None
    assert controller.click(following, 0.5, 0.5).layers == chosen.layers


def test_two_models_share_one_grid(controller: Controller, photo: Path) -> None:
    softmax = build('configs/digits_quick/pvt-nano_digits.py', 'softmax <b>')
    both = Controller([controller.models[0], softmax], UploadLimits())
    update, state = upload(both, photo)
    assert (update.predictions or '').count('class="il-prediction"') == 2
    layers = both.click(state, 0.2, 0.3).layers or ''
    assert layers.count('class="il-grid"') == 1
    names = re.findall(r'<b>(.*?)</b><br>(\w+)', layers)
    assert names == [('nano', 'attention'), ('nano', 'residual'), ('softmax &lt;b&gt;', 'attention')]
    assert len(pictures(layers)) == 8


def test_models_of_one_config_are_labelled_by_checkpoint(
    checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    first, second = checkpoints['classification'], tmp_path / 'second.pth'
    second.symlink_to(first)
    names = [model.label for model in load_models([(CLASSIFIER, str(first)), (CLASSIFIER, str(second))])]
    assert names == ['inline-pvt-nano_digits · classification', 'inline-pvt-nano_digits · second']


@pytest.mark.parametrize(
    ('pairs', 'expected'),
    [
        ([('c/x.py', 'a.pth')], ['x']),
        ([('c/x.py', 'a.pth'), ('c/y.py', 'a.pth')], ['x', 'y']),
        ([('x.py', 'runs/a/last.pth'), ('x.py', 'runs/b/last.pth')], ['x · a/last', 'x · b/last']),
        ([('c/x.py', 'a/v/1.pth'), ('d/x.py', 'b/v/1.pth')], ['x · a/v/1', 'x · b/v/1']),
        ([('x', 'user/m-1.5'), ('x', 'user/m-1.6')], ['x · m-1.5', 'x · m-1.6']),
        ([('x.py', 'a.pth'), ('x.py', 'a.pth')], ['x · a (1)', 'x · a (2)']),
    ],
)
def test_labels_are_distinct(pairs: list[tuple[str, str]], expected: list[str]) -> None:
    assert distinct_labels(pairs) == expected


def test_examples_are_digits_for_a_classifier_and_scenes_for_others(controller: Controller) -> None:
    assert [image.shape for image in controller.examples] == [(48, 48, 3)] * 2
    assert [image.shape for image in example_images('detection')] == [(88, 88, 3)] * 2
    for index, expected in (
        (0, 'example 1, 48×48 pixels'),
        (1, 'example 2'),
        (2, 'No image yet'),
        (-1, 'No'),
    ):
        update = controller.show_example(index)
        assert expected in Page(update.message or '').text
        assert bool(update.state) == (index in (0, 1))
    assert len(pictures(html.render_examples(controller.examples))) == 2
    assert not controller.has_detector


def test_many_layers_are_wrapped() -> None:
    """Eight layers become lines of six and two; the two layers of the other model are in the first line."""
    model_input = build(scale=(48, 32)).prepare(np.zeros((32, 48, 3), np.uint8))
    deep = build(**{**DEIT, 'arch': {**DEIT['arch'], 'depth': 8}}, scale=(48, 32))  # type: ignore[dict-item]
    views = compute_attention_views(deep.analysis_model, model_input, (10, 20))
    rows = [html.LayerRow('a', views, model_input), html.LayerRow('b', views[:2], model_input)]
    layers = html.render_layers(rows)
    assert re.findall(r'--columns:(\d)', layers) == ['6', '2']
    assert layers.count('il-cell attention') == 6 + 6 + 2
    assert len(pictures(layers)) == 8 + 2


def test_concurrent_clicks_are_independent(controller: Controller, photo: Path) -> None:
    _, state = upload(controller, photo)
    alone = [controller.click(state, x, 0.5).layers for x in (0.1, 0.4, 0.6, 0.9)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda x: controller.click(state, x, 0.5).layers, (0.1, 0.4, 0.6, 0.9))) == alone


def test_cropped_point_gives_a_message(photo: Path) -> None:
    cfg = build(scale=(64, 64)).model.cfg
    cfg.test_dataloader.dataset.pipeline.insert(2, {'type': 'CenterCrop', 'crop_size': (64, 32)})
    controller = Controller([PageModel(InLineModel(cfg), 'cropped')], UploadLimits())
    _, state = upload(controller, photo)
    update = controller.click(state, 0.5, 0.05)
    assert 'The test pipeline of cropped crops this point off.' in Page(update.message).text
    assert update.layers == ''


def test_label_map_is_shown_as_a_picture(photo: Path) -> None:
    controller = Controller(
        [build('configs/digits_quick/semantic-fpn_inline-pvt-nano_digits.py')], UploadLimits()
    )
    update, state = upload(controller, photo)
    assert len(pictures(update.predictions)) == 1
    assert re.search(r'\d+ class(es)?', Page(update.predictions or '').text)
    assert len(pictures(controller.click(state, 0.5, 0.5).layers)) == 4


def test_detector_shows_boxes_and_lists_the_highest_scores(photo: Path) -> None:
    """An untrained Mask R-CNN with a bias towards class 3."""
    cfg = load_config('configs/digits/mask-rcnn_inline-pvt-micro_digits.py')
    cfg.model.test_cfg.rcnn.score_thr = 0.0
    torch.manual_seed(0)
    model = PageModel(InLineModel(cfg), 'detector')
    with torch.no_grad():
        model.model.model.roi_head.bbox_head.fc_cls.bias[3] = 6.0
    controller = Controller([model], UploadLimits())
    update, state = upload(controller, photo)
    found = model.model(cv2.imread(str(photo)))[0].pred_instances
    confident = found.scores[found.scores >= 0.3].sort(descending=True).values
    assert len(confident) > 5
    assert len(found.masks) == len(found.scores)
    text = Page(update.predictions or '').text
    assert f'{len(confident)} objects with a score of at least 0.3; the 5 highest scores:' in text
    rows = re.findall(r'<th>(.*?)</th>.*?il-number">([\d.]+)%', update.predictions or '')
    assert [name for name, _ in rows] == ['3'] * 5
    assert [float(score) for _, score in rows] == pytest.approx((100 * confident[:5]).tolist(), abs=0.06)
    (drawn,), (plain,) = pictures(update.predictions), pictures(update.picture)
    assert drawn != plain
    layers = controller.click(state, 0.5, 0.5).layers
    assert len(pictures(layers)) == len(residuals(layers)) == len(model.analysis_model.layers)
    check_threshold(controller, state, found.scores.numpy(), drawn)


def check_threshold(controller: Controller, state: SessionState, scores: np.ndarray, drawn: str) -> None:
    """The slider of the page changes the boxes of the session's image."""
    from inline.apis.serve.app import build_page

    assert controller.has_detector
    for threshold in (0.0, float(np.median(scores)), 1.0):
        update = controller.set_threshold(state, threshold)
        text = Page(update.predictions or '').text
        assert f'{np.sum(scores >= threshold)} objects with a score of at least {threshold:g}' in text
        assert pictures(update.predictions) != [drawn]
        assert (update.message, update.state, update.layers) == (None, None, None)
    assert 'No image yet' in (controller.set_threshold(None, 0.5).message or '')
    page = build_page(controller)
    slider = next(block for block in page.blocks.values() if block.elem_id == 'il-threshold')
    assert slider.visible
    (event,) = (event for event in page.fns.values() if (slider._id, 'change') in event.targets)
    values = event.fn(state, 1.0)
    assert sum('0 objects with a score of at least 1' in str(value) for value in values) == 1


def test_large_detections_are_kept_at_the_size_of_the_page() -> None:
    from mmdet.structures import DetDataSample

    masks = torch.zeros(1, 200, 400, dtype=torch.bool)
    masks[0, 40:80, 100:300] = True
    found = InstanceData(
        bboxes=torch.tensor([[100.0, 40.0, 300.0, 80.0]]),
        scores=torch.tensor([0.9]),
        labels=torch.tensor([1]),
        masks=masks,
    )
    sample = DetDataSample(metainfo={'ori_shape': (200, 400)}, pred_instances=found)
    source = ImageSource('a', array=np.zeros((200, 400, 3), np.uint8))
    large = Prediction(sample, source, Classes(tuple('01'), ((9, 9, 9), (200, 0, 0))), lambda one: one.array)
    small = shrink(large, 100)
    assert (small.shape, small.image.shape) == ((50, 100), (50, 100, 3))
    assert small.boxes.tolist() == [[25, 10, 75, 20]]
    assert small.masks.shape == (1, 50, 100)
    assert small.masks[0, 10:20, 25:75].all()
    assert small.masks.sum() == 10 * 50
    assert shrink(large, 400) is large
    found.pop('masks')
    large.sample.pred_instances = found[:0]
    assert shrink(large, 100).masks is None


def test_boxes_are_sorted_by_score() -> None:
    from mmdet.structures import DetDataSample

    found = InstanceData(scores=torch.tensor([0.4, 0.9, 0.1]), labels=torch.tensor([3, 7, 1]))
    sample, picture = DetDataSample(pred_instances=found), np.zeros((4, 4, 3), np.uint8)
    summary = html.summarize(sample, tuple('0123456789'), lambda: picture)
    assert summary.text == '2 objects with a score of at least 0.3'
    assert summary.scores == [('7', pytest.approx(0.9)), ('3', pytest.approx(0.4))]
    assert summary.picture is picture


def test_weights_are_red_blue_or_grey() -> None:
    """Four weights of 20 pixels on an image of 40×50; the last columns belong to the last weight."""
    image = np.full((40, 50, 3), 100, np.uint8)
    drawn = html.draw_weights(image, np.array([[3.0, 1.0], [-1.0, np.nan]]), 20).astype(int)
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
    # Positions that are not visible are dark, not coloured.
    assert drawn[97, 239].mean() < drawn[10, 100].mean() - 30


def test_errors_become_messages_without_details(
    controller: Controller,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert 'No image yet' in controller.click(None, 0.5, 0.5).message
    assert 'No image yet' in controller.select_head(None, 1).message
    (tmp_path / '<b>.jpg').write_bytes(b'no image')
    rejected = controller.upload(tmp_path / '<b>.jpg')
    assert 'role="alert"' in rejected.message
    assert '&lt;b&gt;.jpg' in rejected.message
    assert (rejected.state, rejected.picture, rejected.predictions, rejected.layers) == (
        None,
        None,
        None,
        None,
    )
    secret = f'{tmp_path}/secret'

    def fail(*_: object) -> None:
        raise RuntimeError(secret)

    monkeypatch.setattr('inline.apis.serve.controller.read_upload', fail)
    failed = controller.upload(tmp_path / 'photo.png')
    assert 'See the terminal of the server' in failed.message
    assert secret not in failed.message
    assert secret in capsys.readouterr().err
