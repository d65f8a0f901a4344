"""The notebook of the documentation runs, and its stored outputs are those of a run."""

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

from inline.utils.errors import UserError
from tests.conftest import ROOT
from tools.run_notebook import run_notebook
from tools.site_hooks import render_notebook

NOTEBOOK = ROOT / 'docs' / 'tutorial.ipynb'
MAX_BYTES = 300_000
ACCURACY = re.compile(r'accuracy (\d+)% before, (\d+)% after')


def printed(notebook: Any) -> str:
    return ''.join(
        output.text
        for cell in notebook.cells
        for output in cell.get('outputs', ())
        if output.output_type == 'stream'
    )


def read_accuracies(text: str) -> list[int]:
    match = ACCURACY.search(text)
    assert match, text
    return [int(number) for number in match.groups()]


@pytest.mark.exhaustive
def test_stored_outputs_are_those_of_a_run() -> None:
    stored, new = nbformat.read(NOTEBOOK, as_version=4), run_notebook(NOTEBOOK)
    for left, right in zip(stored.cells, new.cells, strict=True):
        assert [output.output_type for output in left.get('outputs', ())] == [
            output.output_type for output in right.get('outputs', ())
        ], left.source
    number = re.compile(r'\d+(\.\d+)?')
    assert number.sub('N', printed(new)) == number.sub('N', printed(stored))
    (before, after), (old_before, old_after) = (read_accuracies(printed(run)) for run in (new, stored))
    assert before < 30
    assert after > 80
    assert abs(before - old_before) <= 5
    assert abs(after - old_after) <= 10


def test_file_is_small_complete_and_without_paths_or_errors() -> None:
    text = NOTEBOOK.read_text()
    assert len(text) < MAX_BYTES
    assert not re.search(r'/(tmp|home|root|work)/|site-packages|Traceback', text)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    codes = [cell for cell in notebook.cells if cell.cell_type == 'code']
    assert [cell.execution_count for cell in codes] == list(range(1, len(codes) + 1))
    assert all(cell.outputs for cell in codes)
    assert [output.output_type for cell in codes for output in cell.outputs].count('display_data') == 1


def test_page_shows_code_text_and_images() -> None:
    page = render_notebook(NOTEBOOK.read_text())
    assert page.startswith('# Tutorial')
    assert '```python\nimport matplotlib' in page
    assert ACCURACY.search(page)
    assert page.count('](data:image/png;base64,') == 1


@pytest.mark.slow
def test_failing_cell_is_one_line(tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell('1 / 0')])
    nbformat.write(notebook, tmp_path / 'bad.ipynb')
    with pytest.raises(UserError, match=r'bad\.ipynb.*ZeroDivisionError: division by zero') as raised:
        run_notebook(tmp_path / 'bad.ipynb')
    assert '\n' not in str(raised.value)
