"""Malicious files through every way that a user has to hand one over: nothing in them runs."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engine.crash_runs import Attempt, Runs
from tests.engine.malicious import FILES
from tests.engine.test_crash import COMMON

SHORT = {
    **COMMON,
    'train_cfg.max_iters': 4,
    'train_cfg.val_interval': 2,
    'default_hooks.checkpoint.max_keep_ckpts': 1,
}


@pytest.fixture(scope='module')
def trained(digit_scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """A run of two steps."""
    options = {**SHORT, 'train_cfg.max_iters': 2}
    runs = Runs(tmp_path_factory.mktemp('trained') / 'run', digit_scenes.parent, options)
    assert runs.attempt(Attempt(), resume=None)[0] == 0, runs.output()
    return runs


def handed_over(trained: Runs, path: Path, infos: dict[str, Any], **meta: Any) -> Path:
    """The checkpoint of the run, with something added."""
    content = torch.load(trained.folder / 'iter_2.pth', weights_only=False)
    content['meta'] |= meta
    content['message_hub']['runtime_info'] |= infos
    torch.save(content, path)
    return path


@pytest.mark.slow
def test_resuming_runs_nothing_and_removes_nothing_of_others(
    trained: Runs, digit_scenes: Path, tmp_path: Path
) -> None:
    trace, victim = tmp_path / 'trace', tmp_path / 'victim'
    victim.mkdir()
    (victim / 'mine.txt').write_text('mine')
    (victim / 'best_x_iter_1.pth').write_text('mine')
    runs = Runs(tmp_path / 'run', digit_scenes.parent, SHORT)
    infos = {
        'outdated_ckpts': [str(victim), str(victim / 'mine.txt'), str(victim / 'best_x_iter_1.pth')],
        'best_ckpt': str(victim / 'best_x_iter_1.pth'),
        'best_score': -1.0,
        'keep_ckpt_ids': ['../victim/mine.txt', str(victim), 1, 2],
    }
    bad = handed_over(trained, tmp_path / 'bad.pth', infos, config=f'open({str(trace)!r}, "w").close()')
    code, _ = runs.attempt(Attempt(), resume=str(bad))
    assert code == 0, runs.output()
    assert f'resume: from {bad}' in runs.output()
    assert (runs.folder / 'iter_4.pth').is_file()
    assert not trace.exists()
    assert sorted(path.name for path in victim.iterdir()) == ['best_x_iter_1.pth', 'mine.txt']


@pytest.mark.slow
def test_no_malicious_file_is_resumed(digit_scenes: Path, tmp_path: Path) -> None:
    runs = Runs(tmp_path / 'run', digit_scenes.parent, SHORT)
    for number, make in enumerate(FILES.values(), 2):
        (runs.folder / f'iter_{number}.pth').write_bytes(make(tmp_path / 'trace'))
    code, _ = runs.attempt(Attempt(), resume='auto')
    assert code == 2
    assert runs.output().count('resume: skipped') == len(FILES)
    assert 'can be resumed, see above' in runs.output()
    assert not (tmp_path / 'trace').exists()
