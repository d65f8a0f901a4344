# With 65 tokens, the default of 64 landmarks would almost be full attention.
_base_ = '../../../_base_/ablations/pvt_digits_short.py'
model = dict(backbone=dict(mixers=dict(type='Nystrom', num_landmarks=16)))
