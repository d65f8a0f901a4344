"""Unreadable training samples are skipped, listed and limited."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest
from mmengine.dataset import BaseDataset, ConcatDataset
from torch.utils.data import DataLoader

from inline.datasets.validation.skip_unreadable import SkippedSamples, format_skipped, skip_unreadable
from inline.engine.hooks.data_validation import DataValidationHook
from inline.openmmlab.patches import report_empty_datasets
from inline.utils.errors import BadDataError, UserError, exit_on_user_error
from tests.datasets.invalid_data import Case


class Pictures(BaseDataset):
    """Images whose index is their brightness."""

    def load_data_list(self) -> list[dict]:
        return [{'img_path': str(path)} for path in sorted(Path(self.data_root).glob('*.png'))]


def write_pictures(folder: Path, count: int) -> None:
    folder.mkdir()
    for i in range(count):
        cv2.imwrite(str(folder / f'{i:02}.png'), np.full((4, 4, 3), i, np.uint8))


def arguments(folder: Path, limit: float) -> dict[str, Any]:
    return {'folder': folder / 'skipped', 'name': 'dataset_0', 'limit': limit}


def pictures(folder: Path, limit: float | None) -> BaseDataset:
    dataset = Pictures(data_root=str(folder), pipeline=[{'type': 'inline.LoadImage'}])
    if limit is not None:
        skip_unreadable(dataset, **arguments(folder, limit))
    return dataset


SAMPLES = {
    'an unreadable training sample': Case(
        'skipped', 'data validation: 2 training samples skipped', lambda: (2, 0.2)
    ),
    'more unreadable training samples than `data_validation.max_skipped`': Case(
        'error', '3 of 10 training samples cannot be read', lambda: (3, 0.2)
    ),
    'a training set without readable samples': Case(
        'error', 'none of 10 samples can be read', lambda: (10, 10)
    ),
    'an unreadable validation or test sample': Case('error', 'cannot be read', lambda: (10, None)),
    'a dataset without samples': Case('rejected', 'has no samples', lambda: (None, 0.2)),
}


@pytest.mark.parametrize('name', SAMPLES)
def test_outcome_of_unreadable_samples(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BaseDataset, '_serialize_data', BaseDataset._serialize_data)
    report_empty_datasets()
    case, folder = SAMPLES[name], tmp_path / 'pictures'
    broken, limit = case.make()
    write_pictures(folder, 0 if broken is None else 10)
    for i in range(10 - (broken or 0), 10):
        (folder / f'{i:02}.png').write_bytes(b'')
    if case.outcome == 'skipped':
        dataset = pictures(folder, limit)
        # The next index, and after the last one the first.
        assert [int(dataset[i]['img'].max()) for i in range(10)] == [0, 1, 2, 3, 4, 5, 6, 7, 0, 0]
        assert format_skipped(dataset.pipeline.skipped.read()).startswith(case.message)
        return
    with pytest.raises(UserError, match=case.message) as caught:
        [sample['img'] for sample in reversed(pictures(folder, limit))]
    assert str(folder) in str(caught.value)
    assert isinstance(caught.value, BadDataError) == (case.outcome == 'error')


def test_a_sample_is_counted_once_for_all_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = SkippedSamples(total=100, **arguments(tmp_path, 2))
    for rank, message in (('0', 'a'), ('1', 'b'), ('1', 'a'), ('0', 'b'), ('0', 'a')):
        monkeypatch.setenv('RANK', rank)
        samples.add(message)
    assert sorted(samples.read()) == ['a', 'b']
    with pytest.raises(BadDataError, match=r'^3 of 100 training samples cannot be read'):
        samples.add('c')
    assert SkippedSamples(total=101, **arguments(tmp_path, 0.01)).allowed == 2
    assert SkippedSamples(total=101, **arguments(tmp_path, 0)).allowed == 0


def test_samples_do_not_depend_on_the_number_of_workers(tmp_path: Path) -> None:
    write_pictures(tmp_path / 'pictures', 12)
    for i in (3, 4, 11):
        (tmp_path / 'pictures' / f'{i:02}.png').write_bytes(b'not an image')
    dataset = pictures(tmp_path / 'pictures', 0.5)
    for workers in (0, 2):
        loader = DataLoader(dataset, 2, num_workers=workers, collate_fn=list)
        loaded = [int(sample['img'].max()) for batch in loader for sample in batch]
        assert loaded == [0, 1, 2, 5, 5, 5, 6, 7, 8, 9, 10, 0]
    assert len(dataset.pipeline.skipped.read()) == 3


@pytest.mark.parametrize('workers', [0, 1])
def test_an_error_in_a_worker_is_one_line(
    workers: int, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pictures(tmp_path / 'pictures', 2)
    (tmp_path / 'pictures' / '01.png').write_bytes(b'')
    # Ranks read different data, so each reports its own error.
    monkeypatch.setenv('RANK', '1')
    loader = DataLoader(pictures(tmp_path / 'pictures', None), 2, num_workers=workers, collate_fn=list)
    with pytest.raises(SystemExit) as exited, exit_on_user_error():
        list(loader)
    assert exited.value.code == 2
    expected = f'error: {str(tmp_path / "pictures" / "01.png")!r} cannot be read: the file is empty\n'
    assert capsys.readouterr().err == expected


@pytest.mark.slow
def test_the_hook_clears_old_lists_and_covers_every_dataset(tmp_path: Path) -> None:
    old = tmp_path / 'work' / 'data_validation' / 'dataset_0_rank_0.txt'
    old.parent.mkdir(parents=True)
    old.write_text("'a.jpg' cannot be read: the file is empty\n")
    write_pictures(tmp_path / 'pictures', 2)
    datasets = [pictures(tmp_path / 'pictures', None) for _ in range(2)]
    loader = SimpleNamespace(dataset=ConcatDataset(datasets))
    runner = SimpleNamespace(work_dir=str(tmp_path / 'work'), train_dataloader=loader)
    DataValidationHook(max_skipped=1).before_train(runner)
    assert not old.exists()
    assert [dataset.pipeline.skipped.name for dataset in datasets] == ['dataset_0', 'dataset_1']
    assert [dataset.pipeline.skipped.limit for dataset in datasets] == [1, 1]
