_base_ = '../../../_base_/ablations/deit_digits.py'
model = dict(backbone=dict(mixers=dict(type='MHLA')))
