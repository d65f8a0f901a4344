# With 64 tokens, the default of 49 agents would almost be full attention.
_base_ = '../../../_base_/ablations/deit_digits.py'
model = dict(backbone=dict(mixers=dict(type='Agent', num_agents=16, bias_size=8)))
