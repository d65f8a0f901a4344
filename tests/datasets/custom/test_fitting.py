"""Configs fitted to a dataset: test splits, class names of a checkpoint, and datasets of another task."""

from pathlib import Path

import pytest
import torch

from inline.datasets.custom import fit_to_custom_data
from inline.engine.config import load_config, set_data_root
from inline.utils.errors import UserError
from tests.conftest import ROOT, run_tool
from tests.datasets.custom import made
from tests.datasets.custom.reading import read

FINETUNE = ROOT / 'configs' / 'finetune'
CLASSIFIER = FINETUNE / 'inline-pvt-micro_image-folder.py'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / 'data'


def test_test_data_is_the_test_split(root: Path) -> None:
    made.class_folders(root)
    made.write_image(root / 'test' / 'dog' / 'a.png')
    cfg = load_config(CLASSIFIER)
    set_data_root(cfg, root)
    fit_to_custom_data(cfg)
    files = [Path(cfg[f'{loader}_dataloader'].dataset.ann_file).stem for loader in ('train', 'val', 'test')]
    assert files == ['train', 'val', 'test']
    (root / 'val').rename(root.parent / 'val')
    fit_to_custom_data(cfg, phase='train')
    files = [Path(cfg[f'{loader}_dataloader'].dataset.ann_file).stem for loader in ('train', 'val', 'test')]
    assert files == ['train', 'test', 'test']


def test_a_saved_config_is_fitted_to_another_root(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = load_config(CLASSIFIER)
    set_data_root(cfg, made.class_folders(root))
    fit_to_custom_data(cfg)
    assert cfg.custom_root == str(root)
    # The default of all tools does not replace what a run used.
    monkeypatch.setenv('INLINE_DATA_ROOT', str(root.parent))
    set_data_root(cfg, root.parent)
    assert cfg.custom_root == str(root)
    set_data_root(cfg, made.class_folders(root.parent / 'other'))
    fit_to_custom_data(cfg)
    assert cfg.val_dataloader.dataset.data_root == str(root.parent / 'other')


def test_classes_of_the_checkpoint(root: Path) -> None:
    made.class_folders(root)
    same = read('image-folder', root, phase='test', model_classes=('cat', 'dog'))
    assert same.classes == ('cat', 'dog')
    # Data that lacks a class is tested with the labels of the checkpoint.
    fewer = read('image-folder', root, phase='test', model_classes=('ant', 'cat', 'dog'))
    assert fewer.classes == ('ant', 'cat', 'dog')
    assert Path(fewer.dataset['val']['ann_file']).read_text().split('\n')[0] == 'val/cat/val_0.jpg 1'
    for classes, reason in (
        (('dog', 'cat'), 'in a different order'),
        (('cat', 'hen'), 'with different names'),
    ):
        with pytest.raises(UserError) as caught:
            read('image-folder', root, phase='test', model_classes=classes)
        lists = f'checkpoint: {", ".join(classes)}; data: cat, dog'
        assert str(caught.value).startswith(f'the checkpoint and the data have classes {reason}: {lists}')
        allowed = read('image-folder', root, phase='test', model_classes=classes, allow_other_classes=True)
        # Matched by name if the checkpoint has all classes, else by index.
        assert allowed.classes == (classes if 'dog' in classes else ('cat', 'dog'))
    padded = read(
        'coco-format',
        made.yolo(root.parent / 'yolo'),
        phase='test',
        model_classes=('hen', 'fox', 'dog'),
        allow_other_classes=True,
    )
    assert padded.classes == ('cat', 'dog', 'dog (checkpoint)')
    with pytest.raises(UserError, match='the data has 2 classes, more than the 1 of the checkpoint'):
        read('image-folder', root, model_classes=('hen',), allow_other_classes=True)


def test_tools_refuse_other_classes(root: Path, tmp_path: Path) -> None:
    from mmengine.registry import MODELS, init_default_scope

    made.class_folders(root)
    cfg = load_config(CLASSIFIER)
    set_data_root(cfg, root)
    fit_to_custom_data(cfg)
    init_default_scope('mmpretrain')
    meta = {'dataset_meta': {'classes': ('dog', 'cat')}}
    torch.save({'state_dict': MODELS.build(cfg.model).state_dict(), 'meta': meta}, tmp_path / 'a.pth')
    lists = 'checkpoint: dog, cat; data: cat, dog (--allow-other-classes accepts this)'
    loader = ['--cfg-options', 'test_dataloader.num_workers=0', 'test_dataloader.persistent_workers=False']
    words = [CLASSIFIER, tmp_path / 'a.pth', '--data-root', root, '--work-dir', tmp_path / 'work']
    done = run_tool('tools/test.py', *words, *loader)
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].endswith(lists)
    done = run_tool('tools/test.py', *words, '--allow-other-classes', *loader)
    assert done.returncode == 0, done.stderr[-2000:]
    cfg.dump(tmp_path / 'saved.py')
    words = [tmp_path / 'saved.py', tmp_path / 'a.pth', root / 'val', '--out', tmp_path / 'out']
    done = run_tool('tools/predict.py', *words)
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].endswith(lists)
    done = run_tool('tools/predict.py', *words, '--allow-other-classes')
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(
    ('task', 'make', 'nearest', 'hint'),
    [
        ('label-maps', made.voc, 'images and label maps in two folders', 'VOC XML for detection'),
        ('coco-format', made.camvid, 'COCO JSON', 'images and label maps for segmentation'),
        ('coco-format', made.class_folders, 'COCO JSON', 'class folders for classification'),
        ('image-folder', made.yolo, 'class folders', 'YOLO for detection'),
    ],
)
def test_a_layout_of_another_task_is_named(
    task: str, make: object, nearest: str, hint: str, root: Path
) -> None:
    given = make(root)  # type: ignore[operator]  # a function of made
    with pytest.raises(UserError) as caught:
        read(task, given)
    assert f'Nearest: {nearest}' in str(caught.value)
    assert f'It can be read as {hint}, with configs/finetune/' in str(caught.value)
    config = str(caught.value).rpartition('configs/finetune/')[2]
    assert (FINETUNE / config).is_file()


def test_background_images_are_used_in_training(root: Path) -> None:
    from mmengine.registry import DATASETS, init_default_scope

    path = made.yolo(root)
    (root / 'labels' / 'train' / 'train_0.txt').unlink()
    cfg = load_config(FINETUNE / 'retinanet_inline-pvt-micro_coco-format.py')
    set_data_root(cfg, path)
    fit_to_custom_data(cfg)
    init_default_scope('mmdet')
    dataset = DATASETS.build(cfg.train_dataloader.dataset)
    assert [len(dataset.get_data_info(i)['instances']) for i in range(len(dataset))] == [0, 2, 2, 2]


def test_what_is_missing_is_named(root: Path) -> None:
    for i in range(3):
        made.write_text(root / 'Annotations' / f'{i}.xml.bak', '')
        made.write_image(root / 'JPEGImages' / f'{i}.jpg')
    made.write_text(root / 'notes.md', '')
    with pytest.raises(UserError) as caught:
        read('coco-format', root)
    assert 'Found: folders Annotations, JPEGImages; 1 .md file. ' in str(caught.value)
    assert 'Nearest: COCO JSON' in str(caught.value) or 'Nearest: VOC XML' in str(caught.value)
    (root / 'Annotations').rename(root / 'labels')
    (root / 'JPEGImages').rename(root / 'images')
    (root / 'labels' / '0.yaml').write_text('')
    with pytest.raises(UserError, match=r'Nearest: YOLO .*but its files do not match each other'):
        read('coco-format', root)


def test_flags_need_a_config_for_custom_data(tmp_path: Path) -> None:
    config = ROOT / 'configs' / 'digits' / 'inline-pvt-micro_digits.py'
    done = run_tool('tools/train.py', config, '--val-split', '0.1', '--work-dir', tmp_path)
    assert done.returncode == 2
    assert '--val-split is for your own data: the config must have custom_data' in done.stderr
