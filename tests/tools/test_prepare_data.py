"""tools/prepare_data.py: real processes, invalid arguments, Ctrl-C."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from tests.configs.tiny_datasets import write_all
from tests.conftest import ROOT, run_tool

TOOL = 'tools/prepare_data.py'


@pytest.fixture
def datasets(tmp_path: Path) -> Path:
    root = tmp_path / 'datasets'
    write_all(root)
    return root


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (['coco', 'nowhere'], "error: 'nowhere' does not exist: give the folder of COCO 2017"),
        (['ade20k', 'README.md'], "error: 'README.md' is not a folder: give the folder of ADE20K"),
        (['voc', 'configs'], "error: argument dataset: invalid choice: 'voc'"),
        (['coco'], 'error: the following arguments are required: path'),
        (['coco', 'configs', '--workers', '0'], 'error: --workers 0: must be at least 1'),
        (['coco', 'configs', '--quick', '--no-images'], 'error: argument --no-images: not allowed with'),
        (['coco', 'configs', '--no-link', '--link-anyway'], 'error: argument --link-anyway: not allowed'),
    ],
)
def test_invalid_arguments_are_reported_in_one_line(words: list[str], message: str) -> None:
    done = run_tool(TOOL, *words)
    assert done.returncode == 2
    assert done.stderr.startswith(message)
    assert done.stderr.count('\n') == 1
    assert done.stdout == ''


def test_an_existing_folder_is_reported_in_one_line(datasets: Path, tmp_path: Path) -> None:
    link = tmp_path / 'data' / 'coco'
    link.mkdir(parents=True)
    done = run_tool(TOOL, 'coco', datasets, '--data-root', tmp_path / 'data')
    assert (done.returncode, done.stdout) == (2, '')
    assert done.stderr.startswith(f'error: {link} exists and is not a link: remove it')
    assert done.stderr.count('\n') == 1


def test_problems_are_reported_and_the_copy_is_linked_anyway(datasets: Path, tmp_path: Path) -> None:
    image = datasets / 'coco' / 'val2017' / '1.jpg'
    image.write_bytes(image.read_bytes()[:1000])
    done = run_tool(
        TOOL, 'coco', datasets, '--link-anyway', '--workers', '2', INLINE_DATA_ROOT=str(tmp_path / 'data')
    )
    assert done.returncode == 1, done.stderr
    assert '  BAD  val2017: 2 images\n         images: 2, expected 5,000\n' in done.stdout
    assert 'images that cannot be decoded: 1 (1.jpg: ' in done.stdout
    assert 'from http://images.cocodataset.org/zips/val2017.zip\n' in done.stdout
    assert done.stdout.endswith(f'linked: {tmp_path}/data/coco -> {datasets}/coco\n')
    assert (tmp_path / 'data' / 'coco').resolve() == (datasets / 'coco').resolve()


def test_progress_and_remaining_time_are_shown(datasets: Path) -> None:
    done = run_tool(TOOL, 'ade20k', datasets, '--no-link', '--workers', '1')
    assert done.returncode == 1
    assert 'decoding images/training: ' in done.stderr
    # Done and total, elapsed and remaining time.
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


def test_ctrl_c_stops_all_processes_with_one_line(tmp_path: Path) -> None:
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
        # Wait until the workers have decoded some images.
        while not re.search(r'\| [1-9]\d*/', seen) and process.poll() is None:
            seen += process.stderr.read(1)
        # Like a terminal, send it to the process group.
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
