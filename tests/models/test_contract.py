"""Every registered mixer against the contract, and those with kernels and parts in every form.

A new mixer is tested by being registered.
"""

import re
from collections.abc import Iterator

import pytest

from inline.models import InLinePVT
from inline.models.mixers import MIXERS
from inline.models.mixers.kernel import AFFINE_RELU
from inline.ops import KERNELS
from tests.conftest import ROOT
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


def test_the_first_block_of_the_page_is_short() -> None:
    lines = [line for line in code_blocks()[0].splitlines() if line and 'import' not in line]
    assert len(lines) <= 20
