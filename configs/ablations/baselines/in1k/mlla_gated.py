# The mixer of the authors' block: a convolution before the attention of mlla.py and a gate after it.
_base_ = '../../../inline_deit/inline-deit-tiny_8xb512_in1k.py'
model = dict(backbone=dict(mixers=dict(type='MLLAGated')))
