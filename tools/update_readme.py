#!/usr/bin/env python
"""Write the tables of the README and of docs/ anew from the data in results/.

A table stands between ``<!-- table: SOURCE -->`` and ``<!-- end of table -->``. SOURCE is a CSV file of the
repository, or the name of a table that tools/reproduce.py knows, shown as expected beside measured, or one of
the README's short ones: ``models`` and ``transfer``.
"""

import csv
import re
from pathlib import Path

from inline.compat import prepare
from inline.errors import OneLineParser, UserError, exit_on_user_error

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / 'README.md', *sorted((ROOT / 'docs').glob('*.md'))]
TABLE = re.compile(r'(<!-- table: (?P<source>\S+) -->\n).*?(<!-- end of table -->)', re.DOTALL)


def main() -> None:
    parser = OneLineParser(description=__doc__)
    parser.add_argument('--check', action='store_true', help='change nothing; fail if a table is out of date')
    args = parser.parse_args()
    prepare()
    for page in PAGES:
        text = page.read_text()
        current = TABLE.sub(lambda match: f'{match[1]}{markdown_table(match["source"])}{match[3]}', text)
        if args.check and current != text:
            raise UserError(
                f'{page.name} has a table that is out of date: run `python tools/update_readme.py`'
            )
        if not args.check:
            page.write_text(current)


def markdown_table(source: str) -> str:
    header, *rows = read_table(source)
    lines = [header, ['---'] * len(header), *rows]
    return ''.join(f'| {" | ".join(line)} |\n' for line in lines)


def read_table(source: str) -> list[list[str]]:
    if not source.endswith('.csv'):
        from inline.reproduce.markdown import model_rows, table_rows, transfer_rows
        from inline.reproduce.tables import find_table

        measured = ROOT / 'results' / 'measured'
        if source == 'models':
            return model_rows(measured / 'models.csv')
        return transfer_rows() if source == 'transfer' else table_rows(find_table(source), measured)
    path = ROOT / source
    if not path.is_file():
        raise UserError(f'a page names the table {source!r}, which does not exist')
    with path.open(newline='') as file:
        return list(csv.reader(file))


if __name__ == '__main__':
    with exit_on_user_error():
        main()
