"""Imports of the fork server of :mod:`tests.warm`: what nearly every tool needs."""

import importlib

from inline.openmmlab.patches import apply_patches, pause_garbage_collection
from tests.warm import freeze_imported_objects, skip_slow_reports

with pause_garbage_collection():
    apply_patches()
    skip_slow_reports()
    for _name in ('mmpretrain.apis', 'mmdet.apis', 'mmseg.apis', 'inline.engine.launch', 'inline.apis'):
        importlib.import_module(_name)
freeze_imported_objects()
