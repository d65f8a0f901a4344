"""Convert a checkpoint to our parameter names, or reduce one of our checkpoints to its weights.

Accepts files of InLine's authors, and plain DeiT, ViT, PVT, Swin and CSwin models of timm, mmpretrain, mmdet
and the official repositories, which become our backbones with softmax attention. The model is identified from
the weights. If weights are unknown, missing or have a wrong shape, they are listed and nothing is written. No
code in the file is run. The suffix of OUT selects the format. --pretrained and init_cfg accept all these
files directly, without conversion.
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
    checkpoint = read_checkpoint(find_source(args.source, args.folder), convert_softmax_models=True)
    weights = checkpoint.state_dict
    title = checkpoint.identify()
    write_checkpoint({'meta': checkpoint.meta, 'state_dict': weights}, args.out)
    millions = sum(value.numel() for value in weights.values()) / 1e6
    size = f'{len(weights)} tensors, {millions:.2f} M parameters'
    print(f'{args.out}: {title}, {size}')
    if checkpoint.converted is not None:
        print('\n'.join(checkpoint.converted.describe()))


def find_source(source: str, folder: Path) -> str | Path:
    """Return `source`, or the downloaded file of a released model."""
    if Path(source).exists() or Path(source).suffix or is_remote(source):
        return source
    model = find_official(source)
    require_modules(f'the download of {source!r}', 'hub', 'tqdm')
    return download(find_link(model, PAPER_RESULTS / 'weights.csv'), folder / f'{model.name}.pth')
