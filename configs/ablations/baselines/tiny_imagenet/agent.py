# As on digits: 16 agents, and bias tables of the size of the maps, which at 32 pixels have a side of 8 to 1.
_base_ = '../../../_base_/ablations/pvt_tiny_imagenet_6e.py'
model = dict(
    backbone=dict(mixers=[dict(type='Agent', num_agents=16, bias_size=side) for side in (8, 4, 2, 1)])
)
