"""What the server of :mod:`tests.warm` imports before it forks: what nearly every tool needs."""

import importlib

from inline.compat import prepare
from tests.warm import spare_time

prepare()
spare_time()
for _name in ('mmpretrain.apis', 'mmdet.apis', 'mmseg.apis', 'inline.engine.launch', 'inline.inference'):
    importlib.import_module(_name)
