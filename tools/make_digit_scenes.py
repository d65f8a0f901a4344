#!/usr/bin/env python
"""Write the digit scenes: real handwriting on real photographs, made of files inside installed wheels."""

import argparse
import time
from dataclasses import fields
from pathlib import Path

import cv2

from inline.datasets.digit_contact_sheet import contact_sheet
from inline.datasets.digit_scenes import DigitScenesOptions, progress_bar, write_digit_scenes
from inline.errors import OneLineParser, UserError, exit_on_user_error


def parse_args() -> argparse.Namespace:
    parser = OneLineParser(
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        epilog='The same options give the same bytes. A whole set of the same options is left as it is.',
    )
    parser.add_argument('--out', type=Path, default=Path('data/digit_scenes'), help='folder to write')
    for option in fields(DigitScenesOptions):
        flag = f'--{option.name.replace("_", "-")}'
        parser.add_argument(flag, type=int, metavar='N', default=option.default, help=option.metadata['help'])
    parser.add_argument('--overwrite', action='store_true', help='replace an earlier set of digit scenes')
    parser.add_argument(
        '--contact-sheet', type=Path, metavar='PATH', help='also draw samples into this image'
    )
    args = parser.parse_args()
    sheet = args.contact_sheet
    if sheet and sheet.suffix.lower() not in ('.jpg', '.jpeg', '.png'):
        parser.error(f'--contact-sheet is {str(sheet)!r}, but must end in .jpg, .jpeg or .png')
    return args


def main() -> None:
    args = parse_args()
    options = DigitScenesOptions(
        **{option.name: getattr(args, option.name) for option in fields(DigitScenesOptions)}
    )
    start = time.perf_counter()
    written = write_digit_scenes(
        args.out,
        options,
        overwrite=args.overwrite,
        progress=progress_bar,
    )
    if written:
        print(
            f'{args.out}: wrote {options.num_classification_train} + {options.num_classification_val} '
            f'classification images and {options.num_scenes_train} + {options.num_scenes_val} scenes '
            f'(train + val) in {time.perf_counter() - start:.1f} s'
        )
    else:
        print(f'{args.out}: whole already, with these options; nothing to do (--overwrite makes it anew)')
    if args.contact_sheet:
        write_contact_sheet(args.contact_sheet, options)


def write_contact_sheet(path: Path, options: DigitScenesOptions) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    parameters = [] if path.suffix.lower() == '.png' else [cv2.IMWRITE_JPEG_QUALITY, 80]
    if not cv2.imwrite(str(path), contact_sheet(options), parameters):
        raise UserError(f'cannot write {path}')
    print(f'{path}: contact sheet')


if __name__ == '__main__':
    with exit_on_user_error():
        main()
