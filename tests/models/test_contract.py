"""Every registered mixer against the contract, and InLine and Linear with every kernel.

Registering a mixer adds it to this test.
"""

import ast
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from inline.models import InLinePVT
from inline.models.mixers import MIXERS
from inline.models.mixers.inline import AFFINE_RELU
from inline.ops import KERNELS
from tests.conftest import ROOT, run_fresh
from tests.models.contract import CHECKS, Config, run_contract

PAGE = ROOT / 'docs' / 'custom_mixer.md'
# Names for `pytest -k`; each begins with the name of its mixer.
CONFIGS: dict[str, Config] = {
    **{name: {'type': name} for name in sorted(MIXERS)},
    **{
        f'{name}-{kernel}': {'type': name, 'kernel': kernel}
        for name, default in (('Linear', 'relu'), ('InLine', 'identity'))
        for kernel in (*KERNELS, AFFINE_RELU)
        if kernel != default
    },
    **{
        f'InLine-not_injective-{kernel}': {'type': 'InLine', 'injective': False, 'kernel': kernel}
        for kernel in (*KERNELS, AFFINE_RELU)
    },
    'FLatten-position': {'type': 'FLatten', 'position_size': (3, 4)},
    'Nystrom-convolution': {'type': 'Nystrom', 'conv_size': 3},
    'Nystrom-sequence_convolution': {'type': 'Nystrom', 'conv_size': 5, 'conv_axes': 'sequence'},
    'TransNormer-T1': {'type': 'TransNormer', 'variant': 'T1'},
    'TransNormer-no_lrpe': {'type': 'TransNormer', 'lrpe': False},
    'InLine-no_residual': {'type': 'InLine', 'residual': False},
    'InLine-neither': {'type': 'InLine', 'injective': False, 'residual': False},
}


# Most options make no difference to these checks, which take long.
OPTION_INDEPENDENT = ('exports', 'every_family_accepts_it')
THOROUGHLY_CHECKED = (AFFINE_RELU, 'neither', 'position')


@pytest.mark.parametrize(
    ('name', 'check'),
    [
        pytest.param(name, check, marks=[pytest.mark.slow] if check == 'exports' else [])
        for name in CONFIGS
        for check in CHECKS
        if check not in OPTION_INDEPENDENT or '-' not in name or name.endswith(THOROUGHLY_CHECKED)
    ],
)
def test_contract(name: str, check: str) -> None:
    CHECKS[check](CONFIGS[name])


@pytest.fixture
def documented_mixer() -> Iterator[str]:
    """Run the code of docs/custom_mixer.md, and unregister its mixer afterwards."""
    before = set(MIXERS)
    exec(compile('\n'.join(code_blocks()), str(PAGE), 'exec'), {'__name__': 'page'})
    (new,) = set(MIXERS) - before
    yield new
    del MIXERS[new]


def code_blocks() -> list[str]:
    return re.findall(r'^```python\n(.*?)^```$', PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_documented_mixer_meets_the_contract(documented_mixer: str) -> None:
    run_contract({'type': documented_mixer})


def test_documented_mixer_with_its_option_in_a_backbone(documented_mixer: str) -> None:
    model = InLinePVT('tiny', mixers={'type': documented_mixer, 'sharpness': 2.0, 'window_size': 7})
    assert {block.mixer.sharpness for stage in model.stages for block in stage.blocks} == {2.0}


@pytest.mark.slow
def test_documented_mixer_trains_from_a_separate_file(digit_scenes: Path, tmp_path: Path) -> None:
    """With the class and the config of the page in a folder outside the package."""
    (config,) = (block for block in code_blocks() if 'custom_imports' in block)
    (tmp_path / 'my_attention.py').write_text(code_blocks()[0])
    (tmp_path / 'my_config.py').write_text(config.replace("'configs/", f"'{ROOT}/configs/"))
    command = [
        sys.executable, 'tools/train.py', tmp_path / 'my_config.py', '--work-dir', tmp_path / 'run',
        '--data-root', digit_scenes.parent, '--cfg-options', 'train_cfg.max_iters=1',
        'train_cfg.val_interval=1', 'train_dataloader.batch_size=4', 'default_hooks.checkpoint.interval=1',
    ]  # fmt: skip
    done = run_fresh([*map(str, command)], {**os.environ, 'PYTHONPATH': f'{ROOT}:{tmp_path}'})
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / 'run' / 'iter_1.pth').exists()


def test_documented_mixer_is_short() -> None:
    source = code_blocks()[0]
    (definition,) = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    assert len(ast.unparse(definition).splitlines()) <= 20
