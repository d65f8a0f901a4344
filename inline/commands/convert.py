"""Convert a checkpoint of InLine's authors to our parameter names, or strip a checkpoint of ours to weights.

The model is identified from the weights. If weights are unknown, missing or have a wrong shape, they are
listed and nothing is written. No code in the file is run. The suffix of OUT selects the format. Other tools
accept the authors' files directly, without conversion.
"""

from pathlib import Path

from inline.checkpoints import read_checkpoint
from inline.checkpoints.official import OFFICIAL, find_link, find_official
from inline.checkpoints.safetensors_format import SUFFIX, write_checkpoint
from inline.checkpoints.sources import download, is_remote
from inline.utils.errors import OneLineParser, UserError
from inline.utils.extras import require_modules
from inline.utils.resources import PAPER_RESULTS


def main() -> None:
    parser = OneLineParser(description=__doc__, epilog=f'Released models: {", ".join(OFFICIAL)}.')
    parser.add_argument(
        'source',
        metavar='IN',
        help='a .pth or .safetensors file, a folder, a URL, USER/MODEL on the Hub, or the name of a released '
        'model to download',
    )
    parser.add_argument('out', metavar='OUT', type=Path, help='checkpoint to write, .pth or .safetensors')
    parser.add_argument(
        '--folder',
        type=Path,
        default=Path('checkpoints/official'),
        help='folder for downloaded files (default: %(default)s)',
    )
    parser.add_argument('--overwrite', action='store_true', help='replace OUT if it exists')
    args = parser.parse_args()
    if args.out.exists() and not args.overwrite:
        raise UserError(f'{str(args.out)!r} exists: choose another OUT, or pass --overwrite')
    if args.out.suffix == SUFFIX:
        require_modules(f'{str(args.out)!r}', 'hub', 'safetensors')
    checkpoint = read_checkpoint(find_source(args.source, args.folder))
    weights = checkpoint.state_dict
    if checkpoint.official is None and not any(name.startswith('backbone.') for name in weights):
        raise UserError(
            f'{args.source!r} contains neither weights of the authors nor ours: '
            f'the names start with {", ".join(list(weights)[:3])}'
        )
    write_checkpoint({'meta': checkpoint.meta, 'state_dict': weights}, args.out)
    name = checkpoint.official.name if checkpoint.official else 'our weights'
    millions = sum(value.numel() for value in weights.values()) / 1e6
    print(f'{args.out}: {name}, {len(weights)} tensors, {millions:.2f} M parameters')


def find_source(source: str, folder: Path) -> str | Path:
    """Return `source`, or the downloaded file of a released model."""
    if Path(source).exists() or Path(source).suffix or is_remote(source):
        return source
    model = find_official(source)
    require_modules(f'the download of {source!r}', 'hub', 'tqdm')
    return download(find_link(model, PAPER_RESULTS / 'weights.csv'), folder / f'{model.name}.pth')
