_base_ = '../../../inline_swin/inline-swin-tiny_8xb128_in1k.py'
_mixer = dict(type='InLine', window_size=14)
model = dict(backbone=dict(mixers=[_mixer, _mixer, _mixer, dict(type='Softmax')]))
