# As published: DiagAttention in the first half of the blocks, NormAttention with LRPE in the second half.
_base_ = '../../../_base_/ablations/pvt_digits_short.py'
_norm = dict(type='TransNormer')
model = dict(backbone=dict(mixers=[dict(type='DiagAttention', block_size=16), _norm, _norm]))
