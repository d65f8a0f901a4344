"""The scope ``inline`` of MMEngine's registry.

MMEngine imports this module by itself when a config of any toolbox says ``type='inline.…'``.
"""

from mmengine.registry import DATASETS as MMENGINE_DATASETS
from mmengine.registry import HOOKS as MMENGINE_HOOKS
from mmengine.registry import LOOPS as MMENGINE_LOOPS
from mmengine.registry import MODELS as MMENGINE_MODELS
from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS as MMENGINE_OPTIM_WRAPPER_CONSTRUCTORS
from mmengine.registry import RUNNERS as MMENGINE_RUNNERS
from mmengine.registry import TRANSFORMS as MMENGINE_TRANSFORMS
from mmengine.registry import Registry, build_runner_from_cfg

DATASETS = Registry(
    'dataset', parent=MMENGINE_DATASETS, scope='inline', locations=['inline.datasets.imagenet']
)
HOOKS = Registry(
    'hook',
    parent=MMENGINE_HOOKS,
    scope='inline',
    locations=['inline.engine.bad_data', 'inline.engine.checkpoints'],
)
LOOPS = Registry('loop', parent=MMENGINE_LOOPS, scope='inline', locations=['inline.engine.exact_loops'])
MODELS = Registry('model', parent=MMENGINE_MODELS, scope='inline', locations=['inline.openmmlab'])
OPTIM_WRAPPER_CONSTRUCTORS = Registry(
    'optimizer wrapper constructor',
    parent=MMENGINE_OPTIM_WRAPPER_CONSTRUCTORS,
    scope='inline',
    locations=['inline.engine.layer_decay'],
)
RUNNERS = Registry(
    'runner',
    build_func=build_runner_from_cfg,
    parent=MMENGINE_RUNNERS,
    scope='inline',
    locations=['inline.engine.sharded'],
)
TRANSFORMS = Registry(
    'transform', parent=MMENGINE_TRANSFORMS, scope='inline', locations=['inline.datasets.reading']
)
