"""MMEngine's registries in the scope ``inline``.

MMEngine imports this module when a config of any toolbox has a ``type='inline.…'``.
"""

from importlib import import_module
from typing import Any

from mmengine.registry import DATASETS as MMENGINE_DATASETS
from mmengine.registry import HOOKS as MMENGINE_HOOKS
from mmengine.registry import LOOPS as MMENGINE_LOOPS
from mmengine.registry import MODELS as MMENGINE_MODELS
from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS as MMENGINE_OPTIM_WRAPPER_CONSTRUCTORS
from mmengine.registry import RUNNERS as MMENGINE_RUNNERS
from mmengine.registry import TRANSFORMS as MMENGINE_TRANSFORMS
from mmengine.registry import Registry, build_runner_from_cfg

# Each of these modules imports a toolbox, and is imported only when a config names its component.
LAZY_MODULES = {
    'RetinaHead': 'inline.openmmlab.detection',
    'CrossEntropyLoss': 'inline.openmmlab.segmentation',
    'Distiller': 'inline.openmmlab.distillation',
    'FeatureLoss': 'inline.openmmlab.distillation',
    'LogitLoss': 'inline.openmmlab.distillation',
    'MixerLoss': 'inline.openmmlab.distillation',
    'StoredLogits': 'inline.openmmlab.distillation',
    'TinyImageNetBoxes': 'inline.datasets.tiny_imagenet_boxes',
}


class _LazyRegistry(Registry):
    """A registry that imports the modules of :data:`LAZY_MODULES` on demand."""

    def get(self, key: str) -> Any:
        name = key.removeprefix('inline.')
        if name in LAZY_MODULES:
            import_module(LAZY_MODULES[name])
        return super().get(key)


DATASETS = _LazyRegistry(
    'dataset',
    parent=MMENGINE_DATASETS,
    scope='inline',
    locations=[
        'inline.datasets.imagenet',
        'inline.datasets.tiny_imagenet',
        'inline.datasets.image_pairs',
    ],
)
HOOKS = Registry(
    'hook',
    parent=MMENGINE_HOOKS,
    scope='inline',
    locations=[
        'inline.engine.hooks.data_validation',
        'inline.engine.hooks.checkpoint',
        'inline.engine.hooks.fast_training',
        'inline.engine.hooks.nonfinite',
        'inline.engine.hooks.preemption',
        'inline.engine.hooks.summary',
    ],
)
LOOPS = Registry('loop', parent=MMENGINE_LOOPS, scope='inline', locations=['inline.engine.loops'])
MODELS = _LazyRegistry(
    'model', parent=MMENGINE_MODELS, scope='inline', locations=['inline.openmmlab.backbones']
)
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
    locations=['inline.engine.distributed.sharded'],
)
TRANSFORMS = Registry(
    'transform', parent=MMENGINE_TRANSFORMS, scope='inline', locations=['inline.datasets.loading']
)
