# Twelve small steps on digits, with a checkpoint after every fourth.
_base_ = '../../../configs/digits_quick/inline-pvt-nano_digits.py'
custom_imports = {'imports': ['slurm_gate']}
custom_hooks = [{'type': 'Gate'}]
train_cfg = {'max_iters': 12, 'val_interval': 12}
train_dataloader = {'batch_size': 2}
default_hooks = {'logger': {'interval': 1}, 'checkpoint': {'interval': 4, 'max_keep_ckpts': 3}}
