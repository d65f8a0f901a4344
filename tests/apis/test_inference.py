"""InLineModel: its predictions equal the toolbox's for every form of input."""

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
from inline.apis import Predictions, PredictionStream
from inline.apis.inputs import InferencePipeline, find_images, unique_names
from inline.checkpoints.safetensors_format import write_checkpoint
from inline.utils.errors import UserError
from tests.apis.small_models import CLASSES, CONFIGS, read

TASKS = tuple(CONFIGS)


def predicted_values(sample: Any) -> dict[str, torch.Tensor]:
    if 'pred_score' in sample:
        return {'score': sample.pred_score, 'label': sample.pred_label}
    if 'pred_instances' in sample:
        found = sample.pred_instances
        return {'box': found.bboxes, 'score': found.scores, 'label': found.labels, 'mask': found.masks}
    return {'label': sample.pred_sem_seg.data}


def assert_same(one: Any, other: Any) -> None:
    for name, value in predicted_values(one).items():
        if name == 'mask':
            # Mask logits of an untrained head are close to the threshold: rounding can flip single pixels.
            assert (value != predicted_values(other)[name]).float().mean() < 0.01
        else:
            torch.testing.assert_close(value, predicted_values(other)[name], rtol=1e-4, atol=1e-4, msg=name)


@pytest.mark.parametrize('task', TASKS)
def test_predictions_equal_test_step_of_the_toolbox(
    models: dict[str, InLineModel], folder: Path, task: str
) -> None:
    model, path = models[task], folder / 'a' / 'b.png'
    (prediction,) = model(path)
    batch = pseudo_collate([InferencePipeline(model.cfg)(find_images(path)[0])])
    with torch.no_grad():
        (expected,) = model.model.test_step(batch)
    assert type(prediction.sample) is type(expected)
    assert_same(prediction.sample, expected)
    assert all(len(value) for value in predicted_values(expected).values())


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


@pytest.mark.parametrize('task', ['classification', 'segmentation'])
def test_batch_size_does_not_change_results_in_float64(
    models: dict[str, InLineModel], folder: Path, task: str
) -> None:
    """In float32, sums in another order give other last digits. mmcv's NMS for detectors has no float64."""
    model = models[task]
    network = model.model.double()
    hook = network.data_preprocessor.register_forward_hook(
        lambda _, __, output: {**output, 'inputs': output['inputs'].double()}
    )
    options = {'keep_logits': True} if task == 'segmentation' else {}
    try:
        one, three = (
            model(folder, batch_size=size, stream=False, progress=False, **options) for size in (1, 3)
        )
    finally:
        hook.remove()
        network.float()
    for single, batched in zip(one, three, strict=True):
        if task == 'classification':
            assert single.probs.dtype == np.float64
            np.testing.assert_allclose(single.probs, batched.probs, rtol=1e-12)
        else:
            # Logits are stored in float32.
            torch.testing.assert_close(single.seg_logits.data, batched.seg_logits.data, rtol=1e-6, atol=1e-7)
            assert np.array_equal(single.label_map, batched.label_map)


def test_file_array_and_grey_array_give_the_same_prediction(
    models: dict[str, InLineModel], folder: Path
) -> None:
    model, path = models['classification'], folder / 'a' / 'b.png'
    array = cv2.imread(str(path))
    opaque = np.dstack([array, np.full(array.shape[:2], 7, np.uint8)])
    from_file, from_array, from_opaque, swapped = model([str(path), array, opaque, array[..., ::-1]])
    assert_same(from_file.sample, from_array.sample)
    assert_same(from_file.sample, from_opaque.sample)
    # Arrays are BGR: swapping the channels gives another image.
    assert not torch.equal(from_file.pred_score, swapped.pred_score)
    grey = array[..., 1]
    flat, deep, colour = model([grey, grey[..., None], np.dstack([grey] * 3)])
    assert_same(flat.sample, colour.sample)
    assert_same(deep.sample, colour.sample)
    assert from_array.name == 'array_1'


def test_pillow_image_equals_its_file(models: dict[str, InLineModel], tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (64, 96, 3)).astype(np.uint8)
    turned = PILImage.Exif()
    turned[ExifTags.Base.Orientation] = 6
    PILImage.fromarray(pixels).save(tmp_path / 'turned.png', exif=turned)
    PILImage.fromarray(pixels[..., 0]).save(tmp_path / 'grey.png')
    model = models['classification']
    for name in ('turned.png', 'grey.png'):
        with PILImage.open(tmp_path / name) as image:
            from_file, from_pillow = model([tmp_path / name, image], progress=False)
            assert torch.equal(from_file.pred_score, from_pillow.pred_score)
            assert from_file.image.shape == from_pillow.image.shape
            assert torch.equal(model(image)[0].pred_score, from_file.pred_score)


def test_folder_is_computed_lazily(
    models: dict[str, InLineModel], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_files: list[str] = []
    original = InferencePipeline.__call__

    def recording(self: InferencePipeline, source: Any, index: int) -> Any:
        read_files.append(source.name)
        return original(self, source, index)

    monkeypatch.setattr(InferencePipeline, '__call__', recording)
    stream = models['classification'](folder, progress=False)
    assert isinstance(stream, PredictionStream)
    assert stream.total == 5
    assert read_files == []
    assert next(iter(stream)).name == 'a/b'
    # The next image is read ahead: it might belong to the same batch.
    assert read_files == ['a/b', 'a/d']
    # Every iteration starts again.
    first, second = list(stream), list(stream)
    assert len(first) == len(second) == len(stream) == 5
    for one, other in zip(first, second, strict=True):
        assert one.name == other.name
        assert torch.equal(one.pred_score, other.pred_score)
    # An index computes one image only.
    del read_files[:]
    assert stream[-1].name == 'f'
    assert [prediction.name for prediction in stream[1:3]] == ['a/d', 'c/b']
    assert read_files == ['f', 'a/d', 'c/b']
    assert stream[2].image_id == 2
    assert repr(stream) == 'PredictionStream(5 images, computed on iteration)'
    files = [folder / 'f.bmp', folder / 'a' / 'b.png']
    assert isinstance(models['classification'](files, stream=True, progress=False), PredictionStream)
    assert isinstance(models['classification'](folder, stream=False, progress=False), Predictions)


def test_unreadable_image_raises_or_is_skipped(
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
def test_too_small_image_raises_or_is_skipped(
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


def test_missing_file_raises_before_the_first_prediction(
    models: dict[str, InLineModel], folder: Path
) -> None:
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
        ([3], 'int is not an image'),
        (3, 'int is not an image'),
        (None, 'NoneType is not an image'),
    ],
)
def test_invalid_input_raises(models: dict[str, InLineModel], given: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        models['classification'](given)


def test_empty_folder_raises(models: dict[str, InLineModel], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r'contains no images: the suffixes are \.bmp'):
        models['classification'](tmp_path)


def test_invalid_options_raise(models: dict[str, InLineModel]) -> None:
    image = np.zeros((88, 88, 3), np.uint8)
    with pytest.raises(UserError, match='tile is for segmentation only: this is a detection model'):
        models['detection'](image, tile=64)
    with pytest.raises(UserError, match='overlap 8 requires tile'):
        models['segmentation'](image, overlap=8)
    with pytest.raises(UserError, match='batch_size 0'):
        models['segmentation'](image, batch_size=0)


def test_classes_come_from_the_checkpoint_or_the_config(
    models: dict[str, InLineModel],
) -> None:
    for task, model in models.items():
        assert model.classes.names == CLASSES[task]
        assert len(set(model.classes.palette)) == len(CLASSES[task])
    untrained = InLineModel(read('segmentation'), device='cpu')
    assert untrained.classes.names == ('background', *'0123456789')
    assert untrained.classes.palette[1] == (230, 25, 75)
    # The class folders of the data are missing: labels become names.
    assert InLineModel(read('classification'), device='cpu').classes.names == tuple('0123456789')


def test_classes_come_from_safetensors_metadata(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    content = torch.load(checkpoints['segmentation'], weights_only=True)
    content['meta']['dataset_meta']['palette'] = [(i, 0, 255 - i) for i in range(11)]
    write_checkpoint(content, tmp_path / 'a.safetensors')
    cfg = read('segmentation')
    # As in a config for custom data: only the checkpoint knows the classes.
    cfg.custom_data = 'label-maps'
    cfg.model.decode_head.num_classes = 3
    classes = InLineModel(cfg, tmp_path / 'a.safetensors', 'cpu').classes
    assert classes.names == CLASSES['segmentation']
    assert classes.palette[2] == (2, 0, 253)


def test_config_for_custom_data_takes_classes_from_the_checkpoint(
    checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    cfg = read('segmentation')
    cfg.custom_data = 'label-maps'
    cfg.model.decode_head.num_classes = 3
    cfg.train_dataloader.dataset.data_root = str(tmp_path / 'gone')
    assert InLineModel(cfg, checkpoints['segmentation'], 'cpu').classes.names == CLASSES['segmentation']
    assert cfg.model.decode_head.num_classes == 3


def test_invalid_constructor_arguments_raise(checkpoints: dict[str, Path]) -> None:
    with pytest.raises(UserError, match=r'did you mean .*inline-pvt-micro_digits'):
        InLineModel('inline-pvt-mikro_digits')
    with pytest.raises(UserError, match=r"'cosformer' is the name of \d+ files: give a path, such as abl"):
        InLineModel('cosformer')
    with pytest.raises(UserError, match=r"config 'gone\.py' does not exist"):
        InLineModel('gone.py')
    for path in (checkpoints['classification'], 'gone.pth'):
        with pytest.raises(UserError, match=r"\.pth' looks like a checkpoint: CONFIG comes first"):
            InLineModel(path, CONFIGS['classification'])
    with pytest.raises(UserError, match='does not match the model: '):
        InLineModel(CONFIGS['classification'], checkpoints['segmentation'])
    with pytest.raises(UserError, match=r'device .gpu. is not available'):
        InLineModel(CONFIGS['classification'], checkpoints['classification'], 'gpu')


def test_output_names_are_unique() -> None:
    paths = [Path(name) for name in ('x/a/b.jpg', 'x/c/b.jpg', 'x/c/b.PNG', 'x/c/b_jpg.jpg', 'x/c/b.jpg')]
    names = unique_names(paths)
    assert names == ['a/b', 'c/b_jpg', 'c/b_PNG', 'c/b_jpg_2', 'c/b_jpg_3']
    assert unique_names([Path('x/B.jpg'), Path('x/b.jpg')]) == ['B_jpg', 'b_jpg_2']
    assert unique_names([Path('x/b.jpg')]) == ['b']


def test_unknown_attribute_of_the_package_raises() -> None:
    with pytest.raises(AttributeError, match="'inline' has no attribute 'OutLineModel'"):
        _ = inline.OutLineModel
