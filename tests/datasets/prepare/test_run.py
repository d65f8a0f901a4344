"""Checking the dataset at a path and linking it."""

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from inline.datasets.prepare import ade20k, coco, imagenet, tiny_imagenet
from inline.datasets.prepare.inspection import Decoding, PathReport
from inline.datasets.prepare.run import DATASETS, PublicDataset, locate, prepare
from inline.engine.config import load_config, set_data_root
from inline.utils.errors import UserError
from tests.conftest import ROOT

SMALL = {
    'imagenet': partial(imagenet.check, spec=imagenet.ImageNetSpec(train=4, val=4, classes=2)),
    'coco': partial(coco.check, spec=coco.CocoSpec(images={'train2017': 2, 'val2017': 2})),
    'ade20k': partial(ade20k.check, spec=ade20k.Ade20kSpec(training=2, validation=2)),
    'tiny-imagenet': partial(
        tiny_imagenet.check, spec=tiny_imagenet.TinyImageNetSpec(train=4, val=2, classes=2)
    ),
}
CONFIGS = {
    'imagenet': 'inline_pvt/inline-pvt-tiny_8xb128_in1k',
    'coco': 'mask_rcnn/mask-rcnn_inline-pvt-tiny_fpn_1x_coco',
    'ade20k': 'semantic_fpn/semantic-fpn_inline-pvt-tiny_8xb4-40k_ade20k-512x512',
    'tiny-imagenet': 'tiny_imagenet/inline-pvt-micro_tiny-imagenet',
}


def small(name: str) -> PublicDataset:
    return replace(DATASETS[name], check=SMALL[name])


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., int]:
    def run(name: str, path: Path, **options: str) -> int:
        return prepare(small(name), path, tmp_path / 'data', Decoding(2), **options)

    return run


@pytest.mark.parametrize('name', DATASETS)
def test_a_complete_copy_is_linked_to_where_the_config_looks(
    name: str, run: Callable[..., int], datasets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = locate(DATASETS[name], datasets)
    assert run(name, datasets) == 0
    cfg = load_config(ROOT / 'configs' / f'{CONFIGS[name]}.py')
    set_data_root(cfg, tmp_path / 'data')
    link = Path(cfg.train_dataloader.dataset.data_root)
    assert link.is_symlink()
    assert link.resolve() == copy.resolve()
    assert capsys.readouterr().out.splitlines()[-2:] == ['no problems found', f'linked: {link} -> {copy}']
    assert run(name, copy) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f'already linked: {link}'
    assert run(name, link) == 0


def test_the_dataset_is_found_in_its_folder_and_in_a_parent_folder(tmp_path: Path) -> None:
    ade = tmp_path / 'ADEChallengeData2016'
    (ade / 'images' / 'training').mkdir(parents=True)
    assert locate(DATASETS['ade20k'], ade) == ade
    assert locate(DATASETS['ade20k'], tmp_path) == ade
    (tmp_path / 'ILSVRC' / 'Data' / 'CLS-LOC' / 'val').mkdir(parents=True)
    assert locate(DATASETS['imagenet'], tmp_path) == tmp_path / 'ILSVRC' / 'Data' / 'CLS-LOC'
    assert locate(DATASETS['coco'], tmp_path) == tmp_path
    (tmp_path / 'train.zip').touch()
    assert locate(DATASETS['imagenet'], tmp_path) == tmp_path


def test_a_copy_with_problems_is_linked_only_on_demand(
    run: Callable[..., int], datasets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (datasets / 'coco' / 'val2017' / '1.jpg').unlink()
    link = tmp_path / 'data' / 'coco'
    assert run('coco', datasets) == 1
    last = capsys.readouterr().out.splitlines()[-2:]
    assert last[0] == '2 problems found'
    assert last[1] == f'not linked to {link}: fix the problems and run again, or use --link-anyway'
    assert not os.path.lexists(link)
    assert run('coco', datasets, link_mode='never') == 1
    assert not os.path.lexists(link)
    assert run('coco', datasets, link_mode='always') == 1
    assert link.resolve() == (datasets / 'coco').resolve()


@pytest.mark.parametrize('kind', ['folder', 'file', 'link', 'broken link', 'file above'])
def test_existing_files_are_never_overwritten(
    kind: str, run: Callable[..., int], datasets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    link = tmp_path / 'data' / 'coco'
    if kind == 'file above':
        link.parent.touch()
    else:
        link.parent.mkdir()
    if kind == 'folder':
        link.mkdir()
    elif kind == 'file':
        link.touch()
    elif 'link' in kind:
        link.symlink_to(tmp_path if kind == 'link' else tmp_path / 'nowhere')
    before = sorted(tmp_path.glob('data*/**'))
    expected = {
        'link': f'links to {tmp_path}: remove it',
        'broken link': f'links to {tmp_path / "nowhere"}: remove it',
        'file above': 'data is not a folder',
    }.get(kind, 'exists and is not a link: remove it')
    with pytest.raises(UserError, match=expected):
        run('coco', datasets, link_mode='always')
    assert sorted(tmp_path.glob('data*/**')) == before
    # The error comes before the check; --no-link only checks.
    assert capsys.readouterr().out == ''
    assert run('coco', datasets, link_mode='never') == 0


def test_images_can_be_left_out_or_sampled(
    datasets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (datasets / 'coco' / 'val2017' / '2.jpg').write_bytes(b'')
    assert prepare(small('coco'), datasets, tmp_path / 'data', None, 'never') == 0
    assert 'no problems found (images were not decoded)' in capsys.readouterr().out
    assert prepare(small('coco'), datasets, tmp_path / 'data', Decoding(limit=1), 'never') == 0
    assert 'at most 1 images per folder were decoded' in capsys.readouterr().out
    assert prepare(small('coco'), datasets, tmp_path / 'data', Decoding(), 'never') == 1


def test_missing_permissions_are_reported(datasets: Path, tmp_path: Path) -> None:
    def refuse(root: Path, decoding: Decoding | None) -> list[PathReport]:
        raise PermissionError(13, 'Permission denied', str(root / 'train2017'), None, str(decoding))

    with pytest.raises(UserError, match='coco/train2017 cannot be read: Permission denied'):
        prepare(replace(DATASETS['coco'], check=refuse), datasets, tmp_path / 'data', None)
