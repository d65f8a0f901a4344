import csv
from pathlib import Path

from tests.conftest import ROOT, run_tool
from tools.update_readme import TABLE, markdown_table, read_table


def test_the_readme_shows_the_data_as_it_is() -> None:
    assert TABLE.search((ROOT / 'README.md').read_text())
    done = run_tool('tools/update_readme.py', '--check')
    assert done.returncode == 0, done.stderr


def test_a_csv_becomes_a_markdown_table(tmp_path: Path) -> None:
    (tmp_path / 'table.csv').write_text('model,top-1\nsmall,82.0\nlarge,\n')
    expected = '| model | top-1 |\n| --- | --- |\n| small | 82.0 |\n| large |  |\n'
    assert markdown_table(str(tmp_path / 'table.csv')) == expected


def test_models_stand_beside_what_was_reported_of_them() -> None:
    header, *rows = read_table('models')
    lines = {row[0]: dict(zip(header, row, strict=True)) for row in rows}
    with (ROOT / 'results' / 'paper' / 'imagenet.csv').open(newline='') as file:
        paper = {line['model']: line['top1'] for line in csv.DictReader(file) if line['resolution'] == '224'}
    swin = lines['inline-swin-tiny']
    assert (swin['top-1, reported'], swin['with softmax, reported']) == (
        paper['InLine-Swin-T'],
        paper['Swin-T'],
    )
    assert lines['inline-swin-base-384']['top-1, reported'] == ''
    assert len(lines) == 15


def test_of_other_tasks_only_what_was_reported_is_shown() -> None:
    _, *rows = read_table('transfer')
    assert ['inline-swin-tiny_upernet_160k', 'mIoU', '45.57', '44.51'] in rows
    assert all(name.startswith('inline-') and figure for name, _, figure, _ in rows)
