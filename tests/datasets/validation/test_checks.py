"""Datasets are checked once: on rank 0, and again only if a file changed."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mmengine.config import Config

from inline.datasets.custom import ReadOptions, segmentation
from inline.datasets.validation import checks
from inline.datasets.validation.checks import CheckCache, validate_datasets
from inline.engine.distributed.setup import call_on_rank_zero
from inline.utils.errors import UserError
from tests.datasets.custom import made
from tests.datasets.validation import test_class_folders, test_coco_validation
from tests.engine.distributed.ranks import launcher, run_ranks


@pytest.fixture
def coco_file(tmp_path: Path) -> Path:
    tables = test_coco_validation.COUNTED['a crowd region'].make()
    return test_coco_validation.write(tmp_path / 'train.json', tables)


def config(path: Path) -> Config:
    dataset = {
        'type': 'CocoDataset',
        'ann_file': str(path),
        'metainfo': {'classes': test_coco_validation.CLASSES},
        'pipeline': [],
    }
    return Config(
        {
            'default_scope': 'mmdet',
            'launcher': launcher(),
            'work_dir': str(path.parent / 'work'),
            'model': {'bbox_head': {'num_classes': 2}},
            'train_dataloader': {'dataset': dataset},
        }
    )


def log_calls(check: Callable[..., Any], log: Path) -> Callable[..., Any]:
    """Return `check` with a line in a file for every call, from whatever process."""

    def logged(*args: Any) -> Any:
        with log.open('a') as file:
            file.write(f'{os.environ.get("RANK", "0")}\n')
        return check(*args)

    return logged


def validate(path: Path) -> str:
    """Validate as a rank of a run; return the messages of the error, or of the counts that are printed."""
    checks.check_coco = log_calls(checks.check_coco, path.parent / 'calls')
    try:
        return ' '.join(checks.validate_datasets(config(path), ('train_dataloader',)))
    except UserError as error:
        return f'error: {error}'


def test_only_rank_zero_checks_and_all_ranks_get_its_result(coco_file: Path, tmp_path: Path) -> None:
    notes = run_ranks(2, lambda: validate(coco_file), tmp_path / 'ranks')
    expected = f'data validation: {coco_file}: crowd regions ignored by loss and metric: 1'
    assert notes == [expected, expected]
    assert (tmp_path / 'calls').read_text().split() == ['0']


def test_all_ranks_raise_the_error_of_rank_zero(coco_file: Path, tmp_path: Path) -> None:
    coco_file.write_text('{"images": [')
    errors = run_ranks(2, lambda: validate(coco_file), tmp_path / 'ranks')
    assert errors[0] == errors[1]
    assert errors[0].startswith(f'error: {str(coco_file)!r} is not valid JSON')
    assert (tmp_path / 'calls').read_text().split() == ['0']


def fail_on_rank_zero() -> str:
    def fail() -> None:
        raise MemoryError('no memory left')

    try:
        call_on_rank_zero(fail, Config({'launcher': 'pytorch'}))
    except Exception as error:
        return f'{type(error).__name__}: {error}'
    return 'no error'


def test_unexpected_errors_do_not_leave_other_ranks_waiting(tmp_path: Path) -> None:
    assert run_ranks(2, fail_on_rank_zero, tmp_path / 'ranks') == [
        'MemoryError: no memory left',
        'UserError: rank 0: MemoryError: no memory left',
    ]


def test_a_resumed_run_checks_again_only_if_the_file_changed(
    coco_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, 'check_coco', log_calls(checks.check_coco, tmp_path / 'calls'))

    def start() -> tuple[int, list[str]]:
        cfg = config(coco_file)
        validate_datasets(cfg, ('train_dataloader',))
        notes = checks.validate_datasets(config(coco_file), ('train_dataloader',))
        return len((tmp_path / 'calls').read_text().split()), notes

    first = start()
    assert first == (1, [f'data validation: {coco_file}: crowd regions ignored by loss and metric: 1'])
    assert start() == first
    os.utime(coco_file, ns=(1, 1))
    assert start() == (2, first[1])
    coco_file.write_text(json.dumps(test_coco_validation.valid()))
    assert start() == (3, [])
    coco_file.write_text('{}')
    for _ in range(2):
        with pytest.raises(UserError, match="has no list 'images'"):
            start()


def test_class_folders_are_checked_again_only_if_they_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = test_class_folders.write_folders(tmp_path / 'data')
    monkeypatch.setattr(
        checks, 'check_class_folders', log_calls(checks.check_class_folders, tmp_path / 'calls')
    )
    dataset = {'type': 'CustomDataset', 'data_root': str(root), 'data_prefix': 'train', 'pipeline': []}
    cfg = Config(
        {
            'work_dir': str(tmp_path / 'work'),
            'model': {'head': {'num_classes': 3}},
            'train_dataloader': {'dataset': dataset},
        }
    )
    for _ in range(2):
        validate_datasets(cfg, ('train_dataloader',))
    assert (tmp_path / 'calls').read_text().split() == ['0']
    (root / 'train' / 'bee' / '0.png').unlink()
    with pytest.raises(UserError, match="/bee' has no images"):
        validate_datasets(cfg, ('train_dataloader',))


@pytest.mark.parametrize('content', ['', '{"', '[1]', '{"a": 5}'])
def test_a_damaged_cache_is_ignored(content: str, tmp_path: Path) -> None:
    path = tmp_path / 'checks.json'
    path.write_text(content)
    assert CheckCache(path).get(lambda: 3, [tmp_path / 'missing']) == 3
    assert CheckCache(path).get(lambda: 3, [tmp_path / 'missing']) == 3
    assert json.loads(path.read_text())


def test_arguments_of_a_check_are_part_of_its_key(tmp_path: Path) -> None:
    cache = CheckCache(tmp_path / 'checks.json')

    def double(number: int) -> int:
        return 2 * number

    assert [cache.get(double, [], number) for number in (1, 2, 1)] == [2, 4, 2]


def test_label_maps_are_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made.label_maps(tmp_path / 'data')
    decode = log_calls(segmentation.count_values, tmp_path / 'calls')
    monkeypatch.setattr(segmentation, 'count_values', decode)

    def classes() -> tuple[str, ...]:
        options = ReadOptions(tmp_path / 'lists', CheckCache(tmp_path / 'checks.json'))
        return segmentation.read_segmentation(tmp_path / 'data', options).classes

    for _ in range(2):
        assert classes() == ('class 0', 'class 1', 'class 2')
    # Once for each split.
    assert (tmp_path / 'calls').read_text().split() == ['0', '0']
    made.write_image(tmp_path / 'data' / 'labels' / 'val' / 'val_0.png', np.full_like(made.LABELS, 3))
    assert len(classes()) == 4
