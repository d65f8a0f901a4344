# No spatial reduction: softmax attends to as many keys as the linear rows do.
_base_ = '../../../_base_/ablations/pvt_tiny_imagenet_10e.py'
model = dict(backbone=dict(mixers=dict(type='Softmax', sr_ratio=1)))
