"""Predictions as arrays, dictionaries, JSON, COCO results, pandas tables and supervision's detections."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from mmengine.structures import InstanceData
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO

from inline import InLineModel
from inline.apis import Prediction, Predictions
from inline.apis.conversion import coco_images
from inline.apis.inputs import ImageSource
from inline.apis.loading import Classes, _classes
from inline.utils.errors import UserError
from tests.apis.small_models import CLASSES, CONFIGS, read, write_images

TASKS = tuple(CONFIGS)
FIELDS = {
    'classification': ('probs', 'top1', 'top5'),
    'detection': ('boxes', 'scores', 'labels', 'masks'),
    'segmentation': ('label_map',),
}


@pytest.fixture(scope='module')
def predictions(
    models: dict[str, InLineModel], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Predictions]:
    """Predictions for two images of 88×88 and of 64 rows × 96 columns."""
    folder = write_images(tmp_path_factory.mktemp('images'))
    files = [folder / 'a' / 'b.png', folder / 'c' / 'b.png']
    return {task: model(files, progress=False) for task, model in models.items()}


def test_arrays_equal_the_data_samples(predictions: dict[str, Predictions]) -> None:
    for task, found in predictions.items():
        one = found[1]
        assert (one.task, one.names, one.shape) == (task, CLASSES[task], (64, 96))
        # Arrays of other tasks are None.
        for other, names in FIELDS.items():
            assert all((getattr(one, name) is None) == (other != task) for name in names)
    one = predictions['classification'][1]
    assert np.array_equal(one.probs, one.pred_score.numpy())
    assert one.top1 == int(one.pred_label) == one.top5[0]
    assert one.top5.tolist() == one.pred_score.topk(5).indices.tolist()
    one = predictions['detection'][1]
    count = len(one.pred_instances)
    assert count
    assert (one.boxes.shape, one.scores.shape, one.labels.shape) == ((count, 4), (count,), (count,))
    assert np.array_equal(one.boxes, one.pred_instances.bboxes.numpy())
    assert (one.masks.shape, one.masks.dtype) == ((count, 64, 96), bool)
    one = predictions['segmentation'][1]
    assert np.array_equal(one.label_map, one.pred_sem_seg.data[0].numpy())
    assert one.label_map.shape == (64, 96)


def test_single_prediction_has_its_attributes_on_the_list(predictions: dict[str, Predictions]) -> None:
    several = predictions['detection']
    assert np.array_equal(several[:1].boxes, several[0].boxes)
    assert several[:1].pred_instances is several[0].pred_instances
    with pytest.raises(AttributeError, match=r'2 predictions: use predictions\[i\]\.boxes'):
        _ = several.boxes
    with pytest.raises(AttributeError, match='_secret'):
        _ = several[:1]._secret


def test_repr_shows_what_was_found(predictions: dict[str, Predictions]) -> None:
    one = predictions['classification'][0]
    best = ', '.join(f'{one.names[i]}: {one.probs[i]:.1%}' for i in one.top5[:3])
    assert repr(one) == f"Prediction('a/b', 88×88 pixels, classification: {best}, …)"
    one = predictions['detection'][1]
    assert f"Prediction('c/b', 96×64 pixels, detection: {len(one.scores)} objects (" in repr(one)
    assert f'{one.names[one.labels[0]]}: {one.scores[0]:.2f}, ' in repr(one)
    one = predictions['segmentation'][0]
    label = np.bincount(one.label_map.ravel()).argmax()
    assert f'segmentation: {one.names[label]}: {(one.label_map == label).mean():.1%}' in repr(one)
    assert repr(predictions['segmentation']).count('Prediction(') == 2
    assert '… 15 more' in repr(Predictions([one] * 25))


@pytest.mark.parametrize('task', TASKS)
def test_json_contains_the_exact_values(predictions: dict[str, Predictions], task: str) -> None:
    found = predictions[task]
    records = json.loads(found.to_json(), parse_constant=pytest.fail)
    assert records == found.to_dict() == [json.loads(one.to_json()) for one in found]
    for one, record in zip(found, records, strict=True):
        assert record['task'] == task
        assert record['file'] == str(one.source.path)
        assert (record['height'], record['width']) == one.shape
        entries = record['predictions']
        assert [entry['name'] for entry in entries] == [one.names[entry['label']] for entry in entries]
        if task == 'classification':
            assert [entry['label'] for entry in entries] == one.top5.tolist()
            assert np.array_equal(np.float32([entry['score'] for entry in entries]), one.probs[one.top5])
            continue
        masks = np.array([coco_mask.decode(entry['mask']) for entry in entries]).astype(bool)
        if task == 'detection':
            assert np.array_equal(np.float32([entry['box'] for entry in entries]), one.boxes)
            assert np.array_equal(np.float32([entry['score'] for entry in entries]), one.scores)
            assert np.array_equal(masks, one.masks)
        else:
            assert sum(entry['pixels'] for entry in entries) == one.label_map.size
            assert sum(entry['share'] for entry in entries) == pytest.approx(1)
            labels = np.array([entry['label'] for entry in entries])
            assert np.array_equal((labels[:, None, None] * masks).sum(axis=0), one.label_map)


def make_detection(classes: Classes, image_id: int = 0) -> Prediction:
    """Two boxes without masks on an image of 10×20 pixels."""
    from mmdet.structures import DetDataSample

    found = InstanceData(
        bboxes=torch.tensor([[1.0, 2.0, 4.0, 8.0], [0.0, 0.0, 20.0, 10.0]]),
        scores=torch.tensor([0.25, 0.75]),
        labels=torch.tensor([1, 0]),
    )
    sample = DetDataSample(metainfo={'ori_shape': (10, 20)}, pred_instances=found)
    return Prediction(sample, ImageSource('a'), classes, lambda _: np.zeros((10, 20, 3), np.uint8), image_id)


def test_nan_is_refused_in_json() -> None:
    prediction = make_detection(Classes(('cat', 'dog'), ((1, 2, 3), (4, 5, 6))))
    prediction.pred_instances.bboxes[0, 1] = torch.nan
    with pytest.raises(UserError, match="prediction for 'a' contains NaN or infinity"):
        prediction.to_json()


@pytest.mark.parametrize('task', ['detection', 'segmentation'])
def test_pycocotools_reads_the_results(
    predictions: dict[str, Predictions], task: str, tmp_path: Path
) -> None:
    found, results = predictions[task], predictions[task].to_coco()
    images = [{'id': one.image_id, 'height': one.shape[0], 'width': one.shape[1]} for one in found]
    ids = found[0].classes.category_ids
    (tmp_path / 'images.json').write_text(json.dumps(coco_images(images, found[0].names, ids)))
    (tmp_path / 'results.json').write_text(json.dumps(results, allow_nan=False))
    loaded = COCO(str(tmp_path / 'images.json')).loadRes(str(tmp_path / 'results.json'))
    assert len(loaded.anns) == len(results) > 0
    assert {record['image_id'] for record in results} == {0, 1}
    for record in results:
        assert record['category_name'] == loaded.cats[record['category_id']]['name']
    if task == 'detection':
        x1, y1, x2, y2 = found[0].boxes[0].tolist()
        assert results[0]['bbox'] == [x1, y1, x2 - x1, y2 - y1]
        assert results[0]['category_id'] == found[0].labels[0] + 1
    assert {record['image_id'] for record in found[0].to_coco(image_id=42)} == {42}


def test_category_ids_come_from_the_checkpoint_or_the_config(tmp_path: Path) -> None:
    cfg = read('detection')
    stored = {'classes': CLASSES['detection'], 'category_ids': list(range(20, 30))}
    assert _classes(cfg, stored).category_ids == tuple(range(20, 30))
    dataset = cfg.test_dataloader.dataset
    dataset.update(data_root=str(tmp_path), ann_file='val.json')
    categories = [{'id': 100 - i, 'name': name} for i, name in enumerate(CLASSES['detection'])]
    (tmp_path / 'val.json').write_text(json.dumps({'categories': categories}))
    del stored['category_ids']
    assert _classes(cfg, stored).category_ids == tuple(range(100, 90, -1))


def test_category_ids_follow_the_data(tmp_path: Path) -> None:
    names, palette = ('cat', 'dog'), ((1, 2, 3), (4, 5, 6))
    annotations = tmp_path / 'instances.json'
    annotations.write_text('{"categories": [{"id": 7, "name": "dog"}, {"id": 3, "name": "cat"}]}')
    gone = tmp_path / 'gone.json'
    for classes, expected in (
        (Classes(names, palette, (5, 9), (annotations,)), (5, 9)),
        (Classes(names, palette, (), (gone, annotations)), (3, 7)),
        (Classes(('cat', 'cow'), palette, (), (annotations,)), (1, 2)),
    ):
        assert classes.category_ids == expected
        # The first box has label 1.
        records = make_detection(classes).to_coco()
        assert [record['category_id'] for record in records] == [expected[1], expected[0]]


def test_classification_has_no_coco_format(predictions: dict[str, Predictions]) -> None:
    with pytest.raises(UserError, match='to_coco is for detection and segmentation'):
        predictions['classification'].to_coco()


class Table:
    """Stands in for a DataFrame."""

    def __init__(self, rows: list[dict[str, Any]], columns: list[str]) -> None:
        self.columns = columns
        self.rows = [[row[column] for column in columns] for row in rows]


def test_tables_have_a_row_per_class_or_object(
    predictions: dict[str, Predictions], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, 'pandas', SimpleNamespace(DataFrame=Table))
    table = predictions['classification'].to_pandas()
    assert table.columns == ['image', 'label', 'name', 'score']
    assert [row[0] for row in table.rows] == ['a/b'] * 5 + ['c/b'] * 5
    table = predictions['detection'][1].to_pandas()
    assert table.columns == ['image', 'label', 'name', 'score', 'x1', 'y1', 'x2', 'y2']
    assert [row[4:] for row in table.rows] == predictions['detection'][1].boxes.tolist()
    table = predictions['segmentation'][0].to_pandas()
    assert table.columns == ['image', 'label', 'name', 'pixels', 'share']
    assert sum(row[3] for row in table.rows) == 88 * 88
    empty = make_detection(Classes(('cat', 'dog'), ((1, 2, 3), (4, 5, 6))))
    empty.sample.pred_instances = empty.pred_instances[:0]
    assert (len(empty.to_pandas().columns), empty.to_pandas().rows) == (8, [])


def test_supervision_gets_boxes_masks_and_names(
    predictions: dict[str, Predictions], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a module in place of supervision; its constructors take these arguments."""
    fake = SimpleNamespace(Detections=SimpleNamespace, Classifications=SimpleNamespace)
    monkeypatch.setitem(sys.modules, 'supervision', fake)
    one = predictions['detection'][0]
    found = one.to_supervision()
    assert np.array_equal(found.xyxy, one.boxes)
    assert np.array_equal(found.mask, one.masks)
    assert np.array_equal(found.confidence, one.scores)
    assert np.array_equal(found.class_id, one.labels)
    assert found.data['class_name'].tolist() == [one.names[label] for label in one.labels]
    one = predictions['classification'][0]
    found = one.to_supervision()
    assert np.array_equal(found.confidence[found.class_id], one.probs)
    first, second = predictions['segmentation'].to_supervision()
    assert (first.mask.sum(axis=0) == 1).all()
    assert second.mask.shape[1:] == (64, 96)
    for (x1, y1, x2, y2), mask in zip(second.xyxy.astype(int), second.mask, strict=True):
        assert mask[y1:y2, x1:x2].sum() == mask.sum()
        assert mask[y1].any()
        assert mask[:, x2 - 1].any()


@pytest.mark.parametrize('package', ['pandas', 'supervision'])
def test_missing_package_gives_one_line(
    predictions: dict[str, Predictions], package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf'to_{package} requires {package} \(.*\): pip install {package}'):
        getattr(predictions['detection'][0], f'to_{package}')()


def test_threshold_and_number_of_results(models: dict[str, InLineModel], folder: Path) -> None:
    model, path = models['detection'], folder / 'a' / 'b.png'
    all_boxes = model(path)[0]
    threshold = float(np.median(all_boxes.scores))
    kept = model(path, score_thr=threshold)[0]
    assert 0 < len(kept.scores) < len(all_boxes.scores)
    assert np.array_equal(kept.boxes, all_boxes.boxes[all_boxes.scores >= threshold])
    assert len(kept.masks) == len(kept.pred_instances) == len(kept.scores)
    # Pictures use the threshold of the call.
    assert np.array_equal(kept.draw(), all_boxes.draw(threshold))
    assert not np.array_equal(kept.draw(), all_boxes.draw())
    best = model(path, top_k=3)[0]
    assert np.array_equal(best.scores, np.sort(all_boxes.scores)[::-1][:3])
    assert len(model(path, score_thr=1)[0].scores) == 0
    listed = models['classification'](path, top_k=2)[0]
    assert len(listed.to_dict()['predictions']) == 2
    assert len(listed.draw()) < len(models['classification'](path)[0].draw())
    assert len(listed.probs) == 10


@pytest.mark.parametrize(
    ('task', 'options', 'message'),
    [
        (
            'classification',
            {'score_thr': 0.5},
            'score_thr is for detection only: this is a classification model',
        ),
        ('segmentation', {'top_k': 3}, 'top_k is for detection and classification only'),
        ('detection', {'score_thr': 2}, 'score_thr 2: must be from 0 to 1'),
        ('detection', {'score_thr': '0.5'}, "score_thr '0.5': must be a number"),
        ('detection', {'score_thr': float('nan')}, 'score_thr nan: must be from 0 to 1'),
        ('detection', {'top_k': 0}, 'top_k 0: must be at least 1'),
        ('detection', {'batch_size': 2.0}, r'batch_size 2\.0: must be an integer'),
    ],
)
def test_invalid_options_raise(
    models: dict[str, InLineModel], task: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        models[task](np.zeros((88, 88, 3), np.uint8), **options)


def test_image_ids_of_numbered_files(models: dict[str, InLineModel], folder: Path, tmp_path: Path) -> None:
    for name in ('000139', '000285'):
        cv2.imwrite(str(tmp_path / f'{name}.png'), cv2.imread(str(folder / 'f.bmp')))
    files = sorted(tmp_path.glob('*.png'))
    assert [one.image_id for one in models['classification'](files, progress=False)] == [139, 285]
