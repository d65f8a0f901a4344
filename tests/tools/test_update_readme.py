"""Tables of the README and docs: generated from the CSV files and up to date."""

from pathlib import Path

import pytest

from inline.reproduce.generated_files import table_source
from inline.utils.errors import UserError
from inline.utils.tables import markdown_table, read_csv
from tests.conftest import ROOT
from tools import update_readme


def test_the_pages_are_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    assert update_readme.TABLE.search((ROOT / 'README.md').read_text())
    monkeypatch.setattr('sys.argv', ['update_readme.py', '--check'])
    update_readme.main()


def test_an_outdated_page_is_reported_then_updated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / 'table.csv'
    table.write_text('model,top-1,commit\nsmall,82.0,abc\nlarge,,abc\n')
    page = tmp_path / 'page.md'
    outdated = f'Text.\n<!-- table: {table} -->\n| old |\n<!-- end of table -->\nMore.\n'
    page.write_text(outdated)
    monkeypatch.setattr(update_readme, 'PAGES', [page])
    monkeypatch.setattr('sys.argv', ['update_readme.py', '--check'])
    with pytest.raises(UserError, match=r'^a table of page.md is out of date'):
        update_readme.main()
    assert page.read_text() == outdated
    monkeypatch.setattr('sys.argv', ['update_readme.py'])
    update_readme.main()
    # Provenance is not shown.
    shown = '| model | top-1 |\n| --- | --- |\n| small | 82.0 |\n| large |  |\n'
    assert page.read_text() == outdated.replace('| old |\n', shown)


def test_an_unknown_table_is_an_error() -> None:
    with pytest.raises(UserError, match=r"a page names the table 'results/none.csv', which is neither"):
        table_source('results/none.csv')


def test_a_markdown_table_has_a_header() -> None:
    assert markdown_table([['a', 'b'], ['1', '']]) == '| a | b |\n| --- | --- |\n| 1 |  |\n'


def test_models_are_listed_with_their_published_accuracy() -> None:
    header, *rows = table_source('models')
    lines = {row[0]: dict(zip(header, row, strict=True)) for row in rows}
    published = read_csv(ROOT / 'results' / 'paper' / 'imagenet.csv')
    paper = {(line['model'], line['resolution']): line['top1'] for line in published}
    for name, model, size in (('swin-tiny', 'Swin-T', '224'), ('cswin-base-384', 'CSwin-B', '384')):
        shown = lines[f'inline-{name}']
        assert shown['top-1, reported'] == paper[f'InLine-{model}', size]
        assert shown['with softmax, reported'] == paper[model, size]
    assert lines['inline-swin-base-384']['top-1, reported'] == ''
    # The softmax model was published at another resolution.
    assert lines['inline-deit-small']['with softmax, reported'] == ''
    assert len(lines) == 15


def test_the_transfer_table_has_only_published_results() -> None:
    _, *rows = table_source('transfer')
    assert ['inline-swin-tiny_upernet_160k', 'mIoU', '45.57', '44.51'] in rows
    assert all(name.startswith('inline-') and value for name, _, value, _ in rows)
