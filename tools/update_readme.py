#!/usr/bin/env python
"""Update the tables of the README and docs/ from the data in results/.

A table is between ``<!-- table: SOURCE -->`` and ``<!-- end of table -->``. SOURCE is a CSV file of the
repository, the name of a table of tools/reproduce.py (expected and measured numbers), ``models`` or
``transfer``, the short tables of the README, ``runtimes``, ``ablation/TABLE/DATASET`` or
``verdicts/TABLE/DATASET``, or ``gpu``, the times of benchmarks/gpu.py.
"""

import re
from pathlib import Path

from inline.openmmlab.patches import apply_patches
from inline.utils.errors import OneLineParser, UserError, exit_on_user_error

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / 'README.md', *sorted((ROOT / 'docs').glob('*.md'))]
NOT_MEASURED = 'Not measured yet.\n'
TABLE = re.compile(r'(<!-- table: (?P<source>\S+) -->\n).*?(<!-- end of table -->)', re.DOTALL)


def main() -> None:
    parser = OneLineParser(description=__doc__)
    parser.add_argument('--check', action='store_true', help='write nothing; fail if a table is out of date')
    args = parser.parse_args()
    apply_patches()
    for page in PAGES:
        text = page.read_text()
        current = update_tables(text)
        if args.check and current != text:
            raise UserError(f'a table of {page.name} is out of date: run `python tools/update_readme.py`')
        if not args.check:
            page.write_text(current)


def update_tables(text: str) -> str:
    """Return the text of a page with all tables rendered from their source."""
    from inline.reproduce.generated_files import table_source
    from inline.utils.tables import markdown_table

    def render(match: re.Match[str]) -> str:
        rows = table_source(match['source'])
        return f'{match[1]}{markdown_table(rows) if rows else NOT_MEASURED}{match[3]}'

    return TABLE.sub(render, text)


if __name__ == '__main__':
    with exit_on_user_error():
        main()
