"""Count the parameters and multiply-adds of a config's model and its modules.

Attention is counted at its real cost: linear in the number of tokens for InLine, quadratic for softmax.
"""

from inline.engine.flags import add_cfg_options
from inline.openmmlab.patches import apply_patches
from inline.utils.arguments import check_positive
from inline.utils.errors import OneLineParser
from inline.utils.tables import align


def main() -> None:
    parser = OneLineParser(description=__doc__)
    parser.add_argument('config', help='config file, or the name of a file in configs/')
    parser.add_argument(
        '--shape',
        type=int,
        nargs=2,
        metavar=('H', 'W'),
        help="height and width of the image (default: the backbone's img_size for a classifier, 800 1280 "
        'for a detector, 512 512 for a segmentor)',
    )
    add_cfg_options(parser)
    args = parser.parse_args()
    apply_patches()
    from inline.benchmark.flops import count_config_flops, default_shape
    from inline.engine.config import load_config

    cfg = load_config(args.config, args.cfg_options)
    shape = tuple(args.shape or default_shape(cfg))
    for side in shape:
        check_positive('--shape', side)
    rows = [
        [cost.name, f'{cost.parameters / 1e6:.2f}', f'{cost.multiply_adds / 1e9:.2f}']
        for cost in count_config_flops(cfg, shape)
    ]
    print(f'input {shape[0]}×{shape[1]}')
    print(*align([['module', 'params (M)', 'FLOPs (G)'], *rows], right=[1, 2]), sep='\n')
