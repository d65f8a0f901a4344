from pathlib import Path

from tests.conftest import ROOT, run_tool
from tools.update_readme import TABLE, markdown_table


def test_the_readme_shows_the_data_as_it_is() -> None:
    assert TABLE.search((ROOT / 'README.md').read_text())
    done = run_tool('tools/update_readme.py', '--check')
    assert done.returncode == 0, done.stderr


def test_a_csv_becomes_a_markdown_table(tmp_path: Path) -> None:
    (tmp_path / 'table.csv').write_text('model,top-1\nsmall,82.0\nlarge,\n')
    expected = '| model | top-1 |\n| --- | --- |\n| small | 82.0 |\n| large |  |\n'
    assert markdown_table(str(tmp_path / 'table.csv')) == expected
