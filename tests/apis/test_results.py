"""Predictions: drawing, saving and showing them."""

from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest

from inline import InLineModel
from inline.utils.errors import UserError
from tests.apis.small_models import CONFIGS

TASKS = tuple(CONFIGS)


@pytest.fixture
def no_display(monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib.pyplot as plt

    monkeypatch.setattr(plt, 'get_backend', lambda: 'agg')


@pytest.mark.parametrize('task', TASKS)
@pytest.mark.usefixtures('no_display')
def test_saved_pictures_show_the_prediction_enlarged(
    models: dict[str, InLineModel], folder: Path, tmp_path: Path, task: str
) -> None:
    path = folder / 'a' / 'b.png'
    predictions = models[task]([path, folder / 'c' / 'b.png'], progress=False)
    assert [saved.relative_to(tmp_path) for saved in predictions.save(tmp_path / 'out', 0.0)] == [
        Path('out/a/b.png'),
        Path('out/c/b.png'),
    ]
    drawn = cv2.imread(str(tmp_path / 'out' / 'a' / 'b.png'))
    assert drawn.shape[1] == 6 * 88
    plain = cv2.resize(cv2.imread(str(path)), None, fx=6, fy=6, interpolation=cv2.INTER_CUBIC)
    changed = np.any(drawn[: len(plain)] != plain, axis=-1).mean()
    # Scores are below the image, boxes and label maps on it.
    assert (changed == 0) == (task == 'classification')
    assert (len(drawn) > len(plain)) == (task != 'detection')
    assert predictions[:1].save(tmp_path / 'one.jpg') == [tmp_path / 'one.jpg']
    for several in (predictions, models[task](folder, progress=False)):
        with pytest.raises(UserError, match=r"two\.png' is an image file: give a folder for \d images"):
            several.save(tmp_path / 'two.png')
    assert not (tmp_path / 'two.png').exists()
    with pytest.raises(UserError, match='is the input image'):
        predictions[0].save(path)
    with pytest.raises(UserError, match='must have the suffix of an image'):
        predictions[0].save(tmp_path / 'picture')
    with pytest.raises(UserError, match='no display is available'):
        predictions.show()


@pytest.fixture
def interactive_backend() -> Iterator[None]:
    """matplotlib's template backend, which accepts figures and opens no window."""
    import matplotlib.pyplot as plt

    before = plt.get_backend()
    plt.switch_backend('template')
    yield
    plt.close('all')
    plt.switch_backend(before)


@pytest.mark.usefixtures('interactive_backend')
def test_show_opens_a_figure_per_image_and_notebooks_get_png(
    models: dict[str, InLineModel], folder: Path
) -> None:
    import matplotlib.pyplot as plt

    predictions = models['detection']([folder / 'a' / 'b.png', folder / 'c' / 'b.png'], progress=False)
    predictions.show(score_thr=0.0)
    assert plt.get_figlabels() == ['a/b', 'c/b']
    for prediction in predictions:
        (shown,) = plt.figure(prediction.name).axes[0].images
        assert np.array_equal(shown.get_array(), prediction.draw(score_thr=0.0)[..., ::-1])
        png = np.frombuffer(prediction._repr_png_(), np.uint8)
        assert np.array_equal(cv2.imdecode(png, cv2.IMREAD_COLOR), prediction.draw())


def test_boxes_below_the_threshold_are_not_drawn(models: dict[str, InLineModel], folder: Path) -> None:
    (prediction,) = models['detection'](folder / 'a' / 'b.png')
    assert len(prediction.pred_instances)
    plain = cv2.resize(prediction.image, None, fx=6, fy=6, interpolation=cv2.INTER_CUBIC)
    assert np.array_equal(prediction.draw(score_thr=1.0), plain)
    assert not np.array_equal(prediction.draw(score_thr=0.0), plain)
