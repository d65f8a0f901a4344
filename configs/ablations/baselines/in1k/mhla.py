_base_ = '../../../inline_deit/inline-deit-tiny_8xb512_in1k.py'
model = dict(backbone=dict(mixers=dict(type='MHLA')))
