# As published: DiagAttention in the first half of the blocks, NormAttention with LRPE in the second half.
_base_ = '../../../_base_/ablations/pvt_tiny_imagenet_6e.py'
_diag, _norm = dict(type='DiagAttention', block_size=16), dict(type='TransNormer')
model = dict(backbone=dict(mixers=[_diag, _diag, _norm, _norm]))
