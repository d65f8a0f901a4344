"""tools/benchmark.py and tools/profile_train.py."""

import csv
import io
from pathlib import Path

import pytest

from tests.conftest import run_tool

CLASSIFIER = 'configs/digits_quick/inline-pvt-nano_digits.py'


@pytest.mark.slow
def test_config_and_released_model_are_timed() -> None:
    for words in ((CLASSIFIER, '--batch', '2'), ('--models', 'inline-deit-tiny')):
        done = run_tool('tools/benchmark.py', *words, '--shape', '64', '96', '--repetitions', '1')
        assert done.returncode == 0, done.stderr
        (row,) = csv.DictReader(io.StringIO(done.stdout))
        assert (row['height'], row['width']) == ('64', '96')
        assert float(row['images/s']) > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (['--models', 'inline-vgg'], 'inline-vgg'),
        (['--batch', '0'], '--batch 0: must be at least 1'),
        (['--device', 'cuda'], '--device cuda: torch finds no GPU'),
        (['--shape', '8', '64'], '--shape 8 64: each side must be at least 32'),
        (['--redraw', 'figure5.csv'], '--redraw needs --figure5 FOLDER'),
        (['--figure5', 'README.md'], "--figure5 'README.md': cannot create this folder: File exists"),
    ],
)
def test_user_error_is_reported_in_one_line(words: list[str], message: str) -> None:
    done = run_tool('tools/benchmark.py', *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert 'Traceback' not in done.stderr
    assert not done.stdout


@pytest.mark.slow
def test_phases_of_a_training_step_are_listed(digit_scenes: Path) -> None:
    options = [
        f'train_dataloader.dataset.data_root={digit_scenes / "classification"}',
        'train_dataloader.num_workers=0',
        'train_dataloader.persistent_workers=False',
        'train_dataloader.batch_size=2',
    ]
    done = run_tool('tools/profile_train.py', CLASSIFIER, '--steps', '2', '--cfg-options', *options)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()[-9:]
    phases = {line.split()[0]: float(line.split()[1]) for line in lines[1:]}
    assert phases['forward'] > 0
    assert phases['backward'] > 0
    assert 'hooks' in phases
    assert sum(ms for name, ms in phases.items() if name != 'step') == pytest.approx(phases['step'], abs=0.5)
