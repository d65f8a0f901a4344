_base_ = '../../../_base_/ablations/swin_digits.py'
_mixer = dict(type='InLine', window_size=2)
model = dict(backbone=dict(mixers=[_mixer, _mixer, _mixer, dict(type='Softmax')]))
