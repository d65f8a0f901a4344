"""Training in several processes where there is no GPU: MMEngine's own set-up asks for CUDA."""

import os
from typing import Any

import torch
import torch.distributed as dist
from mmengine.config import Config, ConfigDict

from inline.engine import gathering
from inline.engine.config import walk_dicts
from inline.errors import UserError

DEFAULT_PORT = '29500'


def adapt_to_hardware(cfg: Config) -> None:
    """Change what only runs on a GPU, and start gloo if there are several processes and no GPU."""
    if cfg.launcher != 'none':
        gathering.install()
        # BatchNorm's statistics differ by rank and only rank 0's are saved: make them equal first, so
        # that testing the saved checkpoint gives what validation gave.
        cfg.custom_hooks = [*(cfg.get('custom_hooks') or []), ConfigDict(type='SyncBuffersHook')]
    if torch.cuda.is_available():
        return
    _replace_sync_bn(cfg._cfg_dict)
    if cfg.launcher != 'none':
        start_gloo(cfg.launcher)
        wrapper = cfg.get('model_wrapper_cfg') or ConfigDict(type='MMDistributedDataParallel')
        cfg.model_wrapper_cfg = ConfigDict(wrapper, device_ids=None)


def start_gloo(launcher: str) -> None:
    """Join the process group that torchrun or SLURM describes in the environment."""
    if launcher == 'slurm':
        os.environ.update(torchrun_environment(os.environ))
    elif launcher != 'pytorch':
        raise UserError(f'launcher {launcher!r} without a GPU: choose none, pytorch or slurm')
    missing = [
        name for name in ('RANK', 'WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT') if name not in os.environ
    ]
    if missing:
        raise UserError(
            f'--launcher {launcher} but {missing[0]} is not set: start with tools/dist_train.sh or torchrun'
        )
    dist.init_process_group('gloo')


def torchrun_environment(slurm: Any) -> dict[str, str]:
    """The variables torchrun would set, from those SLURM set for this task."""
    try:
        return {
            'RANK': slurm['SLURM_PROCID'],
            'WORLD_SIZE': slurm['SLURM_NTASKS'],
            'LOCAL_RANK': slurm['SLURM_LOCALID'],
            'MASTER_ADDR': slurm.get('MASTER_ADDR') or slurm['SLURM_LAUNCH_NODE_IPADDR'],
            'MASTER_PORT': slurm.get('MASTER_PORT', DEFAULT_PORT),
        }
    except KeyError as error:
        raise UserError(
            f'--launcher slurm but {error.args[0]} is not set: start with tools/slurm_train.sh or srun'
        ) from error


def _replace_sync_bn(node: Any) -> None:
    """SyncBN → BN throughout a config: synchronised statistics exist on GPUs only."""
    for _, part in walk_dicts(node):
        if part.get('type') in ('SyncBN', 'MMSyncBN', 'SyncBatchNorm'):
            part['type'] = 'BN'
