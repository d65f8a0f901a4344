"""Flags that several tools share. Does not import torch, so that ``--help`` is fast."""

import argparse
import os

from mmengine.config import DictAction


class CfgOptions(DictAction):
    """``--cfg-options key=value …``, with an error for a word that is not a pair."""

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
    """Add ``--cfg-options``."""
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=CfgOptions,
        default={},
        metavar='KEY=VALUE',
        help='override settings of the config, for example train_dataloader.batch_size=4',
    )


def add_data_root(parser: argparse.ArgumentParser) -> None:
    """Add ``--data-root``."""
    parser.add_argument(
        '--data-root',
        default=os.environ.get('INLINE_DATA_ROOT'),
        metavar='FOLDER',
        help='folder of all datasets, data/ in the configs (default: $INLINE_DATA_ROOT, or data); '
        'with configs/finetune, the folder of your dataset, or its data.yaml or CSV file',
    )


def add_custom_data_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags for configs with ``custom_data``."""
    parser.add_argument(
        '--val-split',
        type=float,
        metavar='X',
        help='hold out this fraction of your own images, such as 0.1, if there is no val split; '
        '1 to test on all of them',
    )
    parser.add_argument(
        '--ignore-label',
        nargs='+',
        metavar='LABEL',
        help='labels or class names of your own label maps that loss and metric ignore',
    )


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Add ``--trust-checkpoint``."""
    parser.add_argument(
        '--trust-checkpoint',
        action='store_true',
        help='also load checkpoints that are not plain data; this runs the code in them',
    )


def add_allow_other_classes(parser: argparse.ArgumentParser) -> None:
    """Add ``--allow-other-classes``."""
    parser.add_argument(
        '--allow-other-classes',
        action='store_true',
        help='accept a checkpoint whose class names or class order differ from the data',
    )


def add_shorthands(parser: argparse.ArgumentParser) -> None:
    """Add flags for common settings, which :mod:`inline.engine.shorthands` maps to keys of the config."""
    group = parser.add_argument_group('common settings', 'These override the config and --cfg-options.')
    group.add_argument(
        '--epochs', type=int, metavar='N', help='length of training; schedules and intervals are scaled to it'
    )
    group.add_argument('--batch-size', type=int, metavar='N', help='training images per process and step')
    group.add_argument('--lr', type=float, metavar='X', help='learning rate of the optimizer')
    group.add_argument(
        '--img-size',
        type=int,
        metavar='N',
        help='image size (classification), shorter side (detection) or crop (segmentation), in pixels',
    )
    group.add_argument('--workers', type=int, metavar='N', help='data loading processes per training process')
    group.add_argument('--seed', type=int, metavar='N', help='seed of all random numbers')


def add_run_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of training and testing, which :func:`inline.engine.launch.read_config` applies."""
    parser.add_argument(
        '--work-dir', help='folder for logs and checkpoints (default: work_dirs/NAME_OF_CONFIG)'
    )
    add_data_root(parser)
    add_custom_data_flags(parser)
    add_cfg_options(parser)
    parser.add_argument(
        '--launcher',
        choices=('none', 'pytorch', 'slurm', 'mpi'),
        default='none',
        help='launcher of a distributed run (default: none)',
    )
    add_trust(parser)
    parser.add_argument(
        '--verbose',
        action='store_true',
        help='print the complete log: environment, config, hooks, every message',
    )
    # torch.distributed.launch passes this flag; torchrun sets an environment variable.
    parser.add_argument('--local_rank', '--local-rank', type=int, default=0, help=argparse.SUPPRESS)
