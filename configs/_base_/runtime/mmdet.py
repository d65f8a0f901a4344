_base_ = 'mmdet::_base_/default_runtime.py'
vis_backends = [dict(type='LocalVisBackend'), dict(type='TensorboardVisBackend')]
visualizer = dict(vis_backends=vis_backends)
default_hooks = dict(checkpoint=dict(max_keep_ckpts=3))
