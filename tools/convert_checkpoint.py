#!/usr/bin/env python
"""Convert a checkpoint of the authors of InLine to one that tools/test.py and `init_cfg` take.

Which model it is, is told from the weights. Every weight is accounted for: if one is unknown, missing or
of another shape, they are listed and nothing is written. No code that a file may hold is executed. OUT is
written as safetensors if its name ends so. A checkpoint that is ours already is written without all but
its weights and their description.
"""

from pathlib import Path

from inline.errors import OneLineParser, UserError, exit_on_user_error
from inline.official.catalogue import OFFICIAL, find_official
from inline.official.convert import convert, is_ours
from inline.official.download import fetch, find_link
from inline.safetensors_files import write_checkpoint
from inline.weights import find_weights, read_content

LINKS = Path(__file__).resolve().parents[1] / 'results' / 'paper' / 'weights.csv'


def main() -> None:
    parser = OneLineParser(description=__doc__, epilog=f'Released models: {", ".join(OFFICIAL)}.')
    parser.add_argument(
        'source',
        metavar='IN',
        help='the .pth or .safetensors file, or the name of a released model to download',
    )
    parser.add_argument('out', metavar='OUT', type=Path, help='the checkpoint to write, .pth or .safetensors')
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
    source = find_source(args.source, args.folder)
    content = read_content(source)
    weights = find_weights(content, source)
    if is_ours(weights):
        name, meta = 'weights of ours', content.get('meta', {})
    else:
        model, weights = convert(weights)
        name, meta = model.name, {'model': model.name, 'img_size': model.img_size}
    write_checkpoint({'meta': meta, 'state_dict': weights}, args.out)
    millions = sum(value.numel() for value in weights.values()) / 1e6
    print(f'{args.out}: {name}, {len(weights)} tensors, {millions:.2f} M parameters')


def find_source(source: str, folder: Path) -> Path:
    if Path(source).exists() or Path(source).suffix:
        return Path(source)
    model = find_official(source)
    return fetch(find_link(model, LINKS), folder / f'{model.name}.pth')


if __name__ == '__main__':
    with exit_on_user_error():
        main()
