"""The digit scenes are reproducible, their splits are disjoint and their annotations are consistent."""

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pycocotools.coco import COCO

from inline.datasets.digits import rendering, scenes
from inline.datasets.digits import sources as digit_sources
from inline.datasets.digits.contact_sheet import contact_sheet
from inline.datasets.digits.rendering import DigitScenesOptions, render_classification, render_scene
from inline.datasets.digits.scenes import SPLIT_FOLDERS, write_digit_scenes
from inline.datasets.digits.sources import SPLITS, DigitSources, Split, load_photographs, load_sources
from inline.utils.errors import UserError
from tests.conftest import run_tool

TINY = DigitScenesOptions(
    seed=3,
    classification_size=32,
    num_classification_train=40,
    num_classification_val=20,
    scene_size=96,
    num_scenes_train=8,
    num_scenes_val=5,
    max_digit_size=48,
)
TINY_FLAGS = [f'--{name.replace("_", "-")}={value}' for name, value in asdict(TINY).items()]


@pytest.fixture(scope='module')
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp('tiny') / 'digit_scenes'
    assert write_digit_scenes(out, TINY)
    return out


@pytest.fixture(scope='module')
def sources() -> DigitSources:
    return load_sources(0)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob('*') if path.is_file()}


class Interrupted(BaseException):
    """Like KeyboardInterrupt, which would stop pytest if it escaped a test."""


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Interrupt the rendering after 45 images, until the returned patch is undone."""
    render_all = scenes._render_all

    def render_some(*args: Any) -> Iterator[Any]:
        yield from islice(render_all(*args), 45)
        raise Interrupted

    monkeypatch.setattr(scenes, '_render_all', render_some)
    return monkeypatch


def test_same_options_give_the_same_bytes(tiny: Path, tmp_path: Path) -> None:
    assert write_digit_scenes(tmp_path / 'again', TINY)
    assert contents(tmp_path / 'again') == contents(tiny)


def test_another_seed_gives_other_images_and_splits(tiny: Path, tmp_path: Path) -> None:
    write_digit_scenes(tmp_path / 'other', replace(TINY, seed=4))
    scene = 'images/training/scene_000000.jpg'
    assert (tmp_path / 'other' / scene).read_bytes() != (tiny / scene).read_bytes()
    digits = [json.loads((out / 'meta.json').read_text())['digits'] for out in (tiny, tmp_path / 'other')]
    assert digits[0]['val'] != digits[1]['val']


def test_more_images_do_not_change_the_others(tiny: Path, tmp_path: Path) -> None:
    more = replace(TINY, num_classification_train=60, num_scenes_train=10, num_scenes_val=7)
    write_digit_scenes(tmp_path / 'more', more)
    small, large = contents(tiny), contents(tmp_path / 'more')
    images = [name for name in small if not name.endswith('.json')]
    assert len(large) > len(small)
    assert all(large[name] == small[name] for name in images)


def test_no_digit_is_in_both_splits(tiny: Path) -> None:
    seen: dict[Split, set[int]] = {}
    meta = json.loads((tiny / 'meta.json').read_text())
    for split in SPLITS:
        names = [path.name for path in (tiny / 'classification' / split).rglob('*.jpg')]
        in_images = {int(re.search(r'digit(\d+)', name)[1]) for name in names}
        coco = json.loads((tiny / f'instances_{split}.json').read_text())
        seen[split] = in_images | {annotation['digit'] for annotation in coco['annotations']}
        assert seen[split] <= set(meta['digits'][split])
    assert seen['train']
    assert seen['val']
    assert not set(meta['digits']['train']) & set(meta['digits']['val'])


def test_every_digit_is_in_one_split_and_classes_are_balanced(sources: DigitSources) -> None:
    for train, val in zip(sources.indices['train'], sources.indices['val'], strict=True):
        assert len(val) / (len(train) + len(val)) == pytest.approx(0.2, abs=0.01)
    indices = np.concatenate([digits for split in SPLITS for digits in sources.indices[split]])
    assert sorted(indices) == list(range(1797))


def test_all_digits_are_different_images(sources: DigitSources) -> None:
    """Otherwise one image could be in both splits."""
    assert len(np.unique(sources.digits.reshape(1797, -1), axis=0)) == 1797


def test_classification_folders_are_balanced(tiny: Path) -> None:
    for split in SPLITS:
        folders = sorted((tiny / 'classification' / split).iterdir())
        assert [folder.name for folder in folders] == [str(label) for label in range(10)]
        expected = TINY.num_classification(split) // 10
        assert [len(list(folder.glob('*.jpg'))) for folder in folders] == [expected] * 10
    image = cv2.imread(str(next((tiny / 'classification' / 'val' / '7').iterdir())))
    assert image.shape == (32, 32, 3)


@pytest.mark.parametrize('split', SPLITS)
def test_coco_file_matches_the_label_maps(tiny: Path, split: Split) -> None:
    coco = COCO(str(tiny / f'instances_{split}.json'))
    assert len(coco.imgs) == TINY.num_scenes(split)
    assert {category['id']: category['name'] for category in coco.cats.values()} == {
        label + 1: str(label) for label in range(10)
    }
    for image_id, image in coco.imgs.items():
        pixels = cv2.imread(str(tiny / 'images' / SPLIT_FOLDERS[split] / image['file_name']))
        assert pixels.shape == (image['height'], image['width'], 3) == (96, 96, 3)
        png = tiny / 'annotations' / SPLIT_FOLDERS[split] / image['file_name'].replace('.jpg', '.png')
        label_map = cv2.imread(str(png), cv2.IMREAD_UNCHANGED)
        assert label_map.dtype == np.uint8
        rebuilt = np.ones_like(label_map)
        annotations = coco.imgToAnns[image_id]
        assert 1 <= len(annotations) <= 6
        for annotation in annotations:
            mask = coco.annToMask(annotation).astype(bool)
            assert (rebuilt[mask] == 1).all(), 'visible masks must not overlap'
            rebuilt[mask] = annotation['category_id'] + 1
            assert annotation['area'] == mask.sum() > 0
            rows, columns = np.nonzero(mask)
            left, top = columns.min(), rows.min()
            assert annotation['bbox'] == [left, top, columns.max() - left + 1, rows.max() - top + 1]
            assert annotation['iscrowd'] == 0
        np.testing.assert_array_equal(rebuilt, label_map)


def test_image_ids_are_unique_across_splits(tiny: Path) -> None:
    ids = [
        image['id']
        for split in SPLITS
        for image in json.loads((tiny / f'instances_{split}.json').read_text())['images']
    ]
    assert len(set(ids)) == len(ids) == TINY.num_scenes_train + TINY.num_scenes_val


def test_scenes_vary_and_every_digit_is_readable(sources: DigitSources) -> None:
    options = DigitScenesOptions()
    rendered = [render_scene(sources, options, 'train', index) for index in range(80)]
    instances = [instance for scene in rendered for instance in scene.instances]
    assert {len(scene.instances) for scene in rendered} == {1, 2, 3, 4, 5, 6}
    assert {instance.label for instance in instances} == set(range(10))
    assert min(instance.visible for instance in instances) >= 1 - rendering.MAX_HIDDEN
    assert any(instance.visible < 1 for instance in instances), 'some digits should overlap'
    visible = [i.mask.astype(np.uint8) for i in instances if i.visible == 1]
    sizes = [max(cv2.boundingRect(mask)[2:]) for mask in visible]
    assert options.min_digit_size - 2 <= min(sizes) < options.min_digit_size + 6
    assert options.max_digit_size - 9 < max(sizes) <= options.max_digit_size + 2


@pytest.mark.parametrize('max_digits', [1, 3])
def test_max_digits(sources: DigitSources, max_digits: int) -> None:
    options = DigitScenesOptions(max_digits=max_digits)
    counts = {len(render_scene(sources, options, 'val', index).instances) for index in range(25)}
    assert counts == set(range(1, max_digits + 1))


@given(
    luminance=st.floats(0, 255),
    std=st.floats(0, 127.5),
    seed=st.integers(0, 2**32 - 1),
)
def test_ink_has_contrast_to_its_background(luminance: float, std: float, seed: int) -> None:
    background = rendering.Background(luminance, std)
    color = rendering._ink_color(np.random.default_rng(seed), background)
    assert color.min() >= -0.01
    assert color.max() <= 255.01
    ink = float(color @ np.array([0.114, 0.587, 0.299]))
    assert abs(ink - luminance) >= rendering.MIN_CONTRAST - 0.1


def test_digits_have_contrast_in_the_final_image(sources: DigitSources) -> None:
    """In scenes with one digit, after noise and clipping."""
    options = DigitScenesOptions(max_digits=1)
    for index in range(40):
        scene = render_scene(sources, options, 'val', index)
        mask = scene.instances[0].mask.astype(np.uint8)
        around = cv2.dilate(mask, np.ones((7, 7), np.uint8)) - cv2.dilate(mask, np.ones((3, 3), np.uint8))
        gray = cv2.cvtColor(scene.image, cv2.COLOR_BGR2GRAY).astype(float)
        assert abs(gray[mask == 1].mean() - gray[around == 1].mean()) > 30


def test_an_interrupted_call_can_be_repeated(
    tiny: Path, tmp_path: Path, interrupted: pytest.MonkeyPatch
) -> None:
    out = tmp_path / 'digit_scenes'
    with pytest.raises(Interrupted):
        write_digit_scenes(out, TINY)
    assert not out.exists()
    interrupted.undo()
    assert write_digit_scenes(out, TINY)
    assert contents(out) == contents(tiny)
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.usefixtures('interrupted')
def test_an_interrupted_overwrite_keeps_the_old_files(tiny: Path, tmp_path: Path) -> None:
    out = shutil.copytree(tiny, tmp_path / 'digit_scenes')
    with pytest.raises(Interrupted):
        write_digit_scenes(out, replace(TINY, seed=9), overwrite=True)
    assert contents(out) == contents(tiny)


@pytest.mark.usefixtures('interrupted')
def test_complete_scenes_are_kept(tiny: Path) -> None:
    times = {path: path.stat().st_mtime_ns for path in tiny.rglob('*')}
    assert not write_digit_scenes(tiny, TINY)
    assert {path: path.stat().st_mtime_ns for path in tiny.rglob('*')} == times


def test_other_options_need_overwrite(tiny: Path, tmp_path: Path) -> None:
    out = shutil.copytree(tiny, tmp_path / 'digit_scenes')
    fewer = replace(TINY, num_scenes_train=2)
    with pytest.raises(UserError, match='other options'):
        write_digit_scenes(out, fewer)
    assert contents(out) == contents(tiny)
    assert write_digit_scenes(out, fewer, overwrite=True)
    assert len(list((out / 'images' / 'training').iterdir())) == 2


def test_incomplete_scenes_need_overwrite(tiny: Path, tmp_path: Path) -> None:
    out = shutil.copytree(tiny, tmp_path / 'digit_scenes')
    (out / 'meta.json').unlink()
    with pytest.raises(UserError, match='incomplete'):
        write_digit_scenes(out, TINY)
    assert write_digit_scenes(out, TINY, overwrite=True)
    assert contents(out) == contents(tiny)


@pytest.mark.parametrize('overwrite', [False, True])
@pytest.mark.parametrize('name', ['thesis.txt', 'images/training/ADE_train_00000001.jpg'])
def test_a_folder_with_other_files_is_never_replaced(tmp_path: Path, name: str, overwrite: bool) -> None:
    out = tmp_path / 'digit_scenes'
    (out / name).parent.mkdir(parents=True)
    (out / name).write_text('years of work')
    with pytest.raises(UserError, match=re.escape(name)):
        write_digit_scenes(out, TINY, overwrite=overwrite)
    assert contents(out) == {name: b'years of work'}


def test_digit_scenes_with_another_file_are_never_replaced(tiny: Path, tmp_path: Path) -> None:
    out = shutil.copytree(tiny, tmp_path / 'digit_scenes')
    (out / 'notes.md').write_text('mine')
    with pytest.raises(UserError, match=r'notes\.md'):
        write_digit_scenes(out, TINY, overwrite=True)
    assert (out / 'notes.md').read_text() == 'mine'
    assert (out / 'meta.json').is_file()


def test_a_missing_photograph_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digit_sources, 'PHOTOGRAPHS', ('chelsea.png', 'no_such_photograph.png'))
    with pytest.raises(UserError, match=r"'no_such_photograph\.png'.*scikit-image"):
        load_photographs()


@pytest.mark.parametrize(
    ('name', 'value'),
    [
        ('seed', -1),
        ('classification_size', 31),
        ('num_classification_train', 9),
        ('num_classification_val', 0),
        ('scene_size', 16),
        ('num_scenes_train', 0),
        ('num_scenes_val', -5),
        ('max_digits', 0),
        ('min_digit_size', 3),
        ('max_digit_size', 5000),
    ],
)
def test_invalid_options_are_reported_with_their_range(name: str, value: int) -> None:
    with pytest.raises(UserError, match=rf'{name} {value}: must be from \d+ to \d+'):
        DigitScenesOptions(**{name: value})


@pytest.mark.parametrize('sizes', [(40, 30), (20, 129)])
def test_digit_sizes_must_be_in_order_and_fit_the_scene(sizes: tuple[int, int]) -> None:
    with pytest.raises(
        UserError, match=f'min_digit_size {sizes[0]}, max_digit_size {sizes[1]}: must satisfy'
    ):
        DigitScenesOptions(min_digit_size=sizes[0], max_digit_size=sizes[1])


def test_the_largest_digits_fit_the_smallest_images(sources: DigitSources) -> None:
    options = DigitScenesOptions(classification_size=32, scene_size=32, min_digit_size=32, max_digit_size=32)
    for index in range(20):
        assert render_scene(sources, options, 'train', index).image.shape == (32, 32, 3)
        assert render_classification(sources, options, 'train', index).image.shape == (32, 32, 3)


def test_the_contact_sheet_is_1200_pixels_wide() -> None:
    sheet = contact_sheet(TINY)
    assert sheet.dtype == np.uint8
    assert sheet.shape[1:] == (1200, 3)


def test_the_tool_writes_once(tiny: Path, tmp_path: Path) -> None:
    out, sheet = tmp_path / 'digit_scenes', tmp_path / 'sheet.jpg'
    first = run_tool(
        'tools/make_digit_scenes.py', '--out', str(out), '--contact-sheet', str(sheet), *TINY_FLAGS
    )
    assert first.returncode == 0, first.stderr
    assert '40 + 20 classification images and 8 + 5 scenes' in first.stdout
    assert cv2.imread(str(sheet)) is not None
    assert contents(out) == contents(tiny)
    again = run_tool('tools/make_digit_scenes.py', '--out', str(out), *TINY_FLAGS)
    assert again.returncode == 0
    assert 'nothing to do' in again.stdout


@pytest.mark.parametrize(
    ('flags', 'expected'),
    [
        (['--scene-size', '31'], 'scene_size 31: must be from'),
        (['--seed', 'lucky'], "--seed: invalid int value: 'lucky'"),
        (['--no-such-flag'], '--no-such-flag'),
        (['--contact-sheet', 'sheet.txt'], "'sheet.txt': must end in .jpg, .jpeg or .png"),
        (['--out', '/dev/null/digit_scenes'], 'cannot create a folder in /dev/null'),
    ],
)
def test_the_tool_reports_invalid_arguments_in_one_line(flags: list[str], expected: str) -> None:
    run = run_tool('tools/make_digit_scenes.py', *flags)
    assert run.returncode == 2
    assert run.stdout == ''
    assert run.stderr.startswith('error: ')
    assert run.stderr.count('\n') == 1
    assert expected in run.stderr
