"""The terminal output of training: summary, progress, results and next commands."""

import logging
import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from mmengine.logging import MessageHub
from mmengine.runner import Runner

from inline.engine.hooks.summary import format_command, resume_command, shorten_path
from inline.engine.terminal import METRIC_INFO, TerminalFilter, TerminalFormatter, terminal_log
from tests.conftest import ROOT, run_tool

CONFIG = 'inline-pvt-nano_digits'


@pytest.fixture(scope='module')
def run(digit_scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Train for two epochs on 120 images, one of them damaged; return the work directory and the output."""
    folder = tmp_path_factory.mktemp('summary')
    data, work_dir = folder / 'digit_scenes', folder / 'work dir'
    shutil.copytree(digit_scenes / 'classification', data / 'classification')
    min(data.glob('classification/train/*/*.jpg')).write_bytes(b'')
    done = run_tool(
        'tools/train.py', CONFIG, '--work-dir', work_dir, '--data-root', folder,
        '--epochs', '2', '--batch-size', '20', '--workers', '0', '--lr', '1e-3', '--seed', '3',
        '--cfg-options', 'default_hooks.checkpoint.save_best=auto', 'data_validation.max_skipped=1',
        'train_cfg.val_interval=1',
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return work_dir, done.stdout.splitlines()


def rows(lines: list[str]) -> dict[str, str]:
    """Return the indented rows of a summary by their names."""
    return {line.split()[0]: line[2:].split(maxsplit=1)[1] for line in lines if line.startswith('  ')}


@pytest.mark.slow
def test_one_screen_before_the_first_step(run: tuple[Path, list[str]]) -> None:
    work_dir, lines = run
    first = next(i for i, line in enumerate(lines) if 'Iter(train)' in line)
    assert first < 20
    start = lines.index(f'training {CONFIG}')
    shown = rows(lines[start:first])
    assert shown['model'].startswith('ImageClassifier with InLinePVT, 0.25 M parameters')
    assert shown['data'].startswith('CustomDataset: 120 training images, 10 classes (0, 1, ')
    assert shown['data'].endswith(', 20 validation images')
    assert shown['weights'] == 'random initialisation'
    assert '1 process, float32' in shown['device']
    assert shown['schedule'] == (
        '12 steps of 20 images, 0 data workers, AdamW with learning rate 0.001, '
        'validation every 6 steps, seed 3'
    )
    log = Path(shown['log']).read_text()
    # The tests skip MMEngine's report of the environment.
    assert 'Hooks will be executed' in log
    assert 'Hooks will be executed' not in '\n'.join(lines)
    assert f'training {CONFIG}\n' in log
    assert Path(shown['config']) == work_dir / f'{CONFIG}.py'


@pytest.mark.slow
def test_progress_has_the_remaining_time_and_the_metric(run: tuple[Path, list[str]]) -> None:
    steps = [line for line in run[1] if 'Iter(train)' in line]
    assert len(steps) == 12
    assert all(' eta: ' in line and ' loss: ' in line for line in steps)
    assert all('accuracy/top1: ' not in line for line in steps[:6])
    assert all('(best ' in line for line in steps[6:])


@pytest.mark.slow
def test_the_last_lines_are_results_and_commands_that_work(run: tuple[Path, list[str]]) -> None:
    work_dir, lines = run
    end = next(i for i, line in enumerate(lines) if line.startswith('finished 12 steps in 0:'))
    shown = rows(lines[end : lines.index('next')])
    assert f'{work_dir}/best_accuracy_top1_iter_' in shown['best']
    assert shown['last'].endswith(f'{work_dir}/iter_12.pth')
    assert shown['skipped'].startswith('1 image, listed in ')
    commands = [shlex.split(line) for line in lines[lines.index('next') + 1 :]]
    assert [command[1] for command in commands] == ['tools/test.py', 'tools/predict.py', 'tools/export.py']
    tested, predicted = (run_tool(*command[1:]) for command in commands[:2])
    assert tested.returncode == 0, tested.stderr[-2000:]
    best = shown['best'].split(':')[0].split()[1]
    assert f'accuracy/top1: {float(best):.4f}' in tested.stdout
    assert tested.stdout.startswith(f'testing {CONFIG}\n')
    assert predicted.returncode == 0, predicted.stderr[-2000:]
    assert len(list((work_dir / 'predictions').rglob('*.json'))) > 0


@pytest.mark.parametrize('verbose', [False, True])
def test_the_log_file_has_everything(
    verbose: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runner = SimpleNamespace(_log_dir=str(tmp_path), timestamp='run', _experiment_name=f'run {verbose}')
    with terminal_log(verbose):
        logger = Runner.build_logger(runner)
    logger.info('System environment: many lines')
    assert ('System environment' in capsys.readouterr().out) is verbose
    assert 'mmengine - INFO - System environment: many lines' in (tmp_path / 'run.log').read_text()


@pytest.mark.parametrize(
    ('argv', 'command'),
    [
        (['tools/train.py', 'a b.py'], "python tools/train.py 'a b.py' --resume"),
        (['t.py', 'c', '--resume', 'x.pth', '--amp'], 'python t.py c --amp --resume'),
        (['t.py', 'c', '--resume', '--amp'], 'python t.py c --amp --resume'),
        (['t.py', 'c', '--launcher', 'pytorch'], 'the same command with --resume'),
        (['inline train', 'a b.py', '--amp'], "inline train 'a b.py' --amp --resume"),
    ],
)
def test_command_to_continue_a_training(argv: list[str], command: str) -> None:
    assert resume_command(argv) == command


def test_paths_are_relative_to_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr('sys.argv', ['pytest'])
    assert shorten_path(tmp_path / 'work dirs' / 'x.py') == 'work dirs/x.py'
    assert shorten_path(tmp_path.parent / 'x.py') == str(tmp_path.parent / 'x.py')
    assert format_command('test.py', 'work dirs/x.py') == f"python {ROOT}/tools/test.py 'work dirs/x.py'"
    monkeypatch.setattr('sys.argv', ['inline train', 'x'])
    assert format_command('test.py', 'work dirs/x.py') == "inline test 'work dirs/x.py'"


def record(message: str, level: int = logging.INFO, path: str = '/mmengine/runner.py') -> logging.LogRecord:
    return logging.LogRecord('mmengine', level, path, 1, message, None, None)


@pytest.mark.parametrize(
    ('message', 'level', 'path', 'shown'),
    [
        ('Config:\nmodel = 1', logging.INFO, '/mmengine/runner.py', False),
        ('Iter(train) [1/2]', logging.INFO, '/mmengine/logger_hook.py', True),
        ('Exp name: x', logging.INFO, '/mmengine/logger_hook.py', False),
        ('Saving checkpoint at 2 iterations', logging.INFO, '/mmengine/checkpoint_hook.py', False),
        ('something is wrong', logging.WARNING, '/mmengine/runner.py', True),
        ('"FileClient" will be deprecated in future', logging.WARNING, '/mmengine/io.py', False),
        ('stopped', logging.INFO, f'{ROOT}/inline/engine/hooks/preemption.py', True),
    ],
)
def test_the_terminal_shows_progress_and_warnings(message: str, level: int, path: str, shown: bool) -> None:
    assert TerminalFilter().filter(record(message, level, path)) is shown


def test_the_terminal_shows_tables_of_a_test_and_never_what_is_printed_otherwise() -> None:
    table = record('| class | IoU |', path='/mmseg/iou_metric.py')
    assert not TerminalFilter().filter(table)
    assert TerminalFilter(with_tables=True).filter(table)
    table.file_only = True
    assert not TerminalFilter(with_tables=True).filter(table)


def test_lines_of_training_steps_end_with_the_metric() -> None:
    step = record('Iter(train) [1/2]  loss: 1.0', path='/mmengine/logger_hook.py')
    infos = MessageHub.get_current_instance().runtime_info
    infos[METRIC_INFO] = ''
    assert TerminalFormatter().format(step).endswith('Iter(train) [1/2]  loss: 1.0')
    infos[METRIC_INFO] = 'mIoU: 3 (best 4)'
    assert TerminalFormatter().format(step).endswith('loss: 1.0  mIoU: 3 (best 4)')
    assert TerminalFormatter().format(record('careful', logging.WARNING)).startswith('warning: ')
