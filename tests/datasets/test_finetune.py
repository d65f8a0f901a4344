"""configs/finetune on custom datasets, from a folder to a trained and tested model."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

from inline.datasets.custom import fit_to_custom_data
from inline.datasets.image_file import IMAGE_EXTENSIONS
from inline.datasets.validation.checks import CheckCache, validate_datasets
from inline.engine.config import load_config, set_data_root
from inline.utils.errors import UserError
from tests.conftest import ROOT, run_tool

FINETUNE = ROOT / 'configs' / 'finetune'
CONFIGS = sorted(FINETUNE.glob('*.py'))


@pytest.fixture(scope='module')
def custom_data(digit_scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The digit scenes in the three formats, with class names that the configs do not have."""
    root = tmp_path_factory.mktemp('own')
    coco = root / 'coco'
    (coco / 'annotations').mkdir(parents=True)
    for split, folder in (('train', 'training'), ('val', 'validation')):
        content = json.loads((digit_scenes / f'instances_{split}.json').read_text())
        for category in content['categories']:
            category['name'] = f'digit {category["name"]}'
        (coco / 'annotations' / f'instances_{split}.json').write_text(json.dumps(content))
        shutil.copytree(digit_scenes / 'images' / folder, coco / split)
    maps = root / 'maps'
    shutil.copytree(digit_scenes / 'images', maps / 'images')
    shutil.copytree(digit_scenes / 'annotations', maps / 'annotations')
    (maps / 'classes.txt').write_text('\n'.join(['none', 'background', *'0123456789']))
    return {'image-folder': digit_scenes / 'classification', 'coco-format': coco, 'label-maps': maps}


@pytest.mark.parametrize('path', CONFIGS, ids=[path.stem for path in CONFIGS])
def test_models_have_the_classes_of_the_data(path: Path, custom_data: dict[str, Path]) -> None:
    from mmengine.registry import DATASETS, MODELS, init_default_scope

    cfg = load_config(path)
    data_format = cfg.custom_data
    assert path.stem.endswith(data_format)
    set_data_root(cfg, custom_data[data_format])
    if data_format == 'label-maps':
        cfg.ignore_label = 'none'
    fit_to_custom_data(cfg)
    init_default_scope(cfg.default_scope)
    for split in ('train', 'val', 'test'):
        dataset = DATASETS.build(cfg[f'{split}_dataloader'].dataset)
        classes = {
            'image-folder': tuple('0123456789'),
            'coco-format': tuple(f'digit {i}' for i in range(10)),
            'label-maps': ('background', *'0123456789'),
        }[data_format]
        assert tuple(dataset.metainfo['classes']) == classes
        assert dataset[0]['inputs'].shape[0] == 3
    with torch.device('meta'):
        model = MODELS.build(cfg.model)
    if data_format == 'image-folder':
        assert model.head.fc.out_features == 10
    elif data_format == 'label-maps':
        assert model.decode_head.num_classes == model.decode_head.conv_seg.out_channels == 11
        assert len(dataset.metainfo['palette']) == 11
    else:
        heads = model.bbox_head if hasattr(model, 'bbox_head') else model.roi_head.bbox_head
        assert heads.num_classes == 10


def test_every_counted_image_is_loaded(tmp_path: Path) -> None:
    from mmengine.registry import DATASETS, init_default_scope

    for split in ('train', 'val'):
        for i, suffix in enumerate(IMAGE_EXTENSIONS):
            path = tmp_path / split / 'ab'[i % 2] / f'{i}{suffix}'
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new('RGB', (50, 60), (10 * i,) * 3).save(path)
    cfg = load_config(FINETUNE / 'inline-pvt-micro_image-folder.py')
    cfg.work_dir = str(tmp_path / 'work')
    set_data_root(cfg, tmp_path)
    fit_to_custom_data(cfg)
    init_default_scope(cfg.default_scope)
    validate_datasets(cfg, ('val_dataloader',))
    dataset = DATASETS.build(cfg.val_dataloader.dataset)
    assert len(dataset) == len(IMAGE_EXTENSIONS)
    # Lossy formats change the values slightly.
    read = {round(float(sample['inputs'].float().mean()) / 10) for sample in dataset}
    assert read == set(range(len(IMAGE_EXTENSIONS)))


def test_weights_of_another_model_are_rejected_in_one_line(
    custom_data: dict[str, Path], tmp_path: Path
) -> None:
    from inline.models import InLineSwin

    weights = {f'backbone.{name}': value for name, value in InLineSwin('tiny').state_dict().items()}
    torch.save({'state_dict': weights}, tmp_path / 'swin.pth')
    config = FINETUNE / 'inline-pvt-tiny_image-folder.py'
    common = ['--data-root', custom_data['image-folder'], '--work-dir', tmp_path / 'work']
    done = run_tool('tools/train.py', config, '--pretrained', tmp_path / 'swin.pth', *common)
    assert done.returncode == 2
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f'error: checkpoint {str(tmp_path / "swin.pth")!r} has a different architecture')
    done = run_tool('tools/test.py', config, tmp_path / 'swin.pth', *common)
    assert done.returncode == 2
    assert 'does not match the model: ' in done.stderr.strip().splitlines()[-1]


def test_a_list_of_evaluators(custom_data: dict[str, Path]) -> None:
    """As in the config that tools/test.py --out saves."""
    cfg = load_config(FINETUNE / 'retinanet_inline-pvt-micro_coco-format.py')
    set_data_root(cfg, custom_data['coco-format'])
    cfg.test_evaluator = [cfg.test_evaluator, {'type': 'DumpDetResults', 'out_file_path': 'a.pkl'}]
    fit_to_custom_data(cfg)
    expected = str(custom_data['coco-format'] / 'annotations' / 'instances_val.json')
    assert cfg.test_evaluator[0].ann_file == cfg.val_evaluator.ann_file == expected
    assert 'ann_file' not in cfg.test_evaluator[1]


def test_reading_the_data_writes_nothing_unless_a_cache_is_given(
    custom_data: dict[str, Path], tmp_path: Path
) -> None:
    cfg = load_config(FINETUNE / 'retinanet_inline-pvt-micro_coco-format.py')
    set_data_root(cfg, custom_data['coco-format'])
    cfg.work_dir = str(tmp_path / 'work')
    fit_to_custom_data(cfg)
    assert not Path(cfg.work_dir).exists()
    fit_to_custom_data(cfg, CheckCache.of_run(cfg))
    assert (Path(cfg.work_dir) / 'data_validation' / 'checks.json').is_file()


def test_a_config_with_masks_needs_masks(custom_data: dict[str, Path], tmp_path: Path) -> None:
    data = tmp_path / 'boxes'
    shutil.copytree(custom_data['coco-format'], data)
    path = data / 'annotations' / 'instances_train.json'
    content = json.loads(path.read_text())
    for annotation in content['annotations']:
        annotation['segmentation'] = []
    path.write_text(json.dumps(content))
    cfg = load_config(FINETUNE / 'mask-rcnn_inline-swin-tiny_coco-format.py')
    set_data_root(cfg, data)
    with pytest.raises(UserError, match='annotations without a segmentation, but the config trains masks'):
        fit_to_custom_data(cfg)
