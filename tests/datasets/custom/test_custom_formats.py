"""One run per format of custom data: train two steps, test and predict with the tools, results in Python."""

import json
import runpy
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from inline import InLineModel
from inline.apis.results import Prediction
from tests.conftest import ROOT
from tests.datasets.custom import made

FINETUNE = ROOT / 'configs' / 'finetune'
CONFIGS = {
    'image-folder': ('inline-pvt-micro_image-folder', ['train_cfg.max_epochs=1']),
    'coco-format': (
        'retinanet_inline-pvt-micro_coco-format',
        [
            'train_cfg.max_epochs=1',
            'model.test_cfg.score_thr=0.0',
            'model.test_cfg.max_per_img=3',
            'train_dataloader.dataset.pipeline.2.scale=(64,64)',
            'test_dataloader.dataset.pipeline.1.scale=(64,64)',
        ],
    ),
    'label-maps': (
        'semantic-fpn_inline-pvt-micro_label-maps',
        [
            'train_cfg.max_iters=2',
            'train_cfg.val_interval=2',
            'default_hooks.checkpoint.interval=2',
            'train_dataloader.batch_size=2',
            'train_dataloader.dataset.pipeline.2.scale=(64,64)',
            'train_dataloader.dataset.pipeline.3.crop_size=(32,32)',
            'test_dataloader.dataset.pipeline.1.scale=(64,64)',
        ],
    ),
}


@dataclass(frozen=True)
class Format:
    """A dataset, its flags, the line that the tools print, and the class names."""

    make: Callable[[Path], Path]
    line: str
    classes: tuple[str, ...] = made.CLASSES
    flags: tuple[str, ...] = ()
    note: str = ''


FORMATS = {
    'image-folder class folders': Format(made.class_folders, 'class folders; train 8 images; val 4 images'),
    'image-folder flat': Format(
        made.flat_folders, 'class folders; train 8 images; val 4 images', flags=('--val-split', '0.3')
    ),
    'image-folder CSV': Format(made.csv_files, 'CSV; train 4 images; val 2 images'),
    'coco-format COCO': Format(
        made.coco, 'COCO JSON; train 4 images, 8 objects; val 2 images, 4 objects; 2 classes (cat, dog)'
    ),
    'coco-format Roboflow': Format(
        made.roboflow,
        'COCO JSON; train 4 images, 8 objects; val 2 images, 4 objects; 2 classes (cat, dog)',
        note='categories without annotations are not used: pets',
    ),
    'coco-format VOC': Format(made.voc, 'VOC XML; train 4 images, 8 objects; val 2 images, 4 objects'),
    'coco-format flat VOC': Format(
        made.flat_voc, 'VOC XML; train 4 images, 8 objects; val 2 images', flags=('--val-split', '0.3')
    ),
    'coco-format YOLO': Format(made.yolo, 'YOLO; train 4 images, 8 objects; val 2 images, 4 objects'),
    'label-maps indices': Format(
        made.label_maps,
        'images and label maps; train 4 images; val 2 images',
        ('class 0', 'class 1', 'class 2'),
    ),
    'label-maps CamVid': Format(
        made.camvid,
        'images and label maps; train 4 images; val 2 images; 3 classes',
        ('class 0', 'class 1', 'class 2'),
        ('--ignore-label', '11'),
    ),
    'label-maps colors': Format(
        made.color_coded, 'images and color-coded label maps; train 4 images', tuple(made.COLORS)
    ),
    'label-maps binary': Format(
        made.binary_masks,
        'images and label maps; train 4 images; val 2 images; 2 classes',
        ('class 0', 'class 1'),
        note='the label maps are binary masks: 0 is class 0 and 255 is class 1',
    ),
}


@pytest.fixture
def run_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a tool as a user would, but in this process, and return what it printed."""
    handler = signal.getsignal(signal.SIGTERM)

    def run(tool: str, *words: str | Path) -> str:
        monkeypatch.setattr(sys, 'argv', [tool, *map(str, words)])
        try:
            runpy.run_path(str(ROOT / tool), run_name='__main__')
        except SystemExit as error:
            pytest.fail(f'{tool} exited with {error.code}: {capsys.readouterr().err}')
        finally:
            signal.signal(signal.SIGTERM, handler)
        return capsys.readouterr().out

    return run


# One format per task remains in `make test`.
FREQUENT = ('image-folder class folders', 'coco-format COCO', 'label-maps indices')


@pytest.mark.slow
@pytest.mark.parametrize(
    'name',
    [pytest.param(name, marks=() if name in FREQUENT else pytest.mark.exhaustive) for name in FORMATS],
)
def test_train_test_and_predict(name: str, tmp_path: Path, run_here: Callable[..., str]) -> None:
    case = FORMATS[name]
    data = tmp_path / 'data'
    root = case.make(data)
    before = sorted(data.rglob('*'))
    config, options = CONFIGS[name.split()[0]]
    options = [*options, *(f'{one}_dataloader.num_workers=0' for one in ('train', 'val', 'test'))]
    options += [f'{one}_dataloader.persistent_workers=False' for one in ('train', 'val', 'test')]
    path, work_dir = FINETUNE / f'{config}.py', tmp_path / 'work'
    common = ['--data-root', root, '--work-dir', work_dir, *case.flags, '--cfg-options', *options]
    out = run_here('tools/train.py', path, *common)
    assert f'custom data: {case.line}' in out
    assert f'({", ".join(case.classes)})' in out
    assert case.note in out
    checkpoint = (work_dir / 'last_checkpoint').read_text().strip()
    tested = run_here('tools/test.py', path, checkpoint, *common)
    assert any(metric in tested for metric in ('accuracy/top1', 'coco/bbox_mAP', 'mIoU'))
    # The saved config knows the data; no flag is needed.
    saved = work_dir / f'{config}.py'
    image = next(path for path in before if path.suffix in ('.jpg', '.png'))
    run_here('tools/predict.py', saved, checkpoint, image, '--out', tmp_path / 'out')
    assert json.loads((tmp_path / 'out' / 'predictions.json').read_text())
    check_results(InLineModel(saved, checkpoint)(image)[0], case.classes)
    assert sorted(data.rglob('*')) == before


def check_results(result: Prediction, classes: tuple[str, ...]) -> None:
    """Check that the arrays and the JSON of a prediction have the classes of the data."""
    assert tuple(result.names) == classes
    if result.boxes is not None:
        assert result.boxes.shape == (3, 4)
        assert result.scores.shape == result.labels.shape == (3,)
        used = {classes[label] for label in result.labels}
    elif result.probs is not None:
        assert result.probs.sum() == pytest.approx(1, abs=1e-5)
        assert result.top1 == result.probs.argmax()
        used = {classes[result.top1]}
    else:
        assert result.label_map.max() < len(classes)
        used = {classes[label] for label in np.unique(result.label_map)}
    text = result.to_json()
    assert json.loads(text) == json.loads(json.dumps(result.to_dict()))
    assert all(f'"{name}"' in text for name in used)
