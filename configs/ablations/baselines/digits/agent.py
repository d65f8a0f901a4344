# With 256 tokens in the first stage, the default of 49 agents would be a large share of them.
_base_ = '../../../_base_/ablations/pvt_digits_short.py'
model = dict(backbone=dict(mixers=dict(type='Agent', num_agents=16, bias_size=16)))
