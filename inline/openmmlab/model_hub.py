"""Registration of our classifiers with mmpretrain's model hub, under the names of their configs.

``import inline`` calls :func:`register_on_import`, which imports nothing of OpenMMLab. Afterwards
``mmpretrain.list_models('*inline*')`` and ``mmpretrain.get_model(NAME)`` know the models. Detectors and
segmentors are not registered: mmpretrain cannot build them.
"""

import sys
import warnings
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

_HUB_MODULE = 'mmpretrain.apis.model'
# Folders of configs/ whose models mmpretrain can build; each has a metafile.
FOLDERS = ('inline_deit', 'inline_pvt', 'inline_swin', 'inline_cswin')


def register_on_import() -> None:
    """Register the classifiers as soon as mmpretrain's model hub is imported, or now if it is already."""
    module = sys.modules.get(_HUB_MODULE)
    if module is not None:
        register_classifiers(module)
    elif not any(isinstance(finder, _HubFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _HubFinder())


def register_classifiers(module: ModuleType) -> None:
    """Register the models of the metafiles in :data:`FOLDERS` with the ``ModelHub`` of `module`, once.

    A failure only causes a warning: mmpretrain works without these models.
    """
    from inline.openmmlab.patches import apply_patches
    from inline.utils.resources import CONFIGS, ROOT

    hub = module.ModelHub
    if getattr(hub, '_has_inline', False):
        return
    try:
        # mmpretrain.get_model imports all models of mmpretrain, which some installations need patches for.
        apply_patches()
        for folder in FOLDERS:
            hub.register_model_index(CONFIGS / folder / 'metafile.yml', config_prefix=ROOT)
        hub._has_inline = True
    except Exception as error:
        warnings.warn(f'models of inline are not registered with mmpretrain: {error}', stacklevel=2)


class _HubFinder(MetaPathFinder):
    """Finder that calls :func:`register_classifiers` after the import of mmpretrain's model hub."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        if fullname != _HUB_MODULE:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def execute_and_register(module: ModuleType) -> None:
                execute(module)
                register_classifiers(module)

            loader.exec_module = execute_and_register
        return spec
