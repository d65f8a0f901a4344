"""Weights that the wheel carries load without the repository and without a network."""

import pytest

from tests.package.environments import Environment

pytestmark = pytest.mark.slow
CODE = """
import inline
one, two = (inline.create_backbone('inline_pvt_micro', pretrained=True).state_dict() for _ in range(2))
print('loaded', all(one[name].equal(two[name]) for name in one))
model = inline.create_backbone('inline_pvt_micro', pretrained=True)
print('first class', model.pretrained_cfg['classes'][0])
"""


def test_packaged_weights_load(installed: Environment) -> None:
    """Random weights would differ between the models."""
    lines = installed.run('python', '-c', CODE).splitlines()
    assert lines[-2:] == ['loaded True', 'first class goldfish']
