"""tools/reproduce.py: rows of the digits table, trained and tested in real processes."""

import json
from pathlib import Path

import pytest

from inline.reproduce.provenance import path_digest
from inline.utils.tables import read_csv
from tests.conftest import run_tool

QUICK = [
    'train_dataloader.batch_size=4',
    'train_dataloader.num_workers=0',
    'train_dataloader.persistent_workers=False',
    'default_hooks.checkpoint.interval=2',
    'default_hooks.checkpoint.max_keep_ckpts=2',
]


def words(results: Path, data: Path, iterations: int, *more: str | Path) -> list[str | Path]:
    return [
        'tools/reproduce.py', 'run', '--table', 'digits', '--data-root', data, '--results', results,
        '--work-dir', results / 'work', *more, '--cfg-options', *QUICK, f'train_cfg.max_iters={iterations}',
    ]  # fmt: skip


def read(results: Path) -> list[dict[str, str]]:
    return read_csv(results / 'digits.csv')


@pytest.mark.slow
def test_rows_are_trained_once_tested_and_compared(digit_scenes: Path, tmp_path: Path) -> None:
    rows = ['--row', 'inline-pvt-nano', '--row', 'inline-pvt-nano_semantic-fpn']
    command = words(tmp_path, digit_scenes.parent, 4, '--train', *rows)
    done = run_tool(*command)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = read(tmp_path)
    assert [(line['row'], line['how']) for line in lines] == [
        ('inline-pvt-nano', 'trained'),
        ('inline-pvt-nano_semantic-fpn', 'trained'),
    ]
    assert 0 <= float(lines[0]['top1']) <= 100
    assert (lines[0]['miou'], lines[1]['top1']) == ('', '')
    for column in ('commit', 'hardware', 'versions', 'date', 'config_digest', 'data_digest', 'digest'):
        assert lines[0][column]
    table = [line.split() for line in done.stdout.splitlines()]
    assert ['row', 'metric', 'expected', 'measured', 'difference'] in table
    shown = next(line for line in table if line[:2] == ['inline-pvt-nano', 'top-1'])
    assert float(shown[4]) == pytest.approx(float(shown[3]) - float(shown[2]), abs=0.011)

    again = run_tool(*command)
    assert again.returncode == 0, again.stderr[-2000:]
    assert again.stdout.count('already trained') == 2
    assert read(tmp_path) == lines

    folder = tmp_path / 'work' / 'digits' / 'inline-pvt-nano'
    checkpoint = folder / 'iter_4.pth'
    row = ['--row', 'inline-pvt-nano']
    tested = run_tool(*words(tmp_path, digit_scenes.parent, 4, *row, '--weights', checkpoint))
    assert tested.returncode == 0, tested.stderr[-2000:]
    last = read(tmp_path)[-1]
    assert (last['how'], last['top1']) == ('tested', lines[0]['top1'])
    assert last['weights'] == f'iter_4.pth {path_digest(checkpoint)[:12]}'
    assert last['data_digest'] != lines[0]['data_digest'], 'a test reads only the test data'

    # Recreate the files of a run that was killed after its second iteration.
    checkpoint.unlink()
    (folder / 'last_checkpoint').write_text(str(folder / 'iter_2.pth'))
    record = json.loads((folder / 'run.json').read_text())
    (folder / 'run.json').write_text(json.dumps({**record, 'finished': False}))
    (tmp_path / 'digits.csv').unlink()
    resumed = run_tool(*words(tmp_path, digit_scenes.parent, 4, '--train', *row))
    assert resumed.returncode == 0, resumed.stderr[-2000:]
    assert f'resume: from {folder / "iter_2.pth"}' in resumed.stdout
    (line,) = read(tmp_path)
    assert {**line, 'commit': ''} == {**lines[0], 'commit': ''}


@pytest.mark.slow
def test_errors_are_one_line(tmp_path: Path) -> None:
    for more, message in (
        (['--table', 'digits'], 'testing inline-pvt-nano needs trained weights'),
        (['--table', 'digits', '--weights', 'x.pth'], '--weights needs exactly one --row'),
        (
            ['--table', 'digits', '--row', 'pvt-nano', '--weights', 'x.pth'],
            "--weights 'x.pth' does not exist",
        ),
        (['--table', 'coco', '--row', 'inline-pvt-tiny_mask-rcnn_1x', '--train'], 'starting weights'),
        (['--table', 'digits', '--train', '--nproc', '0'], '--nproc 0: must be at least 1'),
    ):
        done = run_tool('tools/reproduce.py', 'run', *more, '--results', tmp_path, '--work-dir', tmp_path)
        assert done.returncode == 2
        assert done.stderr.startswith(f'error: {message}'), done.stderr
        assert done.stderr.count('\n') == 1


@pytest.mark.slow
def test_rows_are_listed_and_shown(tmp_path: Path) -> None:
    done = run_tool('tools/reproduce.py', 'list', '--table', 'ade20k', '--results', tmp_path)
    assert done.returncode == 0, done.stderr
    row = next(line for line in done.stdout.splitlines() if line.startswith('inline-swin-tiny_upernet_160k'))
    for word in ('configs/upernet/', 'checkpoints/inline-swin-tiny.pth', 'mIoU 45.57'):
        assert word in row
    words = ['show', '--table', 'imagenet', '--row', 'inline-deit-tiny', '--results', tmp_path]
    done = run_tool('tools/reproduce.py', *words)
    assert done.returncode == 0, done.stderr
    assert 'expected  top-1 74.5' in done.stdout
    assert (
        'python tools/convert_checkpoint.py inline-deit-tiny checkpoints/inline-deit-tiny.pth' in done.stdout
    )
