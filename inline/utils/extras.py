"""Optional dependencies: the extras of ``setup.cfg``, and an error in one line for a missing one."""

from importlib.util import find_spec

from inline.utils.errors import UserError

DISTRIBUTION = 'inline-attention'
# What each extra is for, and the modules whose presence shows that it is installed.
EXTRAS = {
    'openmmlab': (
        'configs, training and inference',
        ('mmengine', 'mmcv', 'mmpretrain', 'mmdet', 'mmseg', 'cv2', 'pycocotools', 'matplotlib'),
    ),
    'export': ('ONNX files', ('onnx', 'onnxscript', 'onnxruntime')),
    'serve': ('the web demo', ('gradio',)),
    'timm': ('models in timm', ('timm',)),
    'hub': ('the Hugging Face Hub and safetensors', ('huggingface_hub', 'safetensors', 'transformers')),
}


def missing_modules(extra: str) -> list[str]:
    """Return the modules of an extra that are not installed. Imports none of them."""
    return [name for name in EXTRAS[extra][1] if find_spec(name) is None]


def install_command(*extras: str) -> str:
    """Return the command that installs extras."""
    return f"pip install '{DISTRIBUTION}[{','.join(extras)}]'"


def require_extras(purpose: str, *extras: str) -> None:
    """Raise a :class:`UserError` that names the missing modules and how to install them.

    Args:
        purpose: What needs them: a command, a function or a flag.
        extras: Keys of :data:`EXTRAS`.
    """
    missing = {extra: names for extra in extras if (names := missing_modules(extra))}
    if missing:
        modules = ', '.join(name for names in missing.values() for name in names)
        raise UserError(f'{purpose} needs {modules}: {install_command(*missing)}')
