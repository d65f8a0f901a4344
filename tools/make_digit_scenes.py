#!/usr/bin/env python
"""Create the digit scenes from handwritten digits and photographs in installed packages."""

import argparse
import time
from dataclasses import fields
from pathlib import Path

from PIL import Image

from inline.datasets.digits.contact_sheet import contact_sheet
from inline.datasets.digits.scenes import DigitScenesOptions, write_digit_scenes
from inline.utils.errors import OneLineParser, UserError, exit_on_user_error


def parse_args() -> argparse.Namespace:
    parser = OneLineParser(
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        epilog='The output is deterministic. Complete digit scenes with the same options are kept.',
    )
    parser.add_argument('--out', type=Path, default=Path('data/digit_scenes'), help='folder to write')
    for option in fields(DigitScenesOptions):
        flag = f'--{option.name.replace("_", "-")}'
        parser.add_argument(flag, type=int, metavar='N', default=option.default, help=option.metadata['help'])
    parser.add_argument('--overwrite', action='store_true', help='replace existing digit scenes')
    parser.add_argument('--contact-sheet', type=Path, metavar='PATH', help='also draw samples into an image')
    args = parser.parse_args()
    sheet = args.contact_sheet
    if sheet and sheet.suffix.lower() not in ('.jpg', '.jpeg', '.png'):
        parser.error(f'--contact-sheet {str(sheet)!r}: must end in .jpg, .jpeg or .png')
    return args


def main() -> None:
    args = parse_args()
    options = DigitScenesOptions(
        **{option.name: getattr(args, option.name) for option in fields(DigitScenesOptions)}
    )
    start = time.perf_counter()
    if write_digit_scenes(args.out, options, overwrite=args.overwrite, show_progress=True):
        print(
            f'{args.out}: wrote {options.num_classification_train} + {options.num_classification_val} '
            f'classification images and {options.num_scenes_train} + {options.num_scenes_val} scenes '
            f'(train + val) in {time.perf_counter() - start:.1f} s'
        )
    else:
        print(f'{args.out}: complete with these options, nothing to do (--overwrite writes it again)')
    if args.contact_sheet:
        write_contact_sheet(args.contact_sheet, options)


def write_contact_sheet(path: Path, options: DigitScenesOptions) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(contact_sheet(options)).save(path, quality=80)
    except OSError as error:
        raise UserError(f'cannot write {path}: {error}') from error
    print(f'{path}: contact sheet')


if __name__ == '__main__':
    with exit_on_user_error():
        main()
