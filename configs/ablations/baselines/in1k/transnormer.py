# As published: DiagAttention in the first half of the blocks, NormAttention with LRPE in the second half.
_base_ = '../../../inline_deit/inline-deit-tiny_8xb512_in1k.py'
model = dict(backbone=dict(mixers=[dict(type='DiagAttention')] * 6 + [dict(type='TransNormer')] * 6))
