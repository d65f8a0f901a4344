"""The files by which OpenMMLab's tools find the models."""

import yaml

from tests.conftest import ROOT, run_tool


def test_the_files_are_up_to_date() -> None:
    done = run_tool('tools/make_metafiles.py', '--check')
    assert done.returncode == 0, done.stderr


def test_every_config_of_a_paper_table_is_listed_once() -> None:
    index = yaml.safe_load((ROOT / 'model-index.yml').read_text())
    contents = [yaml.safe_load((ROOT / path).read_text()) for path in index['Import']]
    collections = {one['Name'] for content in contents for one in content.get('Collections', [])}
    models = [model for content in contents for model in content['Models']]
    assert {model['In Collection'] for model in models} == collections
    configs = {str(path.relative_to(ROOT)) for path in (ROOT / 'configs').rglob('*_in1k*.py')}
    configs |= {str(path.relative_to(ROOT)) for path in (ROOT / 'configs').rglob('*_coco.py')}
    configs |= {str(path.relative_to(ROOT)) for path in (ROOT / 'configs').rglob('*_ade20k-*.py')}
    assert sorted(model['Config'] for model in models) == sorted(configs)
    assert all(model['Config'].endswith(f'/{model["Name"]}.py') for model in models)


def test_figures_of_the_paper_are_not_shown_as_ours() -> None:
    measured = {path.stem for path in (ROOT / 'results' / 'measured').glob('*.csv')}
    for path in (ROOT / 'configs').glob('*/metafile.yml'):
        for model in yaml.safe_load(path.read_text())['Models']:
            assert 'Results' not in model or measured & {'imagenet', 'coco', 'ade20k'}
