"""The wheel: its contents, and that it works without the repository, with all extras and with torch alone."""

import json
import zipfile
from pathlib import Path

import cv2
import numpy as np
import pytest

from inline import __version__
from inline.utils.extras import EXTRAS
from tests.conftest import ROOT
from tests.package.environments import Environment

pytestmark = pytest.mark.slow
CLASSIFIER = 'inline-pvt-nano_digits'
# Looks up what others look up, and prints it as JSON.
LOOK_UP = """
import json, sys
import inline
light = not {'torch', 'mmengine', 'mmpretrain'} & set(sys.modules)
import mmpretrain
from mmengine.utils import get_installed_path
from modelindex.load_model_index import load
folder = get_installed_path('inline-attention')
index = load(folder + '/.mim/model-index.yml')
model = mmpretrain.get_model('inline-pvt-tiny_8xb128_in1k')
result = inline.InLineModel(sys.argv[1], sys.argv[2], 'cpu')(sys.argv[3])
# Random weights would differ between the models.
one, two = (inline.create_backbone('inline_pvt_micro', pretrained=True) for _ in range(2))
weights, others = one.state_dict(), two.state_dict()
print(json.dumps({
    'light': light,
    'package': inline.__file__,
    'mim folder': folder,
    'indexed': [[model.name, model.config] for model in index.models],
    'listed': mmpretrain.list_models('*inline*'),
    'backbone': type(model.backbone).__module__,
    'config': model._config.filename,
    'scores': result[0].to_dict()['predictions'],
    'packaged weights': all(weights[name].equal(others[name]) for name in weights),
    'first class': one.pretrained_cfg['classes'][0],
}))
"""
BACKBONE = """
import torch, inline
model = inline.create_backbone('inline_pvt_tiny', num_classes=10)
print(tuple(model(torch.zeros(2, 3, 64, 64)).shape))
"""


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / 'image.png'
    assert cv2.imwrite(str(path), np.zeros((32, 32, 3), np.uint8))
    return path


def test_wheel_contains_all_files(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {f'inline/.mim/{path.relative_to(ROOT)}' for path in (ROOT / 'configs').rglob('*.py')}
    expected |= {
        f'inline/.mim/configs/{path.parent.name}/metafile.yml' for path in ROOT.glob('configs/*/m*.yml')
    }
    expected |= {'inline/.mim/model-index.yml', 'inline/.mim/results/paper/weights.csv', 'inline/py.typed'}
    suffixes = {'.py', '.html', '.css', '.safetensors', '.md'}
    sources = [path for path in (ROOT / 'inline').rglob('*') if path.suffix in suffixes]
    expected |= {str(path.relative_to(ROOT)) for path in sources}
    assert len(expected) > 300
    assert expected <= names
    foreign = {name for name in names if not name.startswith(('inline/', 'inline_attention-'))}
    assert foreign == set()
    assert not [name for name in names if Path(name).name in ('setup_env.sh', 'site_hooks.py')]


def test_doctor_and_prediction_by_config_name(
    installed: Environment, checkpoints: dict[str, Path], image: Path, tmp_path: Path
) -> None:
    printed = installed.run('inline', 'doctor')
    lines = [line.split(maxsplit=2) for line in printed.splitlines()]
    status = {subject: (state, text) for state, subject, text in lines}
    assert status['inline'][1].startswith(f'{__version__}, installed package, ')
    assert {status[f'[{extra}]'][0] for extra in EXTRAS} == {'ok'}
    assert 'compiled operators run' in printed
    assert str(ROOT / 'configs') not in printed
    words = (CLASSIFIER, checkpoints['classification'], image, '--out', tmp_path / 'out')
    installed.run('inline', 'predict', *words)
    (entry,) = json.loads((tmp_path / 'out' / 'predictions.json').read_text())
    assert len(entry['top5']) == 5


def test_models_and_weights_are_found_by_name(
    installed: Environment, checkpoints: dict[str, Path], image: Path
) -> None:
    printed = installed.run('python', '-c', LOOK_UP, CLASSIFIER, checkpoints['classification'], image)
    found = json.loads(printed.splitlines()[-1])
    assert found['light'], 'import inline imports torch or OpenMMLab'
    assert Path(found['package']).parent == installed.package
    assert Path(found['mim folder']) == installed.package
    assert len(found['indexed']) == 84
    assert all((installed.package / '.mim' / config).is_file() for _, config in found['indexed'])
    classifiers = {name for name, config in found['indexed'] if config.split('/')[1].startswith('inline_')}
    assert set(found['listed']) == {name for name in classifiers if 'inline' in name}
    assert len(found['listed']) == 15
    assert found['backbone'] == 'inline.openmmlab.backbones'
    assert Path(found['config']).is_relative_to(installed.package)
    assert len(found['scores']) == 5
    assert found['packaged weights']
    assert found['first class'] == 'goldfish'


def test_torch_alone_is_enough_for_backbones(base: Environment) -> None:
    assert base.run('inline', '--version') == f'inline {__version__}\n'
    printed = base.run('inline', 'doctor')
    for extra in EXTRAS:
        (line,) = [line for line in printed.splitlines() if f'[{extra}]' in line]
        assert line.startswith('missing ')
        assert f"pip install 'inline-attention[{extra}]'" in line
    assert base.run('python', '-c', BACKBONE).splitlines()[-1] == '(2, 10)'


def test_a_missing_extra_is_named_in_one_line(base: Environment) -> None:
    for words, extras in (
        (['train', CLASSIFIER], 'openmmlab'),
        (['serve', CLASSIFIER, 'x.pth'], 'openmmlab,serve'),
        (['benchmark', CLASSIFIER], 'openmmlab'),
        (['convert', 'inline-pvt-tiny', 'x.pth'], 'hub'),
        (['publish', 'x.pth'], 'hub'),
    ):
        printed = base.run('inline', *words, code=2)
        assert 'Traceback' not in printed
        # torch warns that there is no numpy.
        (line,) = [line for line in printed.splitlines() if line.startswith('error: ')]
        assert line == printed.splitlines()[-1]
        assert line.endswith(f"pip install 'inline-attention[{extras}]'")
