"""Fully sharded training: every rank holds a shard of the weights, gradients and optimizer state.

A config enables it with ``runner_type = 'inline.ShardedRunner'``. Checkpoints hold full tensors, as in any
other run: they can be tested and resumed with one process or any number of them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mmengine.device import get_device
from mmengine.dist import broadcast, is_main_process
from mmengine.hooks import EMAHook
from mmengine.model import BaseModule, BaseTTAModel
from mmengine.optim import OptimWrapper
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from inline.models.block import Block
from inline.registry import RUNNERS
from inline.utils.errors import UserError


@RUNNERS.register_module()
class ShardedRunner(Runner):
    """MMEngine's runner with ``fully_shard`` instead of DistributedDataParallel.

    With one process it is MMEngine's runner.
    """

    def wrap_model(self, model_wrapper_cfg: dict[str, Any] | None, model: nn.Module) -> nn.Module:
        # A model for test-time augmentation is never trained, and does not call its own forward.
        if not self.distributed or isinstance(model, BaseTTAModel):
            return super().wrap_model(model_wrapper_cfg, model)
        # Initialize and load full weights, so that they equal those of a run without shards.
        if isinstance(model, BaseModule):
            model.init_weights()
        for tensor in model.state_dict().values():
            broadcast(tensor)
        return shard(model).to(get_device())

    def _init_model_weights(self) -> None:
        if not self.distributed:
            super()._init_model_weights()

    def build_optim_wrapper(self, optim_wrapper: Any) -> OptimWrapper:
        wrapper = super().build_optim_wrapper(optim_wrapper)
        if wrapper is not optim_wrapper:
            wrapper.optimizer.register_load_state_dict_pre_hook(_shard_optimizer_state)
        return wrapper

    def register_hook(self, hook: Any, priority: Any = None) -> None:
        super().register_hook(hook, priority)
        if self.distributed and any(isinstance(known, EMAHook) for known in self.hooks):
            raise UserError('ShardedRunner does not support EMAHook: remove it from the config')

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """Gather the shards of all ranks and write the checkpoint on rank 0. Takes MMEngine's arguments."""
        with full_state_dicts(self.model, self.optim_wrapper.optimizer):
            super().save_checkpoint(*args, **kwargs)


def shard(model: nn.Module) -> nn.Module:
    """Shard the weights of each block, and all other weights together.

    The weights of a block are gathered while it runs and freed afterwards.
    """
    for module in model.modules():
        if isinstance(module, Block):
            fully_shard(module)
    fully_shard(model)
    for module in model.modules():
        module.register_load_state_dict_pre_hook(_shard_weights)
    return model


@contextmanager
def full_state_dicts(model: nn.Module, optimizer: Optimizer) -> Iterator[None]:
    """Let ``state_dict`` of model and optimizer return full tensors on rank 0. All ranks must enter."""
    weights, state = _gather(model.state_dict()), _gather(optimizer.state_dict())
    if not is_main_process():
        yield
        return
    handles = [
        model.register_state_dict_post_hook(
            lambda _module, state_dict, _prefix, _metadata: state_dict.update(weights)
        ),
        optimizer.register_state_dict_post_hook(lambda _optimizer, _state_dict: state),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _gather(tree: Any) -> Any:
    """Gather the DTensors of a nested structure one by one; rank 0 keeps full tensors on the CPU."""

    def gather_leaf(leaf: Any) -> Any:
        if not isinstance(leaf, DTensor):
            return leaf
        tensor = leaf.full_tensor()
        return tensor.cpu() if is_main_process() else None

    return tree_map(gather_leaf, tree)


def _shard_weights(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Replace full weights with the shards of this rank before a module loads them."""
    for name, parameter in module.named_parameters(recurse=False):
        tensor = state_dict.get(prefix + name)
        if tensor is not None and tensor.shape == parameter.shape:
            state_dict[prefix + name] = _shard_like(tensor, parameter)


def _shard_optimizer_state(optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """Replace full tensors with the shards of this rank before an optimizer loads its state."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group['params']]
    indices = [index for group in state_dict['param_groups'] for index in group['params']]
    state = dict(state_dict['state'])
    for index, parameter in zip(indices, parameters, strict=True):
        if index in state:
            state[index] = {
                name: _shard_like(value, parameter)
                if isinstance(value, Tensor) and value.shape == parameter.shape
                else value
                for name, value in state[index].items()
            }
    return {**state_dict, 'state': state}


def _shard_like(tensor: Tensor, parameter: Tensor) -> Tensor:
    if not isinstance(parameter, DTensor) or isinstance(tensor, DTensor):
        return tensor
    # Every rank has read the full file and takes its shard without communication.
    return distribute_tensor(
        tensor.to(parameter.device), parameter.device_mesh, parameter.placements, src_data_rank=None
    )
