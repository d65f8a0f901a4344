# The positional encodings have the size of the maps.
_base_ = '../../../_base_/ablations/pvt_digits_short.py'
model = dict(backbone=dict(mixers=[dict(type='PolaFormer', position_size=side) for side in (16, 8, 4)]))
