"""Cures for the places where the pinned stack does not fit together. Call :func:`prepare` before a
toolbox is imported or a config is read."""

import torch


def prepare() -> None:
    _import_torchvision()
    _name_mmseg()


def _import_torchvision() -> None:
    """Make ``import torchvision`` work beside a torch that its compiled operators were not built for.

    With a CPU-only torch the operators do not load, and the import stops at the first of them. The
    toolboxes use torchvision's Python parts only, so it is enough that the operators have a schema.
    A torchvision that imports as it is stays as it is.
    """
    try:
        import torchvision  # noqa: F401
    except RuntimeError as error:
        if 'torchvision::nms' not in str(error):
            raise
        global _library  # torch forgets the schemas when the library object goes
        _library = torch.library.Library('torchvision', 'DEF')
        _library.define('nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor')
        _library.define('qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor')
        import torchvision  # noqa: F401


_library: torch.library.Library | None = None


def _name_mmseg() -> None:
    """Let ``_base_ = 'mmseg::…'`` find its package: MMEngine looks for the old distribution's name."""
    from mmengine.config.utils import MODULE2PACKAGE

    MODULE2PACKAGE['mmseg'] = 'mmseg'
