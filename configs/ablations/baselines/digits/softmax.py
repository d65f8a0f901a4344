# No spatial reduction: softmax attends to as many keys as the linear rows do.
_base_ = '../../../_base_/ablations/pvt_digits_short.py'
model = dict(backbone=dict(mixers=dict(type='Softmax', sr_ratio=1)))
