"""Runs are known by what their outcome depends on, and never mix with what another version left."""

from dataclasses import replace
from pathlib import Path

import pytest

from inline.engine.runs import Run, clock, run_all, tool_command
from inline.errors import UserError
from tests.conftest import ROOT

CONFIG = ROOT / 'configs' / 'digits_quick' / 'inline-pvt-nano_digits.py'


def test_the_identity_is_of_what_the_outcome_depends_on(tmp_path: Path) -> None:
    weights, others = tmp_path / 'a.pth', tmp_path / 'b.pth'
    weights.write_bytes(b'weights')
    others.write_bytes(b'other weights')
    run = Run(CONFIG, tmp_path / 'run', pretrained=weights)
    different = [
        replace(run, config=CONFIG.with_name('pvt-nano_digits.py')),
        replace(run, pretrained=None),
        replace(run, pretrained=others),
        replace(run, options=('randomness.seed=1',)),
        replace(run, flags=('--amp',)),
        replace(run, depends_on='another version of the data'),
    ]
    assert len({one.identity() for one in (run, *different)}) == 7
    # Where the files lie and how many processes share the work is not of the outcome.
    others.write_bytes(b'weights')
    same = [
        replace(run, folder=tmp_path / 'other'),
        replace(run, pretrained=others),
        replace(run, processes=2),
    ]
    assert {one.identity() for one in same} == {run.identity()}


def test_leftovers_of_another_version_are_removed_and_own_ones_stay(tmp_path: Path) -> None:
    run = Run(CONFIG, tmp_path / 'run')
    run.begin()
    (run.folder / 'iter_100.pth').touch()
    run.begin()
    assert (run.folder / 'iter_100.pth').is_file()
    run.mark_done()
    assert run.is_done()
    other = replace(run, options=('randomness.seed=1',))
    assert not other.is_done()
    other.begin()
    assert not (run.folder / 'iter_100.pth').exists()
    assert not run.is_done()


def test_a_run_in_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / 'notes').write_text('mine')
    with pytest.raises(UserError, match=r"^work directory '.*run' cannot be a folder: Not a directory$"):
        Run(CONFIG, tmp_path / 'notes' / 'run').begin()


def test_killed_while_it_removes_leftovers_a_run_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(CONFIG, tmp_path / 'run')
    run.begin()
    (run.folder / 'begun').write_text('another version')
    for name in ('a', 'logs/b', 'z'):
        (run.folder / name).parent.mkdir(exist_ok=True)
        (run.folder / name).touch()
    removals = []

    def killed(path: Path) -> None:
        removals.append(path)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, 'unlink', killed)
        with pytest.raises(KeyboardInterrupt):
            run.begin()
    assert removals
    run.begin()
    assert [path.name for path in run.folder.iterdir()] == ['begun']


@pytest.mark.parametrize('name', ['photographs/0.jpg', 'photographs'])
def test_what_is_of_no_run_is_never_removed(name: str, tmp_path: Path) -> None:
    own = tmp_path / name
    own.parent.mkdir(exist_ok=True)
    own.write_text('of the user')
    run = Run(CONFIG, tmp_path / 'photographs')
    with pytest.raises(
        UserError, match=r"photographs' is to be the folder of a run and holds something else"
    ):
        run.begin()
    run.forget()
    assert own.read_text() == 'of the user'
    own.unlink()
    run.begin()
    run.forget()
    assert not run.folder.exists()


def test_commands_are_those_a_user_would_type(tmp_path: Path) -> None:
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


def test_a_run_that_fails_ends_all_with_its_last_lines(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = Run(CONFIG, tmp_path / 'run', data_root=str(tmp_path / 'nothing here'))
    with pytest.raises(UserError, match=r'run: training ended with exit code 2, see .*train\.log'):
        run_all([run], width=1)
    assert 'does not exist: make it with' in capfd.readouterr().err
    assert not run.is_done()


def test_time_is_told_in_minutes() -> None:
    assert [clock(seconds) for seconds in (0, 61.9, 3600)] == ['0:00', '1:01', '60:00']
