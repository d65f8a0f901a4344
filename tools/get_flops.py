#!/usr/bin/env python
"""Count the parameters and multiply-adds of a config's model, part by part.

Attention counts at its true cost: InLine grows with the number of tokens, softmax with its square.
"""

from inline.columns import align
from inline.compat import prepare
from inline.engine.flags import add_cfg_options
from inline.errors import OneLineParser, UserError, exit_on_user_error


def main() -> None:
    parser = OneLineParser(description=__doc__)
    parser.add_argument('config', help='config file, for example configs/digits/inline-pvt-micro_digits.py')
    parser.add_argument(
        '--shape',
        type=int,
        nargs=2,
        metavar=('H', 'W'),
        help='height and width of the image (default: the backbone’s img_size for a classifier, 800 1280 '
        'for a detector, 512 512 for a segmentor)',
    )
    add_cfg_options(parser)
    args = parser.parse_args()
    prepare()
    from inline.engine.complexity import count_config, usual_shape
    from inline.engine.config import load_config

    cfg = load_config(args.config, args.cfg_options)
    shape = tuple(args.shape or usual_shape(cfg))
    if min(shape) < 1:
        raise UserError(f'--shape {shape[0]} {shape[1]}: must be two sizes in pixels')
    rows = [
        [cost.part, f'{cost.parameters / 1e6:.2f}', f'{cost.multiply_adds / 1e9:.2f}']
        for cost in count_config(cfg, shape)
    ]
    print(f'input {shape[0]}×{shape[1]}')
    print(*align([['part', 'params (M)', 'FLOPs (G)'], *rows], right=[1, 2]), sep='\n')


if __name__ == '__main__':
    with exit_on_user_error():
        main()
