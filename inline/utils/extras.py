"""Optional dependencies: the extras of ``setup.cfg``, and a one-line error for a missing one."""

from dataclasses import dataclass
from importlib.util import find_spec

from inline.utils.errors import UserError

DISTRIBUTION = 'inline-attention'


@dataclass(frozen=True)
class Extra:
    """An extra of the distribution.

    Args:
        purpose: What it is for.
        packages: Modules that it installs and the distributions that contain them.
    """

    purpose: str
    packages: dict[str, str]


EXTRAS = {
    'openmmlab': Extra(
        'configs, training, inference',
        {
            'mmengine': 'onedl-mmengine',
            'mmcv': 'onedl-mmcv',
            'mmpretrain': 'onedl-mmpretrain',
            'mmdet': 'onedl-mmdetection',
            'mmseg': 'onedl-mmsegmentation',
            'torchvision': 'torchvision',
            'cv2': 'opencv-python',
            'pycocotools': 'pycocotools',
            'matplotlib': 'matplotlib',
        },
    ),
    'export': Extra(
        'ONNX, OpenVINO, int8',
        {name: name for name in ('onnx', 'onnxscript', 'onnxruntime', 'openvino', 'nncf')},
    ),
    'serve': Extra('web demo', {'gradio': 'gradio'}),
    'gpu': Extra('Triton kernels', {'triton': 'triton'}),
    'timm': Extra('models in timm', {'timm': 'timm'}),
    'hub': Extra(
        'Hugging Face, safetensors',
        {name: name for name in ('huggingface_hub', 'safetensors', 'transformers')},
    ),
}


def missing_modules(extra: str) -> list[str]:
    """Return the modules of an extra that are not installed. Imports none of them."""
    return [name for name in EXTRAS[extra].packages if find_spec(name) is None]


def install_command(*extras: str) -> str:
    """Return the command that installs extras."""
    return f"pip install '{DISTRIBUTION}[{','.join(extras)}]'"


def require_extras(purpose: str, *extras: str) -> None:
    """Raise a :class:`UserError` that names the missing modules of `extras` and how to install them.

    Args:
        purpose: What needs them: a command, a function or a flag.
        extras: Keys of :data:`EXTRAS`.
    """
    missing = {extra: names for extra in extras if (names := missing_modules(extra))}
    if missing:
        modules = ', '.join(name for names in missing.values() for name in names)
        raise UserError(f'{purpose} needs {modules}: {install_command(*missing)}')


def require_modules(purpose: str, extra: str, *modules: str) -> None:
    """Raise a :class:`UserError` if one of `modules`, some of those that `extra` installs, is missing."""
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise UserError(f'{purpose} needs {", ".join(missing)}: {install_command(extra)}')
