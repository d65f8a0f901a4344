"""Flags that several tools have. Torch is not imported, so that a tool answers to --help at once."""

import argparse
import os

from mmengine.config import DictAction


class CfgOptions(DictAction):
    """``--cfg-options key=value …``, with a word that is no pair told as such."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: list[str],
        option_string: str | None = None,
    ) -> None:
        for value in values:
            if '=' not in value:
                parser.error(f'{option_string} {value!r}: must be key=value')
        super().__call__(parser, namespace, values, option_string)


def add_cfg_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=CfgOptions,
        default={},
        metavar='KEY=VALUE',
        help='override settings of the config, for example train_dataloader.batch_size=4',
    )


def add_data_root(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--data-root',
        default=os.environ.get('INLINE_DATA_ROOT'),
        metavar='FOLDER',
        help='folder that holds the data sets, what configs call data/ (default: $INLINE_DATA_ROOT, or data)',
    )


def add_trust(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--trust-checkpoint',
        action='store_true',
        help='load checkpoints that hold more than data, and run the code in them',
    )


def add_run_flags(parser: argparse.ArgumentParser) -> None:
    """What training and testing share; :func:`inline.engine.launch.read_config` applies it."""
    parser.add_argument(
        '--work-dir', help='folder for logs and checkpoints (default: work_dirs/NAME_OF_CONFIG)'
    )
    add_data_root(parser)
    add_cfg_options(parser)
    parser.add_argument(
        '--launcher',
        choices=('none', 'pytorch', 'slurm', 'mpi'),
        default='none',
        help='how several processes are started (default: none)',
    )
    add_trust(parser)
    # torch.distributed.launch hands this over; torchrun uses the environment.
    parser.add_argument('--local_rank', '--local-rank', type=int, default=0, help=argparse.SUPPRESS)
