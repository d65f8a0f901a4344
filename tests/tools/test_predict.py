"""Predicting as a user does, on small untrained models; a real process shows that the tool starts."""

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO

from inline.errors import UserError
from inline.inference.inputs import Source
from inline.inference.loading import Classes
from inline.inference.outputs import Output, category_ids, image_ids
from tests.conftest import ROOT, run_tool
from tests.inference.small_models import CLASSES, CONFIGS, save_checkpoint, write_images
from tests.tools.conftest import Run

FILES = ['a/b.png', 'a/d.png', 'c/b.png', 'c/e.png', 'f.bmp']
PICTURES = ['a/b.jpg', 'a/d.jpg', 'c/b.jpg', 'c/e.jpg', 'f.jpg']


@pytest.fixture(scope='module')
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp('checkpoints')
    return {task: save_checkpoint(task, folder / f'{task}.pth') for task in CONFIGS}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_images(tmp_path / 'images')


@pytest.fixture
def predict(run_here: Run) -> Run:
    return partial(run_here, 'predict')


def test_a_label_map_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    sample = SimpleNamespace(
        source=Source('a'), pred_sem_seg=SimpleNamespace(data=torch.zeros(1, 4, 5, dtype=torch.int64))
    )
    (tmp_path / 'labels' / 'a.png').mkdir(parents=True)
    output = Output(tmp_path, 'segmentation', Classes(('ground',), ((0, 0, 0),)), score_thr=0.3)
    with pytest.raises(UserError, match=r"labels/a\.png' cannot be written"):
        output._add_segmentation(sample)
    assert not output.records


def test_cocos_classes_and_files_keep_their_numbers() -> None:
    from mmdet.datasets import CocoDataset

    names = CocoDataset.METAINFO['classes']
    ids = dict(zip(names, category_ids(names), strict=True))
    # As in COCO's instances_val2017.json.
    official = {'person': 1, 'fire hydrant': 11, 'stop sign': 13, 'backpack': 27, 'wine glass': 46}
    official |= {'dining table': 67, 'toilet': 70, 'tv': 72, 'refrigerator': 82, 'book': 84, 'toothbrush': 90}
    assert {name: ids[name] for name in official} == official
    assert list(category_ids(names[:3])) == [1, 2, 3]
    assert image_ids([Source('val/000000000139'), Source('val/000000000285')]) == {
        'val/000000000139': 139,
        'val/000000000285': 285,
    }
    for others in (['1', 'a'], ['a/1', 'b/01'], ['1_jpg', '1_png']):
        assert image_ids([Source(name) for name in others]) == {}


def files_below(path: Path) -> list[str]:
    return sorted(file.relative_to(path).as_posix() for file in path.rglob('*') if file.is_file())


@pytest.mark.slow
def test_a_classifier_gives_the_five_likeliest_classes(
    checkpoints: dict[str, Path],
    folder: Path,
    tmp_path: Path,
) -> None:
    out = tmp_path / 'out'
    done = run_tool(
        'tools/predict.py', CONFIGS['classification'], checkpoints['classification'], folder, '--out', out
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == f'5 images: see {out / "predictions.json"}'
    assert '5/5' in done.stderr
    records = json.loads((out / 'predictions.json').read_text())
    assert [record['file'] for record in records] == [str(folder / name) for name in FILES]
    for record in records:
        scores = [one['score'] for one in record['top5']]
        assert len(scores) == 5
        assert scores == sorted(scores, reverse=True)
        assert 0 < sum(scores) <= 1
        assert all(CLASSES['classification'][one['label']] == one['name'] for one in record['top5'])
    assert files_below(out / 'pictures') == PICTURES


def test_a_detector_gives_results_that_pycocotools_reads(
    predict: Run,
    checkpoints: dict[str, Path],
    folder: Path,
    tmp_path: Path,
) -> None:
    out = tmp_path / 'out'
    words = [CONFIGS['detection'], checkpoints['detection'], folder / 'c', folder / 'a' / 'b.png']
    code, lines, _ = predict(*words, folder / 'c' / 'b.png', '--out', out, '--batch-size', '2')
    assert code == 0
    # A file of a folder that is named as well counts once.
    assert lines[-1].startswith('3 images: see')
    images = COCO(str(out / 'images.json'))
    found = images.loadRes(str(out / 'predictions.json'))
    shapes = {image['file_name']: (image['height'], image['width']) for image in images.dataset['images']}
    assert shapes == {
        str(folder / 'c' / 'b.png'): (64, 96),
        str(folder / 'c' / 'e.png'): (88, 88),
        str(folder / 'a' / 'b.png'): (88, 88),
    }
    assert [category['name'] for category in images.dataset['categories']] == list(CLASSES['detection'])
    assert len(found.anns)
    for annotation in found.anns.values():
        image = images.imgs[annotation['image_id']]
        assert coco_mask.decode(annotation['segmentation']).shape == (image['height'], image['width'])
        x, y, width, height = annotation['bbox']
        assert x >= 0
        assert y >= 0
        assert x + width <= image['width'] + 1e-3
        assert y + height <= image['height'] + 1e-3
    assert files_below(out / 'pictures') == ['a/b.jpg', 'c/b.jpg', 'c/e.jpg']


def test_a_segmentor_gives_label_maps_and_shares(
    predict: Run,
    checkpoints: dict[str, Path],
    folder: Path,
    tmp_path: Path,
) -> None:
    (folder / 'bad.jpg').write_bytes(b'no image')
    out = tmp_path / 'out'
    words = [CONFIGS['segmentation'], checkpoints['segmentation'], folder, '--out', out]
    code, lines, errors = predict(*words, '--tile', '48', '--overlap', '8', '--skip-bad')
    assert code == 0
    assert lines[-1].startswith('5 images, 1 skipped: see')
    assert any(line.startswith('skipped: ') and 'bad.jpg' in line for line in errors)
    records = json.loads((out / 'predictions.json').read_text())
    assert len(records) == 5
    for record in records:
        labels = cv2.imread(str(out / record['labels']), cv2.IMREAD_UNCHANGED)
        assert labels.shape == cv2.imread(record['file']).shape[:2]
        for label, name in enumerate(CLASSES['segmentation']):
            assert record['shares'].get(name, 0) == pytest.approx(np.mean(labels == label))
    assert files_below(out / 'pictures') == PICTURES
    # Without being told to skip, it stops there, and what was done before is kept.
    code, _, errors = predict(*words, '--overwrite')
    assert code == 2
    assert 'bad.jpg' in errors[-1]
    assert errors[-1].startswith('error: ')
    assert len(json.loads((out / 'predictions.json').read_text())) < 5


def test_nothing_is_overwritten_unasked_and_no_image_ever(
    predict: Run,
    checkpoints: dict[str, Path],
    folder: Path,
) -> None:
    words = [CONFIGS['classification'], checkpoints['classification']]
    out = folder / 'out'
    assert predict(*words, folder, '--out', out)[0] == 0
    code, _, errors = predict(*words, folder, '--out', out)
    assert code == 2
    assert errors == [
        f"error: --out '{out}' is not empty: give another folder, or --overwrite to replace "
        'the files of the same names in it'
    ]
    # The pictures of the first run lie below the folder, and are not its images.
    code, lines, _ = predict(*words, folder, '--out', out, '--overwrite')
    assert code == 0
    assert lines[-1].startswith('5 images: see')
    picture = out / 'pictures' / 'f.jpg'
    before = picture.read_bytes()
    code, _, errors = predict(*words, picture, '--out', out, '--overwrite')
    assert (code, errors) == (2, [f"error: --out '{out}' would overwrite the image '{picture}'"])
    assert picture.read_bytes() == before


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (['--score-thr', '2'], '--score-thr 2.0: must be from 0 to 1'),
        (['--tile', '64'], 'tile is for segmentation: this model does classification'),
        (['--batch-size', '0'], 'batch_size 0: must be 1 or more'),
        (['--device', 'abacus'], "device 'abacus' cannot be used: give cpu, or cuda:0 with a GPU"),
    ],
)
def test_mistakes_are_told_in_one_line(
    predict: Run,
    checkpoints: dict[str, Path],
    folder: Path,
    tmp_path: Path,
    words: list[str],
    message: str,
) -> None:
    given = [CONFIGS['classification'], checkpoints['classification'], folder, '--out', tmp_path / 'out']
    code, _, errors = predict(*given, *words)
    assert (code, errors[-1]) == (2, f'error: {message}')
    assert not (tmp_path / 'out').exists()


def test_missing_images_and_checkpoints_are_told(
    predict: Run,
    checkpoints: dict[str, Path],
    tmp_path: Path,
) -> None:
    out = ['--out', tmp_path / 'out']
    code, _, errors = predict(CONFIGS['classification'], checkpoints['classification'], 'gone.jpg', *out)
    assert (code, errors[-1]) == (2, "error: image 'gone.jpg' does not exist")
    code, _, errors = predict(CONFIGS['classification'], 'gone.pth', ROOT / 'docs', *out)
    assert code == 2
    assert errors[-1].startswith("error: checkpoint 'gone.pth' does not exist")
    assert predict(CONFIGS['classification'])[0] == 2
    given = [CONFIGS['classification'], checkpoints['classification'], ROOT / 'README.md']
    code, _, errors = predict(*given, '--out', 'README.md/x')
    assert (code, errors[-1]) == (2, "error: --out 'README.md/x': 'README.md' is a file, give a folder")
    # Nothing is left that would stand in the way of another try.
    (tmp_path / 'half.jpg').write_bytes(b'no image')
    words = [CONFIGS['classification'], checkpoints['classification'], tmp_path / 'half.jpg', *out]
    assert predict(*words)[0] == 2
    assert files_below(tmp_path / 'out') == []
