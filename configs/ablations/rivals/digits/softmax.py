# A PVT would give it fewer keys than queries.
_base_ = '../../../_base_/ablations/pvt_digits.py'
model = dict(backbone=dict(mixers=dict(type='Softmax', sr_ratio=1)))
