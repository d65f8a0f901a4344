"""Training with every process holding a share of the weights, their gradients and the optimizer's state.

A config switches it on with ``runner_type = 'inline.ShardedRunner'``. Checkpoints are whole, as those of any
other run: one process or another number of them can test them and go on from them.
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

from inline.errors import UserError
from inline.models.block import Block
from inline.registry import RUNNERS


@RUNNERS.register_module()
class ShardedRunner(Runner):
    """MMEngine's runner with torch's ``fully_shard`` in place of DistributedDataParallel.

    With one process it is MMEngine's runner.
    """

    def wrap_model(self, model_wrapper_cfg: dict[str, Any] | None, model: nn.Module) -> nn.Module:
        # A model that merges several versions of an image is only tested, and calls past its own forward.
        if not self.distributed or isinstance(model, BaseTTAModel):
            return super().wrap_model(model_wrapper_cfg, model)
        # Weights are drawn and read whole, so that they are those of a run without shares.
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
            wrapper.optimizer.register_load_state_dict_pre_hook(_share_state)
        return wrapper

    def register_hook(self, hook: Any, priority: Any = None) -> None:
        super().register_hook(hook, priority)
        if self.distributed and any(isinstance(known, EMAHook) for known in self.hooks):
            raise UserError(
                'ShardedRunner keeps no moving average of weights: remove the EMAHook of the config'
            )

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """MMEngine's arguments. All processes give their shares, the first one writes."""
        with whole(self.model, self.optim_wrapper.optimizer):
            super().save_checkpoint(*args, **kwargs)


def shard(model: nn.Module) -> nn.Module:
    """Leave every process its share of the weights, block by block; what is in no block goes as one.

    A block's weights are put together while it is at work and given up after it.
    """
    for module in model.modules():
        if isinstance(module, Block):
            fully_shard(module)
    fully_shard(model)
    for module in model.modules():
        module.register_load_state_dict_pre_hook(_share_weights)
    return model


@contextmanager
def whole(model: nn.Module, optimizer: Optimizer) -> Iterator[None]:
    """Let ``state_dict`` of both give whole tensors on the first process. All must come here together."""
    weights, state = _gather(model.state_dict()), _gather(optimizer.state_dict())
    if not is_main_process():
        yield
        return
    handles = [
        model.register_state_dict_post_hook(lambda _module, held, _prefix, _metadata: held.update(weights)),
        optimizer.register_state_dict_post_hook(lambda _optimizer, _held: state),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _gather(tree: Any) -> Any:
    """The shares in a tree put together tensor by tensor, kept on the first process, off the GPU."""

    def put_together(leaf: Any) -> Any:
        if not isinstance(leaf, DTensor):
            return leaf
        tensor = leaf.full_tensor()
        return tensor.cpu() if is_main_process() else None

    return tree_map(put_together, tree)


def _share_weights(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Before a module loads whole weights: leave of each this process's share."""
    for name, held in module.named_parameters(recurse=False):
        given = state_dict.get(prefix + name)
        if given is not None and given.shape == held.shape:
            state_dict[prefix + name] = _share(given, held)


def _share_state(optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """Before an optimizer loads a whole state: leave of each tensor this process's share."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group['params']]
    indices = [index for group in state_dict['param_groups'] for index in group['params']]
    state = dict(state_dict['state'])
    for index, parameter in zip(indices, parameters, strict=True):
        if index in state:
            state[index] = {
                name: _share(value, parameter)
                if isinstance(value, Tensor) and value.shape == parameter.shape
                else value
                for name, value in state[index].items()
            }
    return {**state_dict, 'state': state}


def _share(given: Tensor, held: Tensor) -> Tensor:
    if not isinstance(held, DTensor) or isinstance(given, DTensor):
        return given
    # Every process has read the whole file: each cuts out its share without a word to the others.
    return distribute_tensor(given.to(held.device), held.device_mesh, held.placements, src_data_rank=None)
