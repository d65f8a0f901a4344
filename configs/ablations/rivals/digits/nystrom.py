# Of 65 tokens its usual 64 landmarks would be nearly all.
_base_ = '../../../_base_/ablations/deit_digits.py'
model = dict(backbone=dict(mixers=dict(type='Nystrom', num_landmarks=16)))
