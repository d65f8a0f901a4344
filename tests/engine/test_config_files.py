"""Configs by path or by their names in ``configs/``."""

from pathlib import Path

import pytest

from inline.engine.config_files import find_config_path
from inline.utils.errors import UserError
from tests.conftest import ROOT

DIGITS = Path('configs/digits/inline-pvt-micro_digits.py')


@pytest.mark.parametrize(
    'name',
    [
        'inline-pvt-micro_digits',
        'inline-pvt-micro_digits.py',
        'digits/inline-pvt-micro_digits',
        'configs/digits/inline-pvt-micro_digits',
        'configs/digits/inline-pvt-micro_digits.py',
    ],
)
def test_a_config_has_several_names(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert find_config_path(name) == DIGITS


def test_names_work_in_other_folders_and_the_folder_there_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_config_path('inline-pvt-micro_digits') == ROOT / DIGITS
    own = Path('configs/mine/inline-pvt-micro_digits.py')
    own.parent.mkdir(parents=True)
    own.touch()
    assert find_config_path('inline-pvt-micro_digits') == own
    assert find_config_path('inline-pvt-nano_digits').is_relative_to(ROOT)


@pytest.mark.parametrize(
    ('name', 'message'),
    [
        (
            'inline-pvt-mikro_digits',
            r"^config 'inline-pvt-mikro_digits' does not exist: did you mean .*micro_digits",
        ),
        ('configs/inline-pvt-micro_digits.py', r'did you mean configs/digits/inline-pvt-micro_digits\.py\?$'),
        ('zzz', r"^config 'zzz' does not exist: give a path, or a name from configs/$"),
        ('cosformer', r"^config 'cosformer' is the name of \d+ files: give a path, such as ablations/"),
        ('gone.pth', 'looks like a checkpoint: CONFIG comes first'),
    ],
)
def test_unknown_names_are_reported_with_suggestions(
    name: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(UserError, match=message):
        find_config_path(name)
