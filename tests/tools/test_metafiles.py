"""OpenMMLab's metafiles: complete, up to date, and measured values separate from published ones."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from inline.reproduce.generated_files import render_metafiles
from inline.reproduce.measure import append_measured
from inline.reproduce.tables import MEASURED, TABLES
from inline.utils.errors import UserError
from tests.conftest import ROOT
from tools import make_metafiles

ROW = TABLES['coco'].row('pvt-tiny_mask-rcnn_1x')


def models_of(files: dict[Path, str]) -> dict[str, dict[str, Any]]:
    contents = [yaml.safe_load(text) for path, text in files.items() if path.name == 'metafile.yml']
    return {model['Name']: model for content in contents for model in content['Models']}


@pytest.fixture(scope='module')
def unmeasured(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, str]:
    """The files without any measurement."""
    return render_metafiles(tmp_path_factory.mktemp('empty'))


def run_main(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr('sys.argv', ['make_metafiles.py', *words])
    make_metafiles.main()


def test_the_committed_files_are_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    run_main(monkeypatch, '--check')


def test_an_outdated_file_is_reported_and_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    path = ROOT / 'configs' / 'retinanet' / 'metafile.yml'
    before = path.read_bytes()
    monkeypatch.setattr('inline.reproduce.generated_files.render_metafiles', lambda _: {path: 'Models: []\n'})
    with pytest.raises(UserError, match=r"^'configs/retinanet/metafile.yml' is out of date: run"):
        run_main(monkeypatch, '--check')
    assert path.read_bytes() == before


def test_every_config_of_a_paper_table_is_listed_once(unmeasured: dict[Path, str]) -> None:
    index = yaml.safe_load(unmeasured[ROOT / 'model-index.yml'])
    contents = [yaml.safe_load(unmeasured[ROOT / path]) for path in index['Import']]
    collections = {entry['Name'] for content in contents for entry in content.get('Collections', [])}
    models = [model for content in contents for model in content['Models']]
    assert {model['In Collection'] for model in models} == collections
    patterns = ('*_in1k*.py', '*_coco.py', '*_ade20k-*.py')
    leaves = [path for pattern in patterns for path in (ROOT / 'configs').rglob(pattern)]
    assert sorted(model['Config'] for model in models) == sorted(str(p.relative_to(ROOT)) for p in leaves)
    assert all(model['Config'].endswith(f'/{model["Name"]}.py') for model in models)


def test_published_values_are_never_results(unmeasured: dict[Path, str]) -> None:
    models = models_of(unmeasured)
    assert models[ROW.config.stem]['Metadata']['Expected'] == {
        'box AP': 36.7,
        'mask AP': 35.1,
        'Source': 'pvt',
    }
    assert not [name for name, model in models.items() if 'Results' in model]


def test_measured_values_are_results_of_their_row_only(tmp_path: Path) -> None:
    values = {'row': ROW.name, 'box_ap': '12.30', 'mask_ap': '4.50', 'digest': 'x'}
    append_measured(ROW.table, tmp_path, values)
    models = models_of(render_metafiles(tmp_path))
    (result,) = models[ROW.config.stem].pop('Results')
    assert result['Metrics'] == {'box AP': 12.3, 'mask AP': 4.5}
    assert (result['Dataset'], result['Task']) == ('COCO', 'Object Detection')
    assert models[ROW.config.stem]['Metadata']['Expected']['box AP'] == 36.7
    assert not [name for name, model in models.items() if 'Results' in model]


def test_committed_results_are_those_of_the_measured_files() -> None:
    """A result requires a measured file of its table. Does not use the code that writes the metafiles."""
    measured = {name for name in ('imagenet', 'coco', 'ade20k') if (MEASURED / f'{name}.csv').is_file()}
    with_results = {
        {'ImageNet-1k': 'imagenet', 'COCO': 'coco', 'ADE20K': 'ade20k'}[result['Dataset']]
        for path in (ROOT / 'configs').glob('*/metafile.yml')
        for model in yaml.safe_load(path.read_text())['Models']
        for result in model.get('Results', [])
    }
    assert with_results == measured
