#!/usr/bin/env python
"""Write configs/*/metafile.yml and model-index.yml, by which OpenMMLab's tools find the models."""

from pathlib import Path

from inline.compat import prepare
from inline.errors import OneLineParser, UserError, exit_on_user_error

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    parser = OneLineParser(description=__doc__)
    parser.add_argument('--check', action='store_true', help='change nothing; fail if a file is out of date')
    args = parser.parse_args()
    prepare()
    from inline.reproduce.metafiles import render_all

    for path, text in render_all(ROOT / 'results' / 'measured').items():
        if not args.check:
            path.write_text(text)
        elif not path.is_file() or path.read_text() != text:
            raise UserError(
                f'{str(path.relative_to(ROOT))!r} is out of date: run `python tools/make_metafiles.py`'
            )


if __name__ == '__main__':
    with exit_on_user_error():
        main()
