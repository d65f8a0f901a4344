# Runtime of segmentation: the defaults of mmseg, TensorBoard, and our hooks.
_base_ = 'mmseg::_base_/default_runtime.py'
vis_backends = [dict(type='LocalVisBackend'), dict(type='TensorboardVisBackend')]
visualizer = dict(vis_backends=vis_backends)
# mmseg defines its default hooks in its schedules, which are not used here.
default_hooks = dict(
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=50, log_metric_by_epoch=False),
    param_scheduler=dict(type='ParamSchedulerHook'),
    checkpoint=dict(type='inline.AtomicCheckpointHook', by_epoch=False, interval=4000),
    sampler_seed=dict(type='DistSamplerSeedHook'),
    data_validation=dict(type='inline.DataValidationHook'),
    nonfinite_loss=dict(type='inline.NonFiniteLossHook'),
    preemption=dict(type='inline.PreemptionHook'),
    summary=dict(type='inline.SummaryHook'),
    visualization=dict(type='SegVisualizationHook'),
)
