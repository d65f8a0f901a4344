"""The dataset of the ImageNet configs gives the same samples from folders and from zips."""

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
from inline.errors import UserError
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
def folders(data_sets: Path) -> Path:
    """ImageNet in class folders alone."""
    root = data_sets / 'imagenet'
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


def test_a_folder_is_preferred_to_a_zip(folders: Path) -> None:
    (folders / 'train.zip').write_bytes(b'no zip at all')
    assert len(build(folders)) == 4


@pytest.mark.parametrize(
    ('method', 'workers'), [('fork', 2), pytest.param('spawn', 1, marks=pytest.mark.slow)]
)
def test_workers_read_the_zip_each_for_itself(folders: Path, method: str, workers: int) -> None:
    expected = samples(build(folders))
    pack(folders / 'train')
    dataset = build(folders)
    # The main process has the zip open before the workers start.
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


def test_labels_may_stand_in_a_file_beside_the_zip(data_sets: Path, tmp_path: Path) -> None:
    """A zip without class folders: as it is, with a map, and with the toolbox's own file of labels."""
    root = data_sets / 'imagenet'
    expected = samples(build(root, 'val'))
    flat = tmp_path / 'flat'
    (flat / 'val').mkdir(parents=True)
    for path in root.glob('val/*/*.JPEG'):
        path.rename(flat / 'val' / f'{path.parent.name}_{path.name}')
    pack(flat / 'val')
    with pytest.raises(UserError, match=r'val\.zip has no class folders, so val_map\.txt beside it'):
        build(flat, 'val')
    labels = (root / 'meta' / 'val.txt').read_text().replace('/', '_')
    (flat / 'val_map.txt').write_text(labels.replace(' ', '\t'))
    assert samples(build(flat, 'val')) == expected
    (flat / 'val_map.txt').unlink()
    (flat / 'meta').mkdir()
    (flat / 'meta' / 'val.txt').write_text(labels)
    assert samples(build(flat, 'val')) == expected


def test_any_file_of_a_zip_can_be_named_by_an_address(folders: Path) -> None:
    content = (folders / 'train' / 'n00000001' / '0.JPEG').read_bytes()
    address = f'zip://{pack(folders / "train")}!/n00000001/0.JPEG'
    assert mmengine.fileio.get(address) == content
    with pytest.raises(UserError, match='a file in a zip is named zip://'):
        mmengine.fileio.get('zip://nowhere/a.JPEG')


def test_batches_of_the_zip_are_shuffled_like_those_of_folders(folders: Path) -> None:
    """The order of samples is the same, so the same seed visits the same images."""

    def visited() -> list[int]:
        generator = torch.Generator().manual_seed(1)
        loader = DataLoader(build(folders), shuffle=True, generator=generator, collate_fn=pseudo_collate)
        return [int(batch['inputs'][0].sum()) for batch in loader]

    expected = visited()
    pack(folders / 'train')
    assert visited() == expected
