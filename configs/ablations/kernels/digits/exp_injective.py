_base_ = '../../../_base_/ablations/swin_digits.py'
_mixer = dict(type='InLine', kernel='exp', residual=False)
model = dict(backbone=dict(mixers=[_mixer, _mixer, _mixer, dict(type='Softmax')]))
