# Runtime of classification: the defaults of mmpretrain, TensorBoard, and our hooks.
_base_ = 'mmpretrain::_base_/default_runtime.py'
vis_backends = [dict(type='LocalVisBackend'), dict(type='TensorboardVisBackend')]
visualizer = dict(vis_backends=vis_backends)
default_hooks = dict(
    checkpoint=dict(type='inline.AtomicCheckpointHook'),
    data_validation=dict(type='inline.DataValidationHook'),
    nonfinite_loss=dict(type='inline.NonFiniteLossHook'),
    preemption=dict(type='inline.PreemptionHook'),
    summary=dict(type='inline.SummaryHook'),
)
