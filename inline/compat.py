"""Cures for the places where the pinned stack does not fit together. Call :func:`prepare` before a
toolbox is imported or a config is read."""

import logging
import os
import pickle
import tempfile
from typing import Any
from unittest import mock

# Kept here because torch forgets the schemas of a library that nothing refers to.
_library: Any = None


def prepare() -> None:
    _import_torchvision()
    _import_yapf()
    _name_mmseg()
    _find_base_configs_at_once()
    _keep_debug_messages_quiet()


def _import_torchvision() -> None:
    """Make ``import torchvision`` work beside a torch that its compiled operators were not built for.

    With a CPU-only torch the operators do not load, and the import stops at the first of them. The
    toolboxes use torchvision's Python parts only, so it is enough that the operators have a schema.
    A torchvision that imports as it is stays as it is.
    """
    try:
        import torchvision
    except RuntimeError as error:
        if 'torchvision::nms' not in str(error):
            raise
        import torch

        global _library
        _library = torch.library.Library('torchvision', 'DEF')
        _library.define('nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor')
        _library.define('qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor')
        import torchvision  # noqa: F401


def _import_yapf() -> None:
    """Import yapf, with which MMEngine formats configs, even where its cache can't be read.

    yapf keeps its parsed grammar in a file of the user's cache and puts it in place before the last bytes
    are written. Of several processes that start at once on a fresh machine one may read too little; so
    does every process after one that died there. Such a process parses the grammar for itself.
    """
    try:
        import yapf  # type: ignore[import-untyped]
    except (EOFError, pickle.UnpicklingError):
        with (
            tempfile.TemporaryDirectory() as cache,
            mock.patch.dict(os.environ, XDG_CACHE_HOME=cache),
        ):
            import yapf  # noqa: F401


def _name_mmseg() -> None:
    """Let ``_base_ = 'mmseg::…'`` find its package: MMEngine looks for the old distribution's name."""
    from mmengine.config.utils import MODULE2PACKAGE

    MODULE2PACKAGE['mmseg'] = 'mmseg'


def _find_base_configs_at_once() -> None:
    """Spare ``_base_ = 'mmdet::_base_/…'`` a search through all metafiles of the toolbox.

    MMEngine looks there first, which takes 0.4 s for each such file, but metafiles name trained models alone.
    """
    from mmengine.config import config

    search = config._get_external_cfg_path
    if search.__module__ == __name__:
        return

    def find(package_path: str, name: str) -> str:
        if name.startswith('_base_/'):
            # What tells MMEngine to take the path as it is.
            raise ValueError(f'{name} is in no metafile')
        return str(search(package_path, name))

    config._get_external_cfg_path = find


def _keep_debug_messages_quiet() -> None:
    """Let messages of level DEBUG that name no logger be silent: MMEngine prints them whatever the level.

    Otherwise every run begins with "Could not import OneDL", which nothing here needs.
    """
    from mmengine import logging as mmengine_logging

    print_log = mmengine_logging.print_log
    if print_log.__module__ == __name__:
        return

    def print_unless_debug(msg: Any, logger: Any = None, level: int = logging.INFO) -> None:
        if logger is not None or level > logging.DEBUG:
            print_log(msg, logger, level)

    mmengine_logging.print_log = print_unless_debug


def check_operators() -> None:
    """Run one of mmcv's compiled operators, so that a build without them is noticed at once."""
    import torch
    from mmcv.ops import nms

    boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0], [1.0, 1.0, 10.0, 10.0], [20.0, 20.0, 30.0, 30.0]])
    _, kept = nms(boxes, torch.tensor([0.9, 0.8, 0.7]), iou_threshold=0.5)
    if kept.tolist() != [0, 2]:
        raise RuntimeError(f'mmcv.ops.nms kept boxes {kept.tolist()} of three, expected [0, 2]')


if __name__ == '__main__':
    prepare()
    check_operators()
