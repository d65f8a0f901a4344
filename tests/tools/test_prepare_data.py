"""Checking a copy of a data set as a user does: real processes, the common mistakes, Ctrl-C."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from tests.configs.stand_ins import write_all
from tests.conftest import ROOT, run_tool

TOOL = 'tools/prepare_data.py'


@pytest.fixture
def data_sets(tmp_path: Path) -> Path:
    root = tmp_path / 'data_sets'
    write_all(root)
    return root


@pytest.mark.parametrize(
    ('words', 'told'),
    [
        (['coco', 'nowhere'], "error: 'nowhere' does not exist: give the folder that holds COCO 2017"),
        (['ade20k', 'README.md'], "error: 'README.md' is no folder: give the folder that holds ADE20K"),
        (['voc', 'configs'], "error: argument data_set: invalid choice: 'voc'"),
        (['coco'], 'error: the following arguments are required: path'),
        (['coco', 'configs', '--workers', '0'], 'error: --workers 0: must be 1 or more'),
        (['coco', 'configs', '--quick', '--no-images'], 'error: argument --no-images: not allowed with'),
        (['coco', 'configs', '--no-link', '--link-anyway'], 'error: argument --link-anyway: not allowed'),
    ],
)
def test_mistakes_are_told_in_one_line(words: list[str], told: str) -> None:
    done = run_tool(TOOL, *words)
    assert done.returncode == 2
    assert done.stderr.startswith(told)
    assert done.stderr.count('\n') == 1
    assert done.stdout == ''


def test_an_occupied_place_is_told_in_one_line(data_sets: Path, tmp_path: Path) -> None:
    place = tmp_path / 'data' / 'coco'
    place.mkdir(parents=True)
    done = run_tool(TOOL, 'coco', data_sets, '--data-root', tmp_path / 'data')
    assert (done.returncode, done.stdout) == (2, '')
    assert done.stderr.startswith(f'error: {place} is there already and no link: move it away')
    assert done.stderr.count('\n') == 1


def test_faults_are_named_with_their_source_and_the_copy_is_linked_anyway(
    data_sets: Path, tmp_path: Path
) -> None:
    image = data_sets / 'coco' / 'val2017' / '1.jpg'
    image.write_bytes(image.read_bytes()[:1000])
    done = run_tool(
        TOOL, 'coco', data_sets, '--link-anyway', '--workers', '2', INLINE_DATA_ROOT=str(tmp_path / 'data')
    )
    assert done.returncode == 1, done.stderr
    assert '  BAD  val2017: 2 images\n         images: 2, expected 5,000\n' in done.stdout
    assert 'images that cannot be decoded: 1 (1.jpg: ' in done.stdout
    assert 'from http://images.cocodataset.org/zips/val2017.zip\n' in done.stdout
    assert done.stdout.endswith(f'linked: {tmp_path}/data/coco -> {data_sets}/coco\n')
    assert (tmp_path / 'data' / 'coco').resolve() == (data_sets / 'coco').resolve()


def test_progress_and_the_time_that_is_left_are_shown(data_sets: Path) -> None:
    done = run_tool(TOOL, 'ade20k', data_sets, '--no-link', '--workers', '1')
    assert done.returncode == 1
    assert 'decoding images/training: ' in done.stderr
    # How many of how many, and the time since the start before the time that is left.
    assert '0/2 [00:00<?' in done.stderr


def test_help_explains_every_flag() -> None:
    done = run_tool(TOOL, '--help')
    assert done.returncode == 0
    for word in (
        '--data-root',
        '--workers',
        '--quick',
        '--no-images',
        '--no-link',
        '--link-anyway',
        'Exit code',
    ):
        assert word in done.stdout


def test_ctrl_c_ends_all_processes_with_one_line(tmp_path: Path) -> None:
    folder = tmp_path / 'coco' / 'train2017'
    folder.mkdir(parents=True)
    noise = np.random.default_rng(0).integers(0, 256, (1500, 1500, 3)).astype(np.uint8)
    assert cv2.imwrite(str(folder / '0.jpg'), noise)
    for i in range(1, 20_000):
        (folder / f'{i}.jpg').symlink_to(folder / '0.jpg')
    process = subprocess.Popen(
        [sys.executable, TOOL, 'coco', str(tmp_path), '--no-link', '--workers', '2'],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None
    seen = ''
    try:
        # Some images are through: the workers are at work.
        while not re.search(r'\| [1-9]\d*/', seen) and process.poll() is None:
            seen += process.stderr.read(1)
        # A terminal sends it to the whole group.
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    assert process.returncode == 130, err
    assert out == ''
    assert 'Traceback' not in err
    assert err.rstrip('\n').splitlines()[-1].strip() == 'interrupted'
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
