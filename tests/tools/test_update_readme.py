"""Tables of the README and docs: generated from the CSV files and up to date."""

from pathlib import Path

import pytest

from inline.reproduce import generated_files
from inline.reproduce.generated_files import gpu_rows, table_source
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


def test_times_on_a_gpu_are_shown_side_by_side_once_there_are_some(tmp_path: Path) -> None:
    table = tmp_path / 'gpu.csv'
    header = 'what,tokens,machine,implementation,median ms,commit\n'
    table.write_text(header)
    assert gpu_rows(table) == []
    lines = ['module,49,A,eager,0.12345,abc', 'module,49,A,fla,2,abc', 'module,196,A,eager,12.345,abc']
    table.write_text(header + '\n'.join(lines) + '\n')
    assert gpu_rows(table) == [
        ['what', 'tokens', 'machine', 'eager, ms', 'fla, ms'],
        ['module', '49', 'A', '0.123', '2'],
        ['module', '196', 'A', '12.3', ''],
    ]


def test_a_table_without_rows_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    page = 'Text.\n<!-- table: gpu -->\n| old |\n<!-- end of table -->\n'
    monkeypatch.setattr(generated_files, 'gpu_rows', lambda _: [])
    assert update_readme.update_tables(page) == page.replace('| old |', 'Not measured yet.')
    monkeypatch.setattr(generated_files, 'gpu_rows', lambda _: [['a', 'b'], ['1', '2']])
    assert update_readme.update_tables(page) == page.replace('| old |', '| a | b |\n| --- | --- |\n| 1 | 2 |')


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
