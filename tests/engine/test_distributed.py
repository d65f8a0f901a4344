import pytest
from mmengine.config import Config

from inline.engine.distributed import adapt_to_hardware, start_gloo, torchrun_environment
from inline.errors import UserError

SLURM = {
    'SLURM_PROCID': '3',
    'SLURM_NTASKS': '8',
    'SLURM_LOCALID': '1',
    'SLURM_LAUNCH_NODE_IPADDR': '10.0.0.1',
}


def test_slurm_is_told_to_torch_in_torchs_words() -> None:
    expected = {
        'RANK': '3',
        'WORLD_SIZE': '8',
        'LOCAL_RANK': '1',
        'MASTER_ADDR': '10.0.0.1',
        'MASTER_PORT': '29500',
    }
    assert torchrun_environment(SLURM) == expected
    named = torchrun_environment({**SLURM, 'MASTER_ADDR': 'node7', 'MASTER_PORT': '1234'})
    assert (named['MASTER_ADDR'], named['MASTER_PORT']) == ('node7', '1234')


def test_a_launcher_without_its_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ('RANK', 'WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT', 'SLURM_PROCID'):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match='--launcher pytorch but RANK is not set'):
        start_gloo('pytorch')
    with pytest.raises(UserError, match='--launcher slurm but SLURM_PROCID is not set'):
        start_gloo('slurm')
    with pytest.raises(UserError, match="launcher 'mpi' without a GPU: choose none, pytorch or slurm"):
        start_gloo('mpi')


def make_config() -> Config:
    heads = [
        {'norm_cfg': {'type': 'SyncBN', 'requires_grad': True}},
        {'norm_cfg': {'type': 'GN', 'num_groups': 8}},
    ]
    return Config({'launcher': 'none', 'model': {'norm_cfg': {'type': 'SyncBN'}, 'heads': heads}})


def test_synchronised_batch_norm_becomes_plain_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('torch.cuda.is_available', lambda: False)
    cfg = make_config()
    adapt_to_hardware(cfg)
    assert cfg.model.norm_cfg.type == 'BN'
    assert [head.norm_cfg.type for head in cfg.model.heads] == ['BN', 'GN']
    assert cfg.model.heads[0].norm_cfg.requires_grad
    assert cfg.get('custom_hooks') is None


def test_with_a_gpu_the_config_keeps_its_norms_and_statistics_are_synchronised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr('torch.cuda.is_available', lambda: True)
    cfg = make_config()
    cfg.launcher = 'pytorch'
    adapt_to_hardware(cfg)
    assert cfg.model.norm_cfg.type == 'SyncBN'
    assert [hook.type for hook in cfg.custom_hooks] == ['SyncBuffersHook']
    assert cfg.get('model_wrapper_cfg') is None
