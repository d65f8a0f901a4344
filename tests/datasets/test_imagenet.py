"""The ImageNet dataset gives the same samples from folders and zips."""

import pickle
import shutil
import zipfile
from pathlib import Path
from typing import Any

import mmengine.fileio
import pytest
import torch
from mmengine.dataset import pseudo_collate
from mmengine.registry import DATASETS, init_default_scope
from torch.utils.data import DataLoader

from inline.datasets.imagenet import ImageNet
from inline.utils.errors import UserError
from tests.datasets.zips import pack

TWO_CLASSES = {'classes': ('first', 'second')}
PIPELINE = [{'type': 'LoadImageFromFile'}, {'type': 'PackInputs'}]


def build(root: Path, split: str = 'train') -> Any:
    init_default_scope('mmpretrain')
    return DATASETS.build(
        {
            'type': 'inline.ImageNet',
            'data_root': str(root),
            'split': split,
            'metainfo': TWO_CLASSES,
            'pipeline': PIPELINE,
        }
    )


def samples(dataset: Any) -> list[tuple[bytes, int]]:
    return [(sample['inputs'].numpy().tobytes(), int(sample['data_samples'].gt_label)) for sample in dataset]


@pytest.fixture
def folders(datasets: Path) -> Path:
    """ImageNet in class folders, without annotation files."""
    root = datasets / 'imagenet'
    shutil.rmtree(root / 'meta')
    return root


@pytest.mark.parametrize('leading', ['', 'train/', 'imagenet/train/'])
@pytest.mark.parametrize('compression', [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_folders_and_zips_give_the_same_samples(folders: Path, leading: str, compression: int) -> None:
    expected = samples(build(folders))
    assert [label for _, label in expected] == [0, 0, 1, 1]
    assert len({pixels for pixels, _ in expected}) == 4
    pack(folders / 'train', leading, compression)
    dataset = build(folders)
    assert isinstance(dataset, ImageNet)
    assert samples(dataset) == expected


def test_a_folder_takes_precedence_over_a_zip(folders: Path) -> None:
    (folders / 'train.zip').write_bytes(b'not a zip')
    assert len(build(folders)) == 4


@pytest.mark.parametrize(
    ('method', 'workers'), [('fork', 2), pytest.param('spawn', 1, marks=pytest.mark.slow)]
)
def test_every_worker_opens_the_zip_itself(folders: Path, method: str, workers: int) -> None:
    expected = samples(build(folders))
    pack(folders / 'train')
    dataset = build(folders)
    # Opens the zip in the main process before the workers start.
    assert samples(dataset) == expected
    loader = DataLoader(
        dataset, batch_size=1, num_workers=workers, multiprocessing_context=method, collate_fn=pseudo_collate
    )
    read = [
        (batch['inputs'][0].numpy().tobytes(), int(batch['data_samples'][0].gt_label)) for batch in loader
    ]
    assert read == expected


def test_a_pickled_dataset_holds_no_open_file(folders: Path) -> None:
    pack(folders / 'train')
    dataset = build(folders)
    expected = samples(dataset)
    assert samples(pickle.loads(pickle.dumps(dataset))) == expected


def test_labels_from_a_file_next_to_the_zip(datasets: Path, tmp_path: Path) -> None:
    """A zip without class folders: without labels, with a map file, with mmpretrain's annotation file."""
    root = datasets / 'imagenet'
    expected = samples(build(root, 'val'))
    flat = tmp_path / 'flat'
    (flat / 'val').mkdir(parents=True)
    for path in root.glob('val/*/*.JPEG'):
        path.rename(flat / 'val' / f'{path.parent.name}_{path.name}')
    pack(flat / 'val')
    with pytest.raises(UserError, match=r'val\.zip has no class folders: give the labels in val_map\.txt'):
        build(flat, 'val')
    labels = (root / 'meta' / 'val.txt').read_text().replace('/', '_')
    (flat / 'val_map.txt').write_text(labels.replace(' ', '\t'))
    assert samples(build(flat, 'val')) == expected
    (flat / 'val_map.txt').unlink()
    (flat / 'meta').mkdir()
    (flat / 'meta' / 'val.txt').write_text(labels)
    assert samples(build(flat, 'val')) == expected


def test_a_zip_member_has_an_address(folders: Path) -> None:
    content = (folders / 'train' / 'n00000001' / '0.JPEG').read_bytes()
    address = f'zip://{pack(folders / "train")}!/n00000001/0.JPEG'
    assert mmengine.fileio.get(address) == content
    with pytest.raises(UserError, match='is not a zip address: must be zip://'):
        mmengine.fileio.get('zip://nowhere/a.JPEG')


def test_shuffling_visits_zips_and_folders_in_the_same_order(folders: Path) -> None:
    def visit() -> list[int]:
        generator = torch.Generator().manual_seed(1)
        loader = DataLoader(build(folders), shuffle=True, generator=generator, collate_fn=pseudo_collate)
        return [int(batch['inputs'][0].sum()) for batch in loader]

    expected = visit()
    pack(folders / 'train')
    assert visit() == expected
