#!/usr/bin/env python
"""Write the tables of the README anew from the data files that they name.

A table stands between ``<!-- table: FILE.csv -->`` and ``<!-- end of table -->``; FILE is relative to the
repository.
"""

import csv
import re
from pathlib import Path

from inline.errors import OneLineParser, UserError, exit_on_user_error

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / 'README.md'
TABLE = re.compile(r'(<!-- table: (?P<file>\S+) -->\n).*?(<!-- end of table -->)', re.DOTALL)


def main() -> None:
    parser = OneLineParser(description=__doc__)
    parser.add_argument('--check', action='store_true', help='change nothing; fail if a table is out of date')
    args = parser.parse_args()
    text = README.read_text()
    current = TABLE.sub(lambda match: f'{match[1]}{markdown_table(ROOT / match["file"])}{match[3]}', text)
    if args.check and current != text:
        raise UserError('README.md has a table that is out of date: run `python tools/update_readme.py`')
    if not args.check:
        README.write_text(current)


def markdown_table(path: Path) -> str:
    if not path.is_file():
        raise UserError(f'README.md names the table {str(path)!r}, which does not exist')
    with path.open(newline='') as file:
        header, *rows = csv.reader(file)
    lines = [header, ['---'] * len(header), *rows]
    return ''.join(f'| {" | ".join(line)} |\n' for line in lines)


if __name__ == '__main__':
    with exit_on_user_error():
        main()
