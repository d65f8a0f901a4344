# With 256 tokens in the first stage, the default of 49 agents would be a large share of them. The bias tables
# have the size of the maps.
_base_ = '../../../_base_/ablations/pvt_digits_short.py'
model = dict(backbone=dict(mixers=[dict(type='Agent', num_agents=16, bias_size=side) for side in (16, 8, 4)]))
