# Its usual 64 landmarks would be all tokens of the second map.
_base_ = '../../../_base_/ablations/pvt_digits.py'
model = dict(backbone=dict(mixers=dict(type='Nystrom', num_landmarks=16)))
