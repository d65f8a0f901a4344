"""The models of this project in mmpretrain's model hub. tests/package looks them up with the wheel."""

import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import mmpretrain
import pytest
import yaml
from mmpretrain.apis import model as hub_module
from modelindex.load_model_index import load

from inline.openmmlab import model_hub
from inline.utils.resources import CONFIGS
from tests.conftest import ROOT


class Hub:
    """Stands for mmpretrain's ``ModelHub``."""

    def __init__(self) -> None:
        self.files: list[str] = []

    def register_model_index(self, path: Any, config_prefix: Any) -> None:
        assert config_prefix == ROOT
        self.files.append(path.parent.name)


def hub_of(hub: Any) -> Any:
    return SimpleNamespace(ModelHub=hub)


def test_classifiers_are_listed_and_no_others() -> None:
    index = yaml.safe_load((ROOT / 'model-index.yml').read_text())
    metafiles = [yaml.safe_load((ROOT / path).read_text()) for path in index['Import']]
    models = [model for metafile in metafiles for model in metafile['Models']]
    classifiers = {m['Name'] for m in models if m['Metadata']['Training Data'] == 'ImageNet-1k'}
    listed = set(hub_module.list_models())
    assert listed & {model['Name'] for model in models} == classifiers
    assert {name for name in classifiers if 'inline' in name} == set(hub_module.list_models('*inline*'))
    path = hub_module.ModelHub._models_dict['inline-swin-tiny_8xb128_in1k'].config
    assert path == str(ROOT / 'configs/inline_swin/inline-swin-tiny_8xb128_in1k.py')


def test_names_differ_from_those_of_mmpretrain() -> None:
    """Registering a name twice is an error of mmpretrain, whichever package comes first."""
    theirs = load(f'{mmpretrain.__path__[0]}/.mim/model-index.yml').models
    ours = [
        model for folder in model_hub.FOLDERS for model in load(str(CONFIGS / folder / 'metafile.yml')).models
    ]
    assert len(list(theirs)) > 500
    assert not {model.name.lower() for model in theirs} & {model.name.lower() for model in ours}
    assert len({model.name for model in ours}) == 28


def test_models_are_registered_once() -> None:
    module = hub_of(Hub())
    model_hub.register_classifiers(module)
    model_hub.register_classifiers(module)
    assert module.ModelHub.files == list(model_hub.FOLDERS)


def test_a_failure_is_a_warning() -> None:
    class Refusing:
        def register_model_index(self, *_: Any, **__: Any) -> None:
            raise ValueError('the name is taken')

    with pytest.warns(UserWarning, match='not registered with mmpretrain: the name is taken'):
        model_hub.register_classifiers(hub_of(Refusing()))


def test_import_of_the_hub_registers(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """With a module of another name, since mmpretrain's is imported already."""
    (tmp_path / 'later_hub.py').write_text('class ModelHub: pass\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(model_hub, '_HUB_MODULE', 'later_hub')
    monkeypatch.setattr(sys, 'meta_path', list(sys.meta_path))
    seen: list[ModuleType] = []
    monkeypatch.setattr(model_hub, 'register_classifiers', seen.append)
    model_hub.register_on_import()
    model_hub.register_on_import()
    assert sum(isinstance(finder, model_hub._HubFinder) for finder in sys.meta_path) == 1
    assert seen == []
    module = importlib.import_module('later_hub')
    assert seen == [module]
    assert not any(isinstance(finder, model_hub._HubFinder) for finder in sys.meta_path)
    # Imported before: registered at once.
    model_hub.register_on_import()
    assert seen == [module, module]
    del sys.modules['later_hub']
