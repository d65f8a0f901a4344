# No spatial reduction: softmax attends to as many keys as InLine does.
_base_ = 'inline-pvt-micro_tiny-imagenet.py'
model = dict(backbone=dict(mixers=dict(type='Softmax', sr_ratio=1)))
