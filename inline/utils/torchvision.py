"""Import of torchvision when its compiled operators cannot be loaded."""

from typing import Any

# torch drops the schemas of a library that nothing refers to.
_library: Any = None


def import_torchvision_without_operators() -> None:
    """Make ``import torchvision`` work if its compiled operators do not match the installed torch.

    Reason: with a CPU-only torch the operators do not load, and the import fails at the first of them. The
    toolboxes and transformers use torchvision's Python code only, so it is enough that the operators have a
    schema. A torchvision that can be imported is not changed. Remove when torchvision can be imported without
    its operators.
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
