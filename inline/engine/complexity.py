"""Parameters and multiply-adds of a model, part by part.

As MMEngine and fvcore count: one for each multiply-add of a matrix product or a convolution, five for
each number that a norm puts out. Attention is counted by the products that it really computes, so InLine
at its linear cost: through queries and keys, as papers count it, though it saves a few of these products
where tokens are many. Other element-wise work, and mmcv's own operators such as RoIAlign, count nothing.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from mmengine.config import Config
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS, init_default_scope
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from inline.engine.config import image_size
from inline.engine.launch import drop_pretrained
from inline.models.mixers import InLineMixer

NORM_COST = 5
_USUAL_SHAPES = {'mmdet': (800, 1280), 'mmseg': (512, 512)}


@dataclass(frozen=True)
class Cost:
    """What a part of a model costs."""

    part: str
    parameters: int
    multiply_adds: int


def count(model: nn.Module, run: Callable[[], Any]) -> list[Cost]:
    """The cost of each direct part of `model` while `run` runs it, and of the whole at the end."""
    counter = FlopCounterMode(display=False, custom_mapping=_FORMULAS)
    was_training = model.training
    model.eval()
    with torch.no_grad(), mock.patch.object(InLineMixer, 'tokens_per_channel', math.inf), counter:
        run()
    model.train(was_training)
    counts = counter.get_flop_counts()
    root = type(model).__name__
    costs = [
        _cost(name, part, _operators_below(f'{root}.{name}', counts)) for name, part in model.named_children()
    ]
    kept = [cost for cost in costs if cost.parameters or cost.multiply_adds]
    return [*kept, _cost('total', model, counts['Global'].values())]


def _operators_below(name: str, counts: dict[str, dict[Any, int]]) -> Iterator[int]:
    """What the module cost. One that was never called itself, as some heads, costs what its parts do."""
    inside = {key for key in counts if f'{key}.'.startswith(f'{name}.')}
    for key in inside:
        parents = key.split('.')
        if not any('.'.join(parents[:depth]) in inside for depth in range(1, len(parents))):
            yield from counts[key].values()


def usual_shape(cfg: Config) -> tuple[int, int]:
    """Height and width that papers report costs at; of a classifier those that it is made for."""
    return _USUAL_SHAPES.get(cfg.default_scope) or image_size(cfg)


def count_config(cfg: Config, shape: tuple[int, int]) -> list[Cost]:
    """The cost of a config's model for one image of (height, width)."""
    model, run = build_runnable(cfg, shape)
    return count(model, lambda: run(torch.zeros(1, 3, *shape)))


def build_runnable(cfg: Config, shape: tuple[int, int]) -> tuple[nn.Module, Callable[[torch.Tensor], Any]]:
    """A config's model without its weights, and what runs it on images of (height, width), to raw outputs."""
    init_default_scope(cfg.default_scope)
    drop_pretrained(cfg.model)
    cfg.model.pop('pretrained', None)
    model = MODELS.build(cfg.model)
    # A step that several GPUs do together cannot run here.
    model = revert_sync_batchnorm(model)
    if cfg.default_scope != 'mmdet':
        return model, lambda image: model(image, mode='tensor')
    from mmdet.structures import DetDataSample

    sample = DetDataSample(
        metainfo={
            'img_shape': shape,
            'ori_shape': shape,
            'pad_shape': shape,
            'batch_input_shape': shape,
            'scale_factor': (1.0, 1.0),
        }
    )
    return model, lambda image: model(image, [sample] * len(image), mode='tensor')


def _cost(name: str, part: nn.Module, flops: Iterable[int]) -> Cost:
    # torch counts multiplications and additions apart.
    return Cost(name, sum(p.numel() for p in part.parameters()), sum(flops) // 2)


def _norm_flops(shape: Sequence[int], *_: Any, **__: Any) -> int:
    return 2 * NORM_COST * math.prod(shape)


def _attention_flops(q: Sequence[int], k: Sequence[int], v: Sequence[int], *_: Any, **__: Any) -> int:
    """Softmax attention as one operator, of queries (B, heads, M, d), keys (…, N, d), values (…, N, e)."""
    return 2 * math.prod(q[:-1]) * k[-2] * (q[-1] + v[-1])


# By operator, what torch's counter does not know or does not count.
_FORMULAS = {
    torch.ops.aten.native_layer_norm: _norm_flops,
    torch.ops.aten.native_group_norm: _norm_flops,
    torch.ops.aten.native_batch_norm: _norm_flops,
    torch.ops.aten.cudnn_batch_norm: _norm_flops,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
}
