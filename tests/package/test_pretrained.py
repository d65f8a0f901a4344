"""Weights that the wheel carries load without the repository and without a network."""

import pytest

from tests.package.environments import Environment

pytestmark = pytest.mark.slow
CODE = """
import inline
model = inline.create_backbone('inline_pvt_micro', pretrained=True)
print(sum(float(value.abs().sum()) > 0 for value in model.parameters()))
"""


def test_packaged_weights_load(installed: Environment) -> None:
    assert int(installed.run('python', '-c', CODE).splitlines()[-1]) > 10
