"""The cures act where something is broken, and leave alone what works."""

import logging
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

CODE = """
from inline import compat
compat.prepare()
import torchvision
print('cured' if compat._library is not None else 'left alone', torchvision.__name__)
"""


def run_with_torchvision(folder: Path, source: str) -> subprocess.CompletedProcess[str]:
    """Run the cure in a process where ``import torchvision`` finds the given source."""
    (folder / 'torchvision.py').write_text(source)
    env = {**os.environ, 'PYTHONPATH': str(folder)}
    return subprocess.run([sys.executable, '-c', CODE], env=env, capture_output=True, text=True, check=False)


def test_a_torchvision_that_imports_is_left_alone(tmp_path: Path) -> None:
    assert run_with_torchvision(tmp_path, '').stdout == 'left alone torchvision\n'


def test_missing_operators_get_their_schemas(tmp_path: Path) -> None:
    """A stand-in that asks for the operators as torchvision does at import."""
    source = "import torch\ntorch.library.register_fake('torchvision::nms')(lambda *a: None)\n"
    assert run_with_torchvision(tmp_path, source).stdout == 'cured torchvision\n'


def test_another_failure_of_torchvision_is_not_hidden(tmp_path: Path) -> None:
    done = run_with_torchvision(tmp_path, "raise RuntimeError('no such driver')")
    assert done.returncode != 0
    assert 'no such driver' in done.stderr


@pytest.mark.parametrize('kept', [0.0, 0.9], ids=['empty', 'cut'])
def test_half_a_grammar_in_the_cache_of_yapf_is_overcome(kept: float, tmp_path: Path) -> None:
    """What a process finds when another one is just writing the cache."""
    env = {**os.environ, 'XDG_CACHE_HOME': str(tmp_path)}
    subprocess.run([sys.executable, '-c', 'import yapf'], env=env, check=True)
    grammars = list(tmp_path.rglob('*.pickle'))
    assert grammars
    for grammar in grammars:
        content = grammar.read_bytes()
        grammar.write_bytes(content[: int(kept * len(content))])
    assert subprocess.run([sys.executable, '-c', 'import yapf'], env=env, capture_output=True).returncode
    code = (
        'from inline.compat import prepare; prepare(); '
        'from mmengine.config import Config; print(Config(dict(a=1)).pretty_text)'
    )
    done = subprocess.run([sys.executable, '-c', code], env=env, capture_output=True, text=True, check=False)
    assert done.stdout == 'a = 1\n\n', done.stderr


@pytest.mark.parametrize('toolbox', ['mmpretrain', 'mmdet', 'mmseg'])
def test_configs_of_every_toolbox_are_found(toolbox: str, tmp_path: Path) -> None:
    from inline.engine.config import load_config

    (tmp_path / 'config.py').write_text(f"_base_ = '{toolbox}::_base_/default_runtime.py'")
    assert load_config(tmp_path / 'config.py').default_scope == toolbox


def test_bases_are_found_without_a_search_and_models_with_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mmengine.config import utils

    from inline.engine.config import load_config

    search = mock.Mock(side_effect=utils._get_cfg_metainfo)
    monkeypatch.setattr(utils, '_get_cfg_metainfo', search)
    (tmp_path / 'base.py').write_text("_base_ = 'mmdet::_base_/default_runtime.py'")
    assert load_config(tmp_path / 'base.py').default_scope == 'mmdet'
    assert not search.called
    (tmp_path / 'model.py').write_text("_base_ = 'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py'")
    assert load_config(tmp_path / 'model.py').model.type == 'RetinaNet'
    assert search.call_args.args[1] == 'retinanet/retinanet_r50_fpn_1x_coco'


def test_what_nobody_asked_for_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    from mmengine.logging import print_log

    print_log('for those who look for mistakes', level=logging.DEBUG)
    print_log('for all')
    assert capsys.readouterr().out == 'for all\n'


def test_mmcv_has_its_compiled_operators() -> None:
    done = subprocess.run(
        [sys.executable, '-m', 'inline.compat'], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
