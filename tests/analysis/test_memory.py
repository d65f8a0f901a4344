"""At 224 pixels every measurement stays below a gigabyte, the maps of 3,136 tokens of a PVT included."""

import subprocess
import sys

import pytest

from tests.conftest import ROOT

MEASURE = r"""
import re, sys, torch
from pathlib import Path
from inline.analysis.injectivity import layer_collisions
from inline.analysis.layers import find_layers, watch
from inline.analysis.locality import layer_locality
from inline.analysis.maps import layer_maps
from inline.analysis.masking import Mask, masked
from inline.models import InLineDeiT, InLinePVT

def memory(what):
    # Not getrusage, whose peak begins with that of the process that started this one.
    return int(re.search(rf'{what}:\s+(\d+) kB', Path('/proc/self/status').read_text())[1]) / 1024

torch.set_num_threads(1)
torch.manual_seed(0)
# One block a stage: memory is that of the largest layer, the rest only takes time.
pvt = {'embed_dims': (64, 128, 320, 512), 'depths': (1, 1, 1, 1), 'num_heads': (2, 4, 10, 16)}
model = (InLineDeiT('tiny') if sys.argv[1] == 'deit' else InLinePVT(pvt)).eval()
if sys.argv[2] == 'injectivity':
    model.double()
image = torch.randn(1, 3, 224, 224, dtype=next(model.parameters()).dtype)
layers = find_layers(model)
see = {
    'injectivity': lambda layer, parts: layer_collisions(layer.mixer, parts),
    'locality': lambda layer, parts: layer_locality(layer.mixer, parts),
    'maps': lambda layer, parts: layer_maps(layer, parts, [(100, 50)], (224, 224)),
}
# Forget the peak of building the model.
Path('/proc/self/clear_refs').write_text('5')
before = memory('VmRSS')
with torch.no_grad():
    if sys.argv[2] == 'masking':
        with masked(layers, Mask(7, random=True), 0):
            model(image)
    else:
        with watch(layers, see[sys.argv[2]]):
            model(image)
print(memory('VmHWM') - before)
"""


@pytest.mark.parametrize('command', ['injectivity', 'locality', 'masking', 'maps'])
@pytest.mark.parametrize('family', ['deit', 'pvt'])
def test_growth_is_below_a_gigabyte(family: str, command: str) -> None:
    done = subprocess.run(
        [sys.executable, '-c', MEASURE, family, command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    growth = float(done.stdout)
    assert 1 < growth < 1024
