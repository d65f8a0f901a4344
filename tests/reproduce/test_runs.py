"""Runs: inputs, resuming, restarts after changed inputs, and provenance records."""

import json
import subprocess
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from inline.reproduce import provenance, runs
from inline.reproduce.runs import Run, format_minutes, run_all, tool_command
from inline.utils import environment
from inline.utils.errors import UserError
from tests.conftest import ROOT

CONFIG = ROOT / 'configs' / 'digits_quick' / 'inline-pvt-nano_digits.py'
DETECTOR = ROOT / 'configs' / 'mask_rcnn' / 'mask-rcnn_inline-pvt-tiny_fpn_1x_coco.py'


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / 'weights.pth'
    path.write_bytes(b'weights')
    return path


@pytest.fixture
def data_root(tmp_path: Path) -> Path:
    """A data root with two images, in the layout of the digit scenes."""
    for split in ('train', 'val'):
        image = tmp_path / 'data' / 'digit_scenes' / 'classification' / split / '0' / 'image.jpg'
        image.parent.mkdir(parents=True)
        image.write_bytes(b'pixels')
    return tmp_path / 'data'


def test_runs_with_different_inputs_have_different_digests(
    tmp_path: Path, weights: Path, data_root: Path
) -> None:
    other_weights = tmp_path / 'other.pth'
    other_weights.write_bytes(b'other weights')
    run = Run(CONFIG, tmp_path / 'run', pretrained=weights, data_root=str(data_root))
    different = [
        replace(run, config=CONFIG.with_name('pvt-nano_digits.py')),
        replace(run, pretrained=None),
        replace(run, pretrained=other_weights),
        replace(run, options=('randomness.seed=1',)),
        replace(run, flags=('--amp',)),
    ]
    assert len({candidate.inputs().digest for candidate in (run, *different)}) == 6


def test_the_location_of_files_and_the_number_of_processes_are_not_inputs(
    tmp_path: Path, weights: Path, data_root: Path
) -> None:
    run = Run(CONFIG, tmp_path / 'run', pretrained=weights, data_root=str(data_root))
    digest = run.inputs().digest
    copy = weights.with_name('copy.pth')
    copy.write_bytes(weights.read_bytes())
    moved = data_root.rename(tmp_path / 'moved')
    same = replace(
        run, folder=tmp_path / 'other', pretrained=copy, data_root=str(moved), processes=2
    )  # fmt: skip
    assert same.inputs().digest == digest


def test_options_that_repeat_the_config_are_the_same_run(tmp_path: Path) -> None:
    run = Run(CONFIG, tmp_path / 'run')
    default = runs.effective_config(CONFIG).train_cfg.max_iters
    assert replace(run, options=(f'train_cfg.max_iters={default}',)).inputs() == run.inputs()


@pytest.mark.parametrize(
    'option',
    ['load_from={}', 'model.backbone.init_cfg.type=Pretrained model.backbone.init_cfg.checkpoint={}'],
)
def test_a_checkpoint_that_the_config_names_is_an_input(option: str, tmp_path: Path, weights: Path) -> None:
    config = DETECTOR if 'init_cfg' in option else CONFIG
    run = Run(config, tmp_path / 'run', options=tuple(option.format(weights).split()))
    before = run.inputs()
    assert before.weights[str(weights)] == provenance.path_digest(weights)
    weights.write_bytes(b'other weights')
    assert run.inputs().changed_from(before) == ['starting weights']


def test_pretrained_replaces_the_weights_that_the_config_names(tmp_path: Path, weights: Path) -> None:
    run = Run(DETECTOR, tmp_path / 'run', pretrained=weights, options=('load_from=x.pth',))
    assert list(run.inputs().weights) == [str(weights)]


@pytest.mark.parametrize('change', ['new image', 'longer image', 'image renamed'])
def test_the_data_is_an_input(change: str, tmp_path: Path, data_root: Path) -> None:
    run = Run(CONFIG, tmp_path / 'run', data_root=str(data_root))
    before = run.inputs()
    image = data_root / 'digit_scenes' / 'classification' / 'train' / '0' / 'image.jpg'
    if change == 'new image':
        image.with_name('new.jpg').write_bytes(b'pixels')
    elif change == 'longer image':
        image.write_bytes(b'more pixels')
    else:
        image.rename(image.with_name('renamed.jpg'))
    assert run.inputs().changed_from(before) == ['data']


def test_annotations_are_compared_by_content(tmp_path: Path) -> None:
    config = ROOT / 'configs' / 'digits_quick' / 'retinanet_inline-pvt-nano_digits.py'
    annotations = tmp_path / 'digit_scenes' / 'instances_train.json'
    annotations.parent.mkdir()
    annotations.write_text('{"images": 1}')
    run = Run(config, tmp_path / 'run', data_root=str(tmp_path))
    before = run.inputs()
    annotations.write_text('{"images": 2}')
    assert run.inputs().changed_from(before) == ['data']


def test_a_zip_file_of_images_is_compared_by_its_listing(tmp_path: Path) -> None:
    config = ROOT / 'configs' / 'inline_pvt' / 'pvt-tiny_8xb128_in1k.py'
    folder = tmp_path / 'imagenet'
    folder.mkdir()
    run = Run(config, tmp_path / 'run', data_root=str(tmp_path))
    digests = []
    for pixels, labels in ((b'a', None), (b'b', None), (b'b', 'x.JPEG 0'), (b'b', 'x.JPEG 1')):
        with zipfile.ZipFile(folder / 'train.zip', 'w') as file:
            file.writestr('n01440764/x.JPEG', pixels)
        if labels:
            (folder / 'train_map.txt').write_text(labels)
        digests.append(run.inputs().data)
    assert len(set(digests)) == 4


def test_a_run_with_unchanged_inputs_keeps_its_files(tmp_path: Path) -> None:
    run = Run(CONFIG, tmp_path / 'run')
    run.begin()
    (run.folder / 'iter_100.pth').touch()
    run.begin()
    assert (run.folder / 'iter_100.pth').is_file()
    assert not run.is_done()
    run.finish()
    assert run.is_done()


@pytest.mark.parametrize('changed', ['config or options', 'starting weights', 'data'])
def test_a_run_with_changed_inputs_starts_over(
    changed: str, tmp_path: Path, weights: Path, data_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An interrupted run must not resume with other inputs."""
    run = Run(CONFIG, tmp_path / 'run', options=(f'load_from={weights}',), data_root=str(data_root))
    run.begin()
    run.finish()
    (run.folder / 'iter_100.pth').touch()
    if changed == 'config or options':
        run = replace(run, options=(*run.options, 'randomness.seed=1'))
    elif changed == 'starting weights':
        weights.write_bytes(b'other weights')
    else:
        next(data_root.rglob('*.jpg')).unlink()
    assert not run.is_done()
    run.begin()
    assert [path.name for path in run.folder.iterdir()] == ['run.json']
    # The old files are kept.
    assert (tmp_path / 'run_old1' / 'iter_100.pth').is_file()
    assert f'run: starting over, changed: {changed}; old files: ' in capsys.readouterr().out
    replace(run, flags=('--amp',)).begin()
    assert (tmp_path / 'run_old2').is_dir()


def test_the_record_contains_the_inputs_at_the_start(tmp_path: Path, weights: Path) -> None:
    """If the starting weights are replaced during training, the record keeps the digest of the first file."""
    run = Run(CONFIG, tmp_path / 'run', pretrained=weights)
    run.begin()
    used = provenance.path_digest(weights)
    weights.write_bytes(b'other weights')
    run.finish()
    assert run.provenance()['weights'] == f'weights.pth {used[:12]}'
    assert not run.is_done()


def test_another_version_of_the_code_resumes_and_both_are_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(CONFIG, tmp_path / 'run')
    for commit in ('aaa', 'aaa', 'bbb'):
        monkeypatch.setattr(environment, 'describe_commit', lambda commit=commit: commit)
        run.begin()
        (run.folder / 'iter_100.pth').touch()
    assert (run.folder / 'iter_100.pth').is_file()
    columns = run.provenance()
    assert columns['commit'] == 'aaa; bbb'
    assert set(columns) == set(provenance.PROVENANCE)
    for name in ('config_digest', 'data_digest', 'hardware', 'versions', 'date', 'digest'):
        assert columns[name]


def test_a_directory_of_an_earlier_version_is_moved_aside(tmp_path: Path) -> None:
    run = Run(CONFIG, tmp_path / 'run')
    run.folder.mkdir()
    (run.folder / 'begun').write_text('0123')
    run.begin()
    assert (tmp_path / 'run_old1' / 'begun').is_file()
    assert [path.name for path in run.folder.iterdir()] == ['run.json']


def test_a_kill_while_the_record_is_written_is_harmless(tmp_path: Path) -> None:
    run = Run(CONFIG, tmp_path / 'run')
    run.folder.mkdir()
    (run.folder / '.run.json.123.part').write_text('{"inp')
    run.begin()
    assert json.loads((run.folder / 'run.json').read_text())['finished'] is False


def test_a_kill_during_deletion_is_harmless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def kill(path: Path, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            (path / 'run.json').unlink()
            raise KeyboardInterrupt

    run = Run(CONFIG, tmp_path / 'run')
    run.begin()
    (run.folder / 'iter_100.pth').touch()
    with monkeypatch.context() as patched:
        patched.setattr(runs.shutil, 'rmtree', kill)
        with pytest.raises(KeyboardInterrupt):
            run.delete()
    run.begin()
    assert [path.name for path in run.folder.iterdir()] == ['run.json']
    run.delete()
    assert not list(tmp_path.iterdir())


def test_a_work_directory_inside_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / 'notes').write_text('mine')
    with pytest.raises(
        UserError, match=r"^work directory '.*run': cannot create this folder: Not a directory$"
    ):
        Run(CONFIG, tmp_path / 'notes' / 'run').begin()


def test_foreign_files_are_never_deleted(tmp_path: Path) -> None:
    photograph = tmp_path / 'photographs' / '0.jpg'
    photograph.parent.mkdir()
    photograph.write_text('of the user')
    run = Run(CONFIG, tmp_path / 'photographs')
    with pytest.raises(
        UserError, match=r"photographs' is not empty and does not contain a run: choose another one"
    ):
        run.begin()
    run.delete()
    assert photograph.read_text() == 'of the user'
    photograph.unlink()
    run.begin()
    run.delete()
    assert not run.folder.exists()


def test_commands_contain_all_flags_and_options(tmp_path: Path) -> None:
    run = Run(CONFIG, tmp_path / 'run', data_root='/datasets', options=('a=1', 'b=2'), flags=('--amp',))
    words = run.train_command()[1:]
    assert words[0].endswith('tools/train.py')
    assert words[words.index('--data-root') + 1] == '/datasets'
    assert words[-3:] == ['--cfg-options', 'a=1', 'b=2']
    assert {'--amp', '--resume'} <= set(words)
    several = tool_command('test', [CONFIG, 'x.pth'], 8, [])
    assert several[0] == 'bash'
    assert several[1].endswith('tools/dist_test.sh')
    assert several[2:] == [str(CONFIG), 'x.pth', '8']


@pytest.fixture
def fake_tool(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that replaces the tools by a shell command."""

    def install(script: str) -> None:
        def start(_: list[str], **streams: object) -> subprocess.Popen[bytes]:
            return subprocess.Popen(['sh', '-c', script], **streams)  # type: ignore[call-overload]

        monkeypatch.setattr(runs, 'subprocess', SimpleNamespace(Popen=start))

    return install


def test_the_remaining_time_follows_cfg_options(tmp_path: Path, fake_tool: Callable[[str], None]) -> None:
    fake_tool('true')
    run = Run(CONFIG, tmp_path / 'run', options=('train_cfg.max_iters=100',))
    run.begin()
    log = run.folder / '20260101' / 'vis_data' / 'scalars.json'
    log.parent.mkdir(parents=True)
    log.write_text('{"loss": 0.5, "time": 2.0, "step": 40}\n')
    step = runs._Step(run, 'train')
    step.process.wait()
    assert step.progress() == '  run                   40/100  loss 0.500  eta 2:00'


def test_a_failing_run_stops_all_and_shows_its_last_lines(
    tmp_path: Path, fake_tool: Callable[[str], None], capfd: pytest.CaptureFixture[str]
) -> None:
    fake_tool('echo the reason; exit 2')
    failing, waiting = Run(CONFIG, tmp_path / 'run'), Run(CONFIG, tmp_path / 'waiting')
    with pytest.raises(UserError, match=r'run: training failed with exit code 2, see .*train\.log'):
        run_all([failing, waiting], max_parallel=1)
    assert 'the reason' in capfd.readouterr().err
    assert not failing.is_done()
    assert not waiting.folder.exists()


def test_durations_are_minutes_and_seconds() -> None:
    assert [format_minutes(seconds) for seconds in (0, 61.9, 3600)] == ['0:00', '1:01', '60:00']
