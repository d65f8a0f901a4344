# The mixer of the authors' block: a convolution before the attention of mlla.py and a gate after it.
_base_ = '../../../_base_/ablations/pvt_digits_short.py'
model = dict(backbone=dict(mixers=dict(type='MLLAGated')))
