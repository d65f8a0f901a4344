#!/usr/bin/env python
"""Write configs/*/metafile.yml and model-index.yml, which let OpenMMLab's tools find the models."""

from inline.openmmlab.patches import apply_patches
from inline.utils.errors import OneLineParser, UserError, exit_on_user_error


def main() -> None:
    parser = OneLineParser(description=__doc__)
    parser.add_argument('--check', action='store_true', help='write nothing; fail if a file is out of date')
    args = parser.parse_args()
    apply_patches()
    from inline.reproduce.generated_files import render_metafiles
    from inline.reproduce.provenance import ROOT
    from inline.reproduce.tables import MEASURED

    for path, text in render_metafiles(MEASURED).items():
        if not args.check:
            path.write_text(text)
        elif not path.is_file() or path.read_text() != text:
            name = str(path.relative_to(ROOT))
            raise UserError(f'{name!r} is out of date: run `python tools/make_metafiles.py`')


if __name__ == '__main__':
    with exit_on_user_error():
        main()
