"""Memory of all measurements at 224 pixels, including maps of 3,136 tokens in a PVT: below one gigabyte."""

import json
import subprocess
import sys

import pytest

from tests.conftest import ROOT

MEASURE = r"""
import ctypes, json, re, torch
from pathlib import Path
from inline.analysis.injectivity import layer_collisions
from inline.analysis.layers import capture_inputs, find_layers
from inline.analysis.locality import layer_locality
from inline.analysis.maps import layer_maps
from inline.analysis.masking import Mask, masked_attention
from inline.models import InLineDeiT, InLinePVT

def memory(field):
    # Not getrusage: its peak includes that of the parent process.
    return int(re.search(rf'{field}:\s+(\d+) kB', Path('/proc/self/status').read_text())[1]) / 1024

measurements = {
    'injectivity': lambda layer, inputs_list: layer_collisions(layer.mixer, inputs_list),
    'locality': lambda layer, inputs_list: layer_locality(layer.mixer, inputs_list),
    'maps': lambda layer, inputs_list: layer_maps(layer, inputs_list, [(100, 50)], (224, 224)),
}
torch.set_num_threads(1)
torch.manual_seed(0)
# One block: the largest layer determines the memory, the others only take time.
deit = {'embed_dims': 192, 'depth': 1, 'num_heads': 6}
pvt = {'embed_dims': (64, 128, 320, 512), 'depths': (1, 1, 1, 1), 'num_heads': (2, 4, 10, 16)}
growth = {}
for family, model in (('deit', InLineDeiT(deit)), ('pvt', InLinePVT(pvt, out_indices=(0,)))):
    layers = find_layers(model.eval())
    for name in ('locality', 'maps', 'masking', 'injectivity'):
        if name == 'injectivity':
            model.double()
        image = torch.randn(1, 3, 224, 224, dtype=next(model.parameters()).dtype)
        # Return freed memory to the system and reset the peak.
        ctypes.CDLL(None).malloc_trim(0)
        Path('/proc/self/clear_refs').write_text('5')
        before = memory('VmRSS')
        with torch.no_grad():
            if name == 'masking':
                with masked_attention(layers, Mask(7, random=True), 0):
                    model(image)
            else:
                with capture_inputs(layers, measurements[name]):
                    model(image)
        growth[f'{family}, {name}'] = memory('VmHWM') - before
print(json.dumps(growth))
"""


@pytest.mark.exhaustive
def test_memory_stays_below_one_gigabyte() -> None:
    done = subprocess.run(
        [sys.executable, '-c', MEASURE], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    growth = json.loads(done.stdout)
    assert len(growth) == 8
    assert all(1 < megabytes < 1024 for megabytes in growth.values()), growth
