# As published: DiagAttention in the first half of the blocks, NormAttention with LRPE in the second half.
_base_ = '../../../_base_/ablations/pvt_digits_short.py'
# With 256 tokens in the first stage, the default block of 64 would be a quarter of the map.
_diag = dict(type='DiagAttention', block_size=16)
_norm = dict(type='TransNormer')
model = dict(backbone=dict(mixers=[_diag, [_diag, _norm], _norm]))
