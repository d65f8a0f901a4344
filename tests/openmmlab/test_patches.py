"""Patches change what is broken, and nothing else."""

import ast
import gc
import inspect
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from mmengine.registry import OPTIMIZERS

from inline.openmmlab import patches
from tests.conftest import ROOT

CODE = """
from inline.openmmlab import patches
from inline.utils import imports as patch
patches.apply_patches()
import torchvision
print('patched' if patch._library is not None else 'unchanged', torchvision.__name__)
"""


def run_with_torchvision(folder: Path, source: str) -> subprocess.CompletedProcess[str]:
    """Apply the patches in a process where ``import torchvision`` finds the given source."""
    (folder / 'torchvision.py').write_text(source)
    env = {**os.environ, 'PYTHONPATH': str(folder)}
    return subprocess.run([sys.executable, '-c', CODE], env=env, capture_output=True, text=True, check=False)


def test_a_working_torchvision_is_not_changed(tmp_path: Path) -> None:
    assert run_with_torchvision(tmp_path, '').stdout == 'unchanged torchvision\n'


def test_missing_operators_get_their_schemas(tmp_path: Path) -> None:
    """The fake module registers an operator as torchvision does when it is imported."""
    source = "import torch\ntorch.library.register_fake('torchvision::nms')(lambda *a: None)\n"
    assert run_with_torchvision(tmp_path, source).stdout == 'patched torchvision\n'


def test_other_errors_of_torchvision_are_not_hidden(tmp_path: Path) -> None:
    done = run_with_torchvision(tmp_path, "raise RuntimeError('no such driver')")
    assert done.returncode != 0
    assert 'no such driver' in done.stderr


@pytest.mark.parametrize('kept', [0.0, 0.9], ids=['empty', 'truncated'])
def test_a_truncated_cache_of_yapf_is_ignored(kept: float, tmp_path: Path) -> None:
    """A process finds such a file while another one is writing it."""
    env = {**os.environ, 'XDG_CACHE_HOME': str(tmp_path)}
    subprocess.run([sys.executable, '-c', 'import yapf'], env=env, check=True)
    grammars = list(tmp_path.rglob('*.pickle'))
    assert grammars
    for grammar in grammars:
        content = grammar.read_bytes()
        grammar.write_bytes(content[: int(kept * len(content))])
    assert subprocess.run([sys.executable, '-c', 'import yapf'], env=env, capture_output=True).returncode
    code = (
        'from inline.openmmlab.patches import import_yapf_without_cache; import_yapf_without_cache(); '
        'from yapf.yapflib.yapf_api import FormatCode; print(FormatCode("a  =1")[0])'
    )
    done = subprocess.run([sys.executable, '-c', code], env=env, capture_output=True, text=True, check=False)
    assert done.stdout == 'a = 1\n\n', done.stderr


def test_transformers_is_imported_on_demand() -> None:
    code = (
        'import sys; from inline.openmmlab.patches import apply_patches; apply_patches(); '
        "print('mmengine.optim' in sys.modules, 'transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == 'True False', done.stderr
    optimizer = OPTIMIZERS.build({'type': 'Adafactor', 'params': [torch.nn.Parameter(torch.zeros(2))]})
    assert type(optimizer).__module__ == 'transformers.optimization'


def test_detectors_import_optional_packages_on_demand() -> None:
    code = (
        'import sys; from inline.openmmlab import patches; patches.apply_patches(); '
        'import mmdet.models, mmdet.datasets; '
        "print({'sklearn', 'transformers'} & set(sys.modules), set(patches._MMDET_EXTRAS) - set(sys.modules))"
    )
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == 'set() set()', done.stderr


def test_the_text_of_a_config_is_formatted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from mmengine.config import Config
    from yapf.yapflib import yapf_api

    formatted: list[str] = []

    def format_code(text: str, **_: Any) -> tuple[str, bool]:
        formatted.append(text)
        return f'{text.strip()}  # formatted', True

    monkeypatch.setattr(yapf_api, 'FormatCode', format_code)
    patches.format_configs_once()
    patches.format_configs_once()
    config = Config({'a': 1})
    assert config.pretty_text == config.pretty_text == 'a=1  # formatted'
    assert Config({'a': 2}).pretty_text == 'a=2  # formatted'
    assert len(formatted) == 2


def test_garbage_is_collected_after_the_block() -> None:
    with patches.pause_garbage_collection():
        assert not gc.isenabled()
        with patches.pause_garbage_collection():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


@pytest.mark.parametrize('toolbox', ['mmpretrain', 'mmdet', 'mmseg'])
def test_base_configs_of_every_toolbox_are_found(toolbox: str, tmp_path: Path) -> None:
    from inline.engine.config import load_config

    (tmp_path / 'config.py').write_text(f"_base_ = '{toolbox}::_base_/default_runtime.py'")
    assert load_config(tmp_path / 'config.py').default_scope == toolbox


def test_only_configs_of_models_are_searched_in_metafiles(
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


def test_debug_messages_are_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    from mmengine.logging import print_log

    print_log('debug', level=logging.DEBUG)
    print_log('info')
    assert capsys.readouterr().out == 'info\n'


def test_a_match_with_annotation_id_0_counts() -> None:
    """If the AP without the patch is 1, the patch can be removed."""
    from mmdet.datasets.api_wrappers import COCO, COCOeval, COCOevalMP

    boxes = [{'image_id': 1, 'category_id': 1, 'bbox': [20 * i, 5, 15, 15]} for i in range(4)]
    truth = COCO()
    truth.dataset = {
        'images': [{'id': 1, 'width': 100, 'height': 100}],
        'categories': [{'id': 1, 'name': 'a'}],
        'annotations': [{**box, 'id': i, 'area': 225, 'iscrowd': 0} for i, box in enumerate(boxes)],
    }
    truth.createIndex()
    found = truth.loadRes([{**box, 'score': 0.9 - 0.1 * i} for i, box in enumerate(boxes)])
    unpatched = COCOeval(iouType='bbox')
    unpatched.cocoGt, unpatched.cocoDt = truth, found
    unpatched.params.imgIds = unpatched.params.catIds = [1]
    patches.renumber_annotation_zero()
    assert average_precision(unpatched) == pytest.approx(0.564, abs=1e-3)
    assert average_precision(COCOeval(truth, found, 'bbox')) == 1
    assert COCOevalMP.__init__ is COCOeval.__init__
    assert sorted(truth.anns) == sorted(entry['id'] for entry in truth.dataset['annotations']) == [1, 2, 3, 4]


def average_precision(evaluator: Any) -> float:
    evaluator.evaluate()
    evaluator.accumulate()
    return float(evaluator.eval['precision'][:, :, 0, 0, -1].mean())


def test_mmcv_has_its_compiled_operators() -> None:
    done = subprocess.run(
        [sys.executable, '-m', 'inline.openmmlab.patches'], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_patch_gives_its_reason_and_when_it_can_be_removed() -> None:
    others = ('apply_patches', 'apply_training_patches', 'check_operators', 'pause_garbage_collection')
    functions = {
        name: inspect.getdoc(function) or ''
        for name, function in inspect.getmembers(patches, inspect.isfunction)
        if function.__module__ == patches.__name__ and name not in others
    }
    assert len(functions) >= 10
    for name, docstring in functions.items():
        assert 'Reason: ' in docstring, name
        assert 'Remove ' in docstring, name


def test_nothing_else_assigns_into_third_party_packages() -> None:
    """Assignments to an attribute of an imported module or class are patches: they belong in patches.py."""
    packages = ('torch', 'mmengine', 'mmcv', 'mmpretrain', 'mmdet', 'mmseg', 'timm', 'transformers')
    found = []
    for path in (ROOT / 'inline').rglob('*.py'):
        tree = ast.parse(path.read_text())
        imported = {
            (alias.asname or alias.name).split('.')[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
            if (getattr(node, 'module', None) or alias.name).split('.')[0] in packages
        }
        for node in ast.walk(tree):
            targets = node.targets if isinstance(node, ast.Assign) else []
            for target in targets:
                root = target
                while isinstance(root, ast.Attribute):
                    root = root.value
                if isinstance(target, ast.Attribute) and isinstance(root, ast.Name) and root.id in imported:
                    found.append(f'{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}')
    assert [line for line in found if not line.startswith('inline/openmmlab/patches.py')] == []
    assert found, 'the search itself does not work'
