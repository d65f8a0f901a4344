"""Every registered mixer against the contract, and those with kernels and parts in every form.

A new mixer is tested by being registered.
"""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from inline.models import InLinePVT
from inline.models.mixers import MIXERS
from inline.models.mixers.kernel import AFFINE_RELU
from inline.ops import KERNELS
from tests.conftest import ROOT, run_fresh
from tests.models.contract import CHECKS, Config, run_contract

PAGE = ROOT / 'docs' / 'add_a_mixer.md'
# By the names that `pytest -k` takes; each begins with its mixer's.
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
    'InLine-no_residual': {'type': 'InLine', 'residual': False},
    'InLine-neither': {'type': 'InLine', 'injective': False, 'residual': False},
}


@pytest.mark.parametrize('check', CHECKS)
@pytest.mark.parametrize('name', CONFIGS)
def test_contract(name: str, check: str) -> None:
    CHECKS[check](CONFIGS[name])


@pytest.fixture
def mixer_of_the_page() -> Iterator[str]:
    """Run the code of docs/add_a_mixer.md, and forget its mixer afterwards."""
    before = set(MIXERS)
    exec(compile('\n'.join(code_blocks()), str(PAGE), 'exec'), {'__name__': 'page'})
    (new,) = set(MIXERS) - before
    yield new
    del MIXERS[new]


def code_blocks() -> list[str]:
    return re.findall(r'^```python\n(.*?)^```$', PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)


def test_the_mixer_of_the_page_fulfils_the_contract(mixer_of_the_page: str) -> None:
    run_contract({'type': mixer_of_the_page})


def test_the_mixer_of_the_page_takes_its_own_option_in_a_backbone(mixer_of_the_page: str) -> None:
    model = InLinePVT('tiny', mixers={'type': mixer_of_the_page, 'sharpness': 2.0, 'window_size': 7})
    assert {block.mixer.sharpness for stage in model.stages for block in stage.blocks} == {2.0}


@pytest.mark.slow
def test_the_mixer_of_the_page_trains_from_a_file_of_its_own(digit_scenes: Path, tmp_path: Path) -> None:
    """Class and config as the page has them, in a folder that has nothing to do with the package."""
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


def test_the_first_block_of_the_page_is_short() -> None:
    lines = [line for line in code_blocks()[0].splitlines() if line and 'import' not in line]
    assert len(lines) <= 20
