"""tools/predict.py on small untrained models: its output files and error messages."""

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO

from inline.apis.conversion import image_ids
from inline.apis.inputs import ImageSource
from inline.apis.loading import Classes
from inline.apis.outputs import OutputFolder
from inline.utils.errors import UserError
from tests.apis.small_models import CLASSES, CONFIGS
from tests.conftest import ROOT, run_tool
from tests.tools.conftest import Run

FILES = ['a/b.png', 'a/d.png', 'c/b.png', 'c/e.png', 'f.bmp']
PICTURES = ['a/b.jpg', 'a/d.jpg', 'c/b.jpg', 'c/e.jpg', 'f.jpg']


@pytest.fixture
def predict(run_here: Run) -> Run:
    return partial(run_here, 'predict')


def test_unwritable_label_map_raises(tmp_path: Path) -> None:
    prediction = SimpleNamespace(source=ImageSource('a'), label_map=np.zeros((4, 5), np.int64))
    (tmp_path / 'labels' / 'a.png').mkdir(parents=True)
    output = OutputFolder(tmp_path, 'segmentation', Classes(('ground',), ((0, 0, 0),)))
    with pytest.raises(UserError, match=r"labels/a\.png' cannot be written"):
        output._add_segmentation(prediction)
    assert not output.records


def test_coco_classes_and_files_keep_their_ids() -> None:
    from mmdet.datasets import CocoDataset

    names = CocoDataset.METAINFO['classes']
    ids = dict(zip(names, Classes(names, ()).category_ids, strict=True))
    # As in COCO's instances_val2017.json.
    official = {'person': 1, 'fire hydrant': 11, 'stop sign': 13, 'backpack': 27, 'wine glass': 46}
    official |= {'dining table': 67, 'toilet': 70, 'tv': 72, 'refrigerator': 82, 'book': 84, 'toothbrush': 90}
    assert {name: ids[name] for name in official} == official
    assert Classes(names[:3], ()).category_ids == (1, 2, 3)
    assert image_ids([ImageSource('val/000000000139'), ImageSource('val/000000000285')]) == {
        'val/000000000139': 139,
        'val/000000000285': 285,
    }
    for others in (['1', 'a'], ['a/1', 'b/01'], ['1_jpg', '1_png']):
        assert image_ids([ImageSource(name) for name in others]) == {others[0]: 0, others[1]: 1}


def files_below(path: Path) -> list[str]:
    return sorted(file.relative_to(path).as_posix() for file in path.rglob('*') if file.is_file())


@pytest.mark.slow
def test_classifier_writes_the_five_most_likely_classes(
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


def test_detector_writes_results_for_pycocotools(
    predict: Run,
    checkpoints: dict[str, Path],
    folder: Path,
    tmp_path: Path,
) -> None:
    out = tmp_path / 'out'
    args = [CONFIGS['detection'], checkpoints['detection'], folder / 'c', folder / 'a' / 'b.png']
    code, lines, _ = predict(*args, folder / 'c' / 'b.png', '--out', out, '--batch-size', '2')
    assert code == 0
    # A file that is given twice counts once.
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
        assert annotation['category_name'] == images.cats[annotation['category_id']]['name']
        image = images.imgs[annotation['image_id']]
        assert coco_mask.decode(annotation['segmentation']).shape == (image['height'], image['width'])
        x, y, width, height = annotation['bbox']
        assert x >= 0
        assert y >= 0
        assert x + width <= image['width'] + 1e-3
        assert y + height <= image['height'] + 1e-3
    assert files_below(out / 'pictures') == ['a/b.jpg', 'c/b.jpg', 'c/e.jpg']
    # Both options also limit the boxes in the JSON file. The pattern is not expanded by a shell here.
    scores = sorted(annotation['score'] for annotation in found.anns.values())
    limits = ['--score-thr', scores[len(scores) // 2], '--top-k', '4']
    assert predict(*args[:2], f'{folder}/c/*', '--out', out, '--overwrite', *limits)[0] == 0
    records = json.loads((out / 'predictions.json').read_text())
    assert {record['image_id'] for record in records} == {0, 1}
    assert all(record['score'] >= limits[1] for record in records)
    assert 4 < len(records) <= 8


def test_segmentor_writes_label_maps_and_shares(
    predict: Run,
    checkpoints: dict[str, Path],
    folder: Path,
    tmp_path: Path,
) -> None:
    (folder / 'bad.jpg').write_bytes(b'no image')
    out = tmp_path / 'out'
    args = [CONFIGS['segmentation'], checkpoints['segmentation'], folder, '--out', out]
    code, lines, errors = predict(*args, '--tile', '48', '--overlap', '8', '--skip-bad')
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
    # Without --skip-bad it stops there, and keeps the finished predictions.
    code, _, errors = predict(*args, '--overwrite')
    assert code == 2
    assert 'bad.jpg' in errors[-1]
    assert errors[-1].startswith('error: ')
    assert len(json.loads((out / 'predictions.json').read_text())) < 5


def test_files_are_overwritten_only_on_request_and_inputs_never(
    predict: Run,
    checkpoints: dict[str, Path],
    folder: Path,
) -> None:
    args = [CONFIGS['classification'], checkpoints['classification']]
    out = folder / 'out'
    assert predict(*args, folder, '--out', out)[0] == 0
    code, _, errors = predict(*args, folder, '--out', out)
    assert code == 2
    assert errors == [
        f"error: --out '{out}' is not empty: choose another folder, or use --overwrite to replace "
        'files of the same names'
    ]
    # The pictures of the first run are in the input folder but are not inputs.
    code, lines, _ = predict(*args, folder, '--out', out, '--overwrite')
    assert code == 0
    assert lines[-1].startswith('5 images: see')
    picture = out / 'pictures' / 'f.jpg'
    before = picture.read_bytes()
    code, _, errors = predict(*args, picture, '--out', out, '--overwrite')
    assert (code, errors) == (2, [f"error: --out '{out}' would overwrite the image '{picture}'"])
    assert picture.read_bytes() == before


def test_frames_of_a_video_have_their_own_entries(
    predict: Run, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    video, out = tmp_path / 'clip.avi', tmp_path / 'out'
    writer = cv2.VideoWriter(str(video), cv2.VideoWriter.fourcc(*'MJPG'), 5, (64, 64))
    for i in range(3):
        writer.write(np.full((64, 64, 3), 60 * i, np.uint8))
    writer.release()
    args = [CONFIGS['classification'], checkpoints['classification'], video, '--out', out, '--top-k', '2']
    code, lines, _ = predict(*args)
    assert code == 0
    assert lines[-1].startswith('3 images: see')
    assert files_below(out / 'pictures') == [f'clip.avi/frame_00000{i}.jpg' for i in range(3)]
    records = json.loads((out / 'predictions.json').read_text())
    assert [record['file'] for record in records] == [f'{video}, frame {i}' for i in range(3)]
    assert all(len(record['top2']) == 2 for record in records)


@pytest.mark.parametrize(
    ('args', 'message'),
    [
        (['--top-k', '0'], 'top_k 0: must be at least 1'),
        (['--score-thr', '0.5'], 'score_thr is for detection only: this is a classification model'),
        (['--score-thr', '2'], '--score-thr 2.0: must be from 0 to 1'),
        (['--tile', '64'], 'tile is for segmentation only: this is a classification model'),
        (['--batch-size', '0'], 'batch_size 0: must be at least 1'),
        (['--device', 'abacus'], "device 'abacus' is not available: use cpu, or cuda:0 with a GPU"),
    ],
)
def test_invalid_arguments_give_one_error_line(
    predict: Run,
    checkpoints: dict[str, Path],
    folder: Path,
    tmp_path: Path,
    args: list[str],
    message: str,
) -> None:
    given = [CONFIGS['classification'], checkpoints['classification'], folder, '--out', tmp_path / 'out']
    code, _, errors = predict(*given, *args)
    assert (code, errors[-1]) == (2, f'error: {message}')
    assert not (tmp_path / 'out').exists()


def test_missing_files_give_one_error_line(
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
    # The output folder stays empty, so that the command can be repeated.
    (tmp_path / 'half.jpg').write_bytes(b'no image')
    args = [CONFIGS['classification'], checkpoints['classification'], tmp_path / 'half.jpg', *out]
    assert predict(*args)[0] == 2
    assert files_below(tmp_path / 'out') == []
