"""Configs adapted to launcher and hardware, environment of SLURM, errors shared by all ranks."""

from pathlib import Path

import pytest
import torch
from mmengine.config import Config

from inline.engine.distributed.setup import (
    adapt_to_hardware,
    join_process_group,
    raise_on_all_ranks,
    start_gloo,
)
from inline.engine.distributed.slurm import first_host, torchrun_environment
from inline.utils.errors import UserError
from tests.engine.distributed.ranks import launcher, run_ranks

SLURM = {
    'SLURM_PROCID': '3',
    'SLURM_NTASKS': '8',
    'SLURM_LOCALID': '1',
    'SLURM_STEP_NODELIST': '10.0.0.[7-8]',
    'SLURM_JOB_ID': '5',
    'SLURM_STEP_ID': '2',
    # The machine on which srun was started, which may be a login node.
    'SLURM_LAUNCH_NODE_IPADDR': '10.0.0.1',
}


def test_slurm_environment_is_converted_to_that_of_torchrun() -> None:
    expected = {
        'RANK': '3',
        'WORLD_SIZE': '8',
        'LOCAL_RANK': '1',
        'MASTER_ADDR': '10.0.0.7',
        'MASTER_PORT': '10082',
    }
    assert torchrun_environment(SLURM) == expected
    named = torchrun_environment({**SLURM, 'MASTER_ADDR': 'node7', 'MASTER_PORT': '1234'})
    assert (named['MASTER_ADDR'], named['MASTER_PORT']) == ('node7', '1234')


def test_jobs_and_steps_that_run_together_have_different_ports() -> None:
    ports = {
        torchrun_environment({**SLURM, 'SLURM_JOB_ID': str(job), 'SLURM_STEP_ID': str(step)})['MASTER_PORT']
        for job in range(41_000, 42_000)
        for step in range(16)
    }
    assert len(ports) == 16_000
    # Neither privileged nor handed out to clients by the kernel, and not the port of tools/dist_train.sh.
    assert 1024 < min(map(int, ports)) <= max(map(int, ports)) < 29500


@pytest.mark.parametrize(
    ('nodes', 'first'),
    [
        ('node7', 'node7'),
        ('node3,node5', 'node3'),
        ('gpu-a[07-09,12],login1', 'gpu-a07'),
        ('rack[2-3]node[10,12-14]', 'rack2node10'),
        ('a1-ib.site,a2-ib.site', 'a1-ib.site'),
    ],
)
def test_first_host_of_a_node_list(nodes: str, first: str) -> None:
    """The expected names are those of ``scontrol show hostnames``."""
    assert first_host(nodes) == first


def test_launcher_without_its_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ('RANK', 'WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT', 'SLURM_PROCID'):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match='--launcher pytorch but RANK is not set'):
        start_gloo('pytorch')
    with pytest.raises(UserError, match='--launcher slurm but SLURM_PROCID is not set'):
        join_process_group(Config({'launcher': 'slurm'}))
    with pytest.raises(
        UserError, match='--launcher mpi needs a GPU: without one, use none, pytorch or slurm'
    ):
        start_gloo('mpi')


def make_config() -> Config:
    heads = [
        {'norm_cfg': {'type': 'SyncBN', 'requires_grad': True}},
        {'norm_cfg': {'type': 'GN', 'num_groups': 8}},
    ]
    return Config({'launcher': 'none', 'model': {'norm_cfg': {'type': 'SyncBN'}, 'heads': heads}})


def test_sync_batch_norm_is_replaced_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('torch.cuda.is_available', lambda: False)
    cfg = make_config()
    adapt_to_hardware(cfg)
    assert cfg.model.norm_cfg.type == 'BN'
    assert [head.norm_cfg.type for head in cfg.model.heads] == ['BN', 'GN']
    assert cfg.model.heads[0].norm_cfg.requires_grad
    assert cfg.get('custom_hooks') is None


def test_with_a_gpu_norms_are_kept_and_buffers_are_synchronized(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr('torch.cuda.is_available', lambda: True)
    cfg = make_config()
    cfg.launcher = 'pytorch'
    adapt_to_hardware(cfg)
    assert cfg.model.norm_cfg.type == 'SyncBN'
    assert [hook.type for hook in cfg.custom_hooks] == ['SyncBuffersHook']
    assert cfg.get('model_wrapper_cfg') is None


def test_hook_is_not_added_twice_to_a_saved_config(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('torch.cuda.is_available', lambda: True)
    cfg = make_config()
    cfg.launcher = 'pytorch'
    adapt_to_hardware(cfg)
    adapt_to_hardware(cfg)
    assert [hook.type for hook in cfg.custom_hooks] == ['SyncBuffersHook']


def test_error_of_one_rank_is_raised_on_all_ranks(tmp_path: Path) -> None:
    """Otherwise rank 0 would wait in the next collective until the time limit of the process group."""

    def fail_on_rank_1(error: Exception) -> None:
        with raise_on_all_ranks():
            if torch.distributed.get_rank() == 1:
                raise error

    def work() -> list[str]:
        start_gloo(launcher())
        messages = []
        for error in (PermissionError('no access'), UserError('bad path')):
            with pytest.raises((UserError, PermissionError)) as caught:
                fail_on_rank_1(error)
            messages.append(f'{type(caught.value).__name__}: {caught.value}')
        with raise_on_all_ranks():
            pass
        return messages

    assert run_ranks(2, work, tmp_path / 'ranks') == [
        ['UserError: rank 1: PermissionError: no access', 'UserError: rank 1: bad path'],
        ['PermissionError: no access', 'UserError: bad path'],
    ]
