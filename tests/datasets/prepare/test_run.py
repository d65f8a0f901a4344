"""From a path to a checked and linked copy."""

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from inline.datasets.prepare import ade20k, coco, imagenet
from inline.datasets.prepare.images import Decoding
from inline.datasets.prepare.report import Part
from inline.datasets.prepare.run import DATA_SETS, DataSet, locate, prepare
from inline.engine.config import load_config, set_data_root
from inline.errors import UserError
from tests.conftest import ROOT

SMALL = {
    'imagenet': partial(imagenet.check, spec=imagenet.ImageNetSpec(train=4, val=4, classes=2)),
    'coco': partial(coco.check, spec=coco.CocoSpec(images={'train2017': 2, 'val2017': 2})),
    'ade20k': partial(ade20k.check, spec=ade20k.Ade20kSpec(training=2, validation=2)),
}
CONFIGS = {
    'imagenet': 'inline_pvt/inline-pvt-tiny_8xb128_in1k',
    'coco': 'mask_rcnn/mask-rcnn_inline-pvt-tiny_fpn_1x_coco',
    'ade20k': 'semantic_fpn/semantic-fpn_inline-pvt-tiny_8xb4-40k_ade20k-512x512',
}


def small(name: str) -> DataSet:
    return replace(DATA_SETS[name], check=SMALL[name])


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., int]:
    def run(name: str, path: Path, **options: str) -> int:
        return prepare(small(name), path, tmp_path / 'data', Decoding(2), **options)

    return run


@pytest.mark.parametrize('name', DATA_SETS)
def test_a_whole_copy_is_linked_where_the_config_looks(
    name: str, run: Callable[..., int], data_sets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = locate(DATA_SETS[name], data_sets)
    assert run(name, data_sets) == 0
    cfg = load_config(ROOT / 'configs' / f'{CONFIGS[name]}.py')
    set_data_root(cfg, tmp_path / 'data')
    place = Path(cfg.train_dataloader.dataset.data_root)
    assert place.is_symlink()
    assert place.resolve() == copy.resolve()
    assert capsys.readouterr().out.splitlines()[-2:] == ['no problem found', f'linked: {place} -> {copy}']
    assert run(name, copy) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f'in place already: {place}'
    assert run(name, place) == 0


def test_the_folder_itself_and_one_above_it_are_understood(tmp_path: Path) -> None:
    ade = tmp_path / 'ADEChallengeData2016'
    (ade / 'images' / 'training').mkdir(parents=True)
    assert locate(DATA_SETS['ade20k'], ade) == ade
    assert locate(DATA_SETS['ade20k'], tmp_path) == ade
    (tmp_path / 'ILSVRC' / 'Data' / 'CLS-LOC' / 'val').mkdir(parents=True)
    assert locate(DATA_SETS['imagenet'], tmp_path) == tmp_path / 'ILSVRC' / 'Data' / 'CLS-LOC'
    assert locate(DATA_SETS['coco'], tmp_path) == tmp_path
    (tmp_path / 'train.zip').touch()
    assert locate(DATA_SETS['imagenet'], tmp_path) == tmp_path


def test_a_faulty_copy_is_linked_only_on_demand(
    run: Callable[..., int], data_sets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (data_sets / 'coco' / 'val2017' / '1.jpg').unlink()
    place = tmp_path / 'data' / 'coco'
    assert run('coco', data_sets) == 1
    last = capsys.readouterr().out.splitlines()[-2:]
    assert last[0] == '2 problems found'
    assert last[1] == f'not linked to {place}: put it right and run again, or give --link-anyway'
    assert not os.path.lexists(place)
    assert run('coco', data_sets, linking='never') == 1
    assert not os.path.lexists(place)
    assert run('coco', data_sets, linking='anyway') == 1
    assert place.resolve() == (data_sets / 'coco').resolve()


@pytest.mark.parametrize('kind', ['folder', 'file', 'link', 'broken link', 'file above'])
def test_what_is_there_already_is_never_overwritten(
    kind: str, run: Callable[..., int], data_sets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / 'data' / 'coco'
    if kind == 'file above':
        place.parent.touch()
    else:
        place.parent.mkdir()
    if kind == 'folder':
        place.mkdir()
    elif kind == 'file':
        place.touch()
    elif 'link' in kind:
        place.symlink_to(tmp_path if kind == 'link' else tmp_path / 'nowhere')
    before = sorted(tmp_path.glob('data*/**'))
    expected = {
        'link': f'is a link to {tmp_path}: move it away',
        'broken link': f'is a link to {tmp_path / "nowhere"}: move it away',
        'file above': 'data is no folder',
    }.get(kind, 'is there already and no link: move it away')
    with pytest.raises(UserError, match=expected):
        run('coco', data_sets, linking='anyway')
    assert sorted(tmp_path.glob('data*/**')) == before
    # Told before the work, not after it; and a check alone does not mind.
    assert capsys.readouterr().out == ''
    assert run('coco', data_sets, linking='never') == 0


def test_images_may_be_left_out_or_sampled(
    data_sets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (data_sets / 'coco' / 'val2017' / '2.jpg').write_bytes(b'')
    assert prepare(small('coco'), data_sets, tmp_path / 'data', None, 'never') == 0
    assert 'no problem found (images were not decoded)' in capsys.readouterr().out
    assert prepare(small('coco'), data_sets, tmp_path / 'data', Decoding(limit=1), 'never') == 0
    assert 'of each folder at most 1 images were decoded' in capsys.readouterr().out
    assert prepare(small('coco'), data_sets, tmp_path / 'data', Decoding(), 'never') == 1


def test_what_may_not_be_read_is_told(data_sets: Path, tmp_path: Path) -> None:
    def refuse(root: Path, decoding: Decoding | None) -> list[Part]:
        raise PermissionError(13, 'Permission denied', str(root / 'train2017'), None, str(decoding))

    with pytest.raises(UserError, match='coco/train2017 cannot be read: Permission denied'):
        prepare(replace(DATA_SETS['coco'], check=refuse), data_sets, tmp_path / 'data', None)
