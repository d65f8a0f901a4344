"""Images in every form give the toolbox's own predictions, whatever else is in the call."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from mmengine.dataset import pseudo_collate
from PIL import ExifTags
from PIL import Image as PILImage

import inline
from inline import InLineModel
from inline.errors import UserError
from inline.inference import PredictionStream
from inline.inference.inputs import Preparation, find_sources, unique_names
from inline.inference.loading import distinct_colours
from inline.safetensors_files import write_checkpoint
from tests.inference.small_models import CLASSES, CONFIGS, read

TASKS = tuple(CONFIGS)


def numbers(sample: Any) -> dict[str, torch.Tensor]:
    """All that a sample predicts."""
    if 'pred_score' in sample:
        return {'score': sample.pred_score, 'label': sample.pred_label}
    if 'pred_instances' in sample:
        found = sample.pred_instances
        return {'box': found.bboxes, 'score': found.scores, 'label': found.labels, 'mask': found.masks}
    return {'label': sample.pred_sem_seg.data}


def assert_same(one: Any, other: Any) -> None:
    for name, value in numbers(one).items():
        if name == 'mask':
            # The masks of an untrained head are near their threshold: rounding decides some pixels.
            assert (value != numbers(other)[name]).float().mean() < 0.01
        else:
            torch.testing.assert_close(value, numbers(other)[name], rtol=1e-4, atol=1e-4, msg=name)


@pytest.mark.parametrize('task', TASKS)
def test_predictions_are_those_of_the_toolbox(
    models: dict[str, InLineModel], folder: Path, task: str
) -> None:
    model, path = models[task], folder / 'a' / 'b.png'
    (prediction,) = model(path)
    batch = pseudo_collate([Preparation(model.cfg)(find_sources(path)[0], 0)])
    with torch.no_grad():
        (expected,) = model.model.test_step(batch)
    assert type(prediction.sample) is type(expected)
    assert_same(prediction.sample, expected)
    assert all(len(value) for value in numbers(expected).values())


@pytest.mark.parametrize('task', TASKS)
def test_batches_of_mixed_sizes_equal_single_images(
    models: dict[str, InLineModel], folder: Path, task: str
) -> None:
    model = models[task]
    singles = [model(path)[0] for path in sorted(folder.rglob('*.*'))]
    batched = list(model(folder, batch_size=3, progress=False))
    assert [prediction.name for prediction in batched] == ['a/b', 'a/d', 'c/b', 'c/e', 'f']
    for one, other in zip(singles, batched, strict=True):
        assert one.source.path == other.source.path
        assert_same(one.sample, other.sample)


def test_a_file_its_array_and_a_grey_array_agree(models: dict[str, InLineModel], folder: Path) -> None:
    model, path = models['classification'], folder / 'a' / 'b.png'
    array = cv2.imread(str(path))
    opaque = np.dstack([array, np.full(array.shape[:2], 7, np.uint8)])
    from_file, from_array, from_opaque, swapped = model([str(path), array, opaque, array[..., ::-1]])
    assert_same(from_file.sample, from_array.sample)
    assert_same(from_file.sample, from_opaque.sample)
    # Arrays are BGR: the same numbers as RGB are another image.
    assert not torch.equal(from_file.pred_score, swapped.pred_score)
    grey = array[..., 1]
    flat, deep, colour = model([grey, grey[..., None], np.dstack([grey] * 3)])
    assert_same(flat.sample, colour.sample)
    assert_same(deep.sample, colour.sample)
    assert from_array.name == 'array_1'


def test_an_image_of_pillow_is_that_of_its_file(models: dict[str, InLineModel], tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (64, 96, 3)).astype(np.uint8)
    turned = PILImage.Exif()
    turned[ExifTags.Base.Orientation] = 6
    PILImage.fromarray(pixels).save(tmp_path / 'turned.png', exif=turned)
    PILImage.fromarray(pixels[..., 0]).save(tmp_path / 'grey.png')
    model = models['classification']
    for name in ('turned.png', 'grey.png'):
        with PILImage.open(tmp_path / name) as image:
            of_file, of_pillow = model([tmp_path / name, image], progress=False)
            assert torch.equal(of_file.pred_score, of_pillow.pred_score)
            assert of_file.image.shape == of_pillow.image.shape
            assert torch.equal(model(image)[0].pred_score, of_file.pred_score)


def test_a_folder_is_computed_as_it_is_asked_for(
    models: dict[str, InLineModel], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_files: list[str] = []
    original = Preparation.__call__

    def watched(self: Preparation, source: Any, index: int) -> Any:
        read_files.append(source.name)
        return original(self, source, index)

    monkeypatch.setattr(Preparation, '__call__', watched)
    stream = models['classification'](folder, progress=False)
    assert isinstance(stream, PredictionStream)
    assert stream.total == 5
    assert read_files == []
    assert next(stream).name == 'a/b'
    # One image ahead, to see whether it belongs to the same batch.
    assert read_files == ['a/b', 'a/d']
    assert len(list(stream)) == 4
    assert list(stream) == []


def test_a_bad_image_is_named_or_skipped(
    models: dict[str, InLineModel], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / 'c' / 'a.png').write_bytes(b'no image')
    model = models['classification']
    with pytest.raises(UserError, match=r'c/a\.png.* cannot be read: not an image'):
        model(sorted(folder.rglob('*.png')), progress=False)
    stream = model(folder, skip_bad=True, progress=False)
    assert [prediction.name for prediction in stream] == ['a/b', 'a/d', 'c/b', 'c/e', 'f']
    assert len(stream.skipped) == 1
    assert 'c/a.png' in stream.skipped[0]
    assert capsys.readouterr().err.strip() == f'skipped: {stream.skipped[0]}'


@pytest.mark.parametrize('batch_size', [1, 4])
def test_an_image_that_is_too_small_is_named_or_skipped(
    models: dict[str, InLineModel], folder: Path, batch_size: int
) -> None:
    for name in ('a.png', 'b.png'):
        cv2.imwrite(str(folder / name), np.zeros((20, 20, 3), np.uint8))
    model = models['segmentation']
    with pytest.raises(
        UserError, match=r"a\.png' cannot be used: image of 20×20 pixels: each side must be at least 32"
    ):
        model([folder / 'a.png'], full_size=True)
    stream = model(folder, full_size=True, skip_bad=True, batch_size=batch_size, progress=False)
    assert [prediction.name for prediction in stream] == ['a/b', 'a/d', 'c/b', 'c/e', 'f']
    assert [Path(line.split("'")[1]).name for line in stream.skipped] == ['a.png', 'b.png']


def test_a_missing_file_stops_a_list_before_it_begins(models: dict[str, InLineModel], folder: Path) -> None:
    with pytest.raises(UserError, match=r"image '.*gone\.png' does not exist"):
        models['classification']([folder / 'f.bmp', folder / 'gone.png'])
    kept = models['classification']([folder / 'f.bmp', folder / 'gone.png'], skip_bad=True, progress=False)
    assert [prediction.name for prediction in kept] == ['f']
    assert len(kept.skipped) == 1


@pytest.mark.parametrize(
    ('given', 'message'),
    [
        (np.zeros((8, 8, 3), np.float32), 'array of float32: must be uint8'),
        (np.zeros((8, 8, 2), np.uint8), r'array of shape \(8, 8, 2\)'),
        (np.zeros((0, 8, 3), np.uint8), r'array of shape \(0, 8, 3\)'),
        ([], 'there are no images'),
        ([3], 'int is no image'),
        (3, 'int is no image'),
        (None, 'NoneType is no image'),
    ],
)
def test_what_is_no_image_is_told(models: dict[str, InLineModel], given: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        models['classification'](given)


def test_an_empty_folder_is_told(models: dict[str, InLineModel], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r'has no images: looked for \.bmp'):
        models['classification'](tmp_path)


def test_options_of_segmentation_are_refused_elsewhere(models: dict[str, InLineModel]) -> None:
    image = np.zeros((88, 88, 3), np.uint8)
    with pytest.raises(UserError, match='tile is for segmentation: this model does detection'):
        models['detection'](image, tile=64)
    with pytest.raises(UserError, match='overlap 8 needs tile'):
        models['segmentation'](image, overlap=8)
    with pytest.raises(UserError, match='batch_size 0'):
        models['segmentation'](image, batch_size=0)


def test_names_and_colours_come_from_the_checkpoint_or_else_the_config(
    models: dict[str, InLineModel],
) -> None:
    for task, model in models.items():
        assert model.classes.names == CLASSES[task]
        assert len(set(model.classes.palette)) == len(CLASSES[task])
    untrained = InLineModel(read('segmentation'), device='cpu')
    assert untrained.classes.names == ('background', *'0123456789')
    assert untrained.classes.palette[1] == (230, 25, 75)
    # The folders of a classifier's data would tell its classes, and they are not here.
    assert InLineModel(read('classification'), device='cpu').classes.names == tuple('0123456789')


def test_a_safetensors_file_tells_the_classes_as_the_checkpoint_does(
    checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    content = torch.load(checkpoints['segmentation'], weights_only=True)
    content['meta']['dataset_meta']['palette'] = [(i, 0, 255 - i) for i in range(11)]
    write_checkpoint(content, tmp_path / 'a.safetensors')
    cfg = read('segmentation')
    # As in a config on one's own data, whose classes only the checkpoint knows.
    cfg.own_data = 'label-maps'
    cfg.model.decode_head.num_classes = 3
    classes = InLineModel(cfg, tmp_path / 'a.safetensors', 'cpu').classes
    assert classes.names == CLASSES['segmentation']
    assert classes.palette[2] == (2, 0, 253)


def test_colours_are_distinct_for_many_classes() -> None:
    assert len(set(distinct_colours(150))) == 150


def test_a_config_on_ones_own_data_takes_its_classes_from_the_checkpoint(
    checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    cfg = read('segmentation')
    cfg.own_data = 'label-maps'
    cfg.model.decode_head.num_classes = 3
    cfg.train_dataloader.dataset.data_root = str(tmp_path / 'gone')
    assert InLineModel(cfg, checkpoints['segmentation'], 'cpu').classes.names == CLASSES['segmentation']
    assert cfg.model.decode_head.num_classes == 3


def test_configs_are_found_by_name(checkpoints: dict[str, Path]) -> None:
    with pytest.raises(UserError, match=r'did you mean .*inline-pvt-micro_digits'):
        InLineModel('inline-pvt-mikro_digits')
    with pytest.raises(UserError, match=r"'cosformer' is the name of \d+ files: choose by path, such as abl"):
        InLineModel('cosformer')
    with pytest.raises(UserError, match=r"config 'gone\.py' does not exist"):
        InLineModel('gone.py')
    for path in (checkpoints['classification'], 'gone.pth'):
        with pytest.raises(UserError, match=r"\.pth' looks like a checkpoint: CONFIG comes first"):
            InLineModel(path, CONFIGS['classification'])
    with pytest.raises(UserError, match='is of another model than the config'):
        InLineModel(CONFIGS['classification'], checkpoints['segmentation'])
    with pytest.raises(UserError, match=r'device .gpu. cannot be used'):
        InLineModel(CONFIGS['classification'], checkpoints['classification'], 'gpu')


def test_names_never_collide() -> None:
    paths = [Path(name) for name in ('x/a/b.jpg', 'x/c/b.jpg', 'x/c/b.PNG', 'x/c/b_jpg.jpg', 'x/c/b.jpg')]
    names = unique_names(paths)
    assert names == ['a/b', 'c/b_jpg', 'c/b_PNG', 'c/b_jpg_2', 'c/b_jpg_3']
    assert unique_names([Path('x/B.jpg'), Path('x/b.jpg')]) == ['B_jpg', 'b_jpg_2']
    assert unique_names([Path('x/b.jpg')]) == ['b']


@pytest.fixture
def screenless(monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib.pyplot as plt

    monkeypatch.setattr(plt, 'get_backend', lambda: 'agg')


@pytest.mark.parametrize('task', TASKS)
@pytest.mark.usefixtures('screenless')
def test_pictures_are_enlarged_and_show_what_was_found(
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
    # Scores stand below the image, the others on it.
    assert (changed == 0) == (task == 'classification')
    assert (len(drawn) > len(plain)) == (task != 'detection')
    assert predictions[:1].save(tmp_path / 'one.jpg') == [tmp_path / 'one.jpg']
    for several in (predictions, models[task](folder, progress=False)):
        with pytest.raises(UserError, match=r"two\.png' is the name of one image: give a folder for \d of"):
            several.save(tmp_path / 'two.png')
    assert not (tmp_path / 'two.png').exists()
    with pytest.raises(UserError, match='is the image itself'):
        predictions[0].save(path)
    with pytest.raises(UserError, match='must end as an image does'):
        predictions[0].save(tmp_path / 'picture')
    with pytest.raises(UserError, match='there is no screen'):
        predictions.show()


@pytest.fixture
def windowless() -> Iterator[None]:
    """matplotlib's own stand-in for a screen: it takes figures and opens no window."""
    import matplotlib.pyplot as plt

    before = plt.get_backend()
    plt.switch_backend('template')
    yield
    plt.close('all')
    plt.switch_backend(before)


@pytest.mark.usefixtures('windowless')
def test_pictures_are_shown_in_a_window_each_and_in_notebooks(
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


def test_boxes_below_the_score_are_not_drawn(models: dict[str, InLineModel], folder: Path) -> None:
    (prediction,) = models['detection'](folder / 'a' / 'b.png')
    assert len(prediction.pred_instances)
    plain = cv2.resize(prediction.image, None, fx=6, fy=6, interpolation=cv2.INTER_CUBIC)
    assert np.array_equal(prediction.draw(score_thr=1.0), plain)
    assert not np.array_equal(prediction.draw(score_thr=0.0), plain)


def test_the_package_has_nothing_else_to_import() -> None:
    with pytest.raises(AttributeError, match="'inline' has no attribute 'OutLineModel'"):
        _ = inline.OutLineModel
