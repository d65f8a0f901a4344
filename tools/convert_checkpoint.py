#!/usr/bin/env python
"""Convert a checkpoint of the authors of InLine to one that tools/test.py and `init_cfg` take.

Which model it is, is told from the weights. Every weight is accounted for: if one is unknown, missing or
of another shape, they are listed and nothing is written. No code that a file may hold is executed.
"""

from pathlib import Path

import torch

from inline.errors import OneLineParser, UserError, exit_on_user_error
from inline.official.catalogue import OFFICIAL, find_official
from inline.official.convert import convert, read_checkpoint
from inline.official.download import fetch, find_link

LINKS = Path(__file__).resolve().parents[1] / 'results' / 'paper' / 'weights.csv'


def main() -> None:
    parser = OneLineParser(description=__doc__, epilog=f'Released models: {", ".join(OFFICIAL)}.')
    parser.add_argument(
        'source', metavar='IN', help='the .pth file, or the name of a released model to download'
    )
    parser.add_argument('out', metavar='OUT', type=Path, help='the checkpoint to write')
    parser.add_argument(
        '--folder',
        type=Path,
        default=Path('checkpoints/official'),
        help='where downloaded files are kept (default: %(default)s)',
    )
    parser.add_argument('--overwrite', action='store_true', help='replace OUT if it is there')
    args = parser.parse_args()
    if args.out.exists() and not args.overwrite:
        raise UserError(f'{str(args.out)!r} is there already: choose another OUT, or --overwrite it')
    model, state_dict = convert(read_checkpoint(find_source(args.source, args.folder)))
    write({'meta': {'model': model.name, 'img_size': model.img_size}, 'state_dict': state_dict}, args.out)
    millions = sum(value.numel() for value in state_dict.values()) / 1e6
    print(f'{args.out}: {model.name}, {len(state_dict)} tensors, {millions:.2f} M parameters')


def find_source(source: str, folder: Path) -> Path:
    if Path(source).exists() or Path(source).suffix:
        return Path(source)
    model = find_official(source)
    return fetch(find_link(model, LINKS), folder / f'{model.name}.pth')


def write(checkpoint: dict[str, object], out: Path) -> None:
    """Under another name first, so that an interruption leaves no half a file."""
    part = out.with_name(f'{out.name}.part')
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        torch.save(checkpoint, part)
        part.replace(out)
    except (OSError, RuntimeError) as error:
        raise UserError(f'cannot write {str(out)!r}: {error}') from error


if __name__ == '__main__':
    with exit_on_user_error():
        main()
