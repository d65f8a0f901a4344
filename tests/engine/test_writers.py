"""Only rank 0 writes files."""

import argparse
import os
from pathlib import Path

import pytest

from inline.engine import launch
from inline.engine.flags import add_run_flags
from tests.conftest import ROOT
from tests.engine.distributed.ranks import run_ranks

CONFIG = ROOT / 'configs' / 'digits_quick' / 'inline-pvt-nano_digits.py'
OPTIONS = [
    'train_cfg.max_iters=2',
    'train_cfg.val_interval=2',
    'train_dataloader.batch_size=2',
    *(
        f'{phase}_dataloader.{key}'
        for phase in ('train', 'val', 'test')
        for key in ('num_workers=0', 'persistent_workers=False')
    ),
    'default_hooks.logger.interval=1',
    'default_hooks.checkpoint.interval=1',
    'default_hooks.checkpoint.save_best=auto',
]


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob('*') if path.is_file()}


def arguments(digit_scenes: Path, *words: str) -> argparse.Namespace:
    """Parse the flags of the tools, with a work directory in the current directory."""
    parser = argparse.ArgumentParser()
    add_run_flags(parser)
    common = ['--launcher', 'pytorch', '--work-dir', 'work', '--data-root', str(digit_scenes.parent)]
    args = parser.parse_args([*common, *words, '--cfg-options', *OPTIONS])
    args.config = str(CONFIG)
    return args


@pytest.mark.slow
def test_only_rank_zero_writes(digit_scenes: Path, tmp_path: Path) -> None:
    """Each rank has its own current directory, so that its files are known."""
    for rank in range(2):
        (tmp_path / str(rank)).mkdir()

    def training() -> None:
        os.chdir(tmp_path / os.environ['RANK'])
        args = arguments(digit_scenes)
        args.resume = args.pretrained = args.epochs = None
        args.amp = args.no_validate = args.auto_scale_lr = False
        launch.train(args)

    def testing() -> None:
        os.chdir(tmp_path / os.environ['RANK'])
        args = arguments(digit_scenes)
        args.checkpoint = str(tmp_path / '0' / 'work' / 'iter_2.pth')
        args.out, args.show_dir = 'out/predictions.pkl', 'drawn'
        args.tta = args.allow_other_classes = False
        launch.test(args)

    run_ranks(2, training, tmp_path / 'trained')
    written = files(tmp_path / '0')
    assert {'work/iter_2.pth', 'work/last_checkpoint'} <= written
    assert any(name.startswith('work/best_') for name in written)
    assert any(name.endswith('.log') for name in written)
    assert any(name.endswith('scalars.json') for name in written)
    assert not files(tmp_path / '1')

    run_ranks(2, testing, tmp_path / 'tested')
    more = files(tmp_path / '0') - written
    assert 'out/predictions.pkl' in more
    assert any(name.startswith('drawn/') for name in more)
    assert not files(tmp_path / '1')
