"""Parameters and multiply-adds of a model and its modules.

Counts follow MMEngine and fvcore: one per multiply-add of a matrix product or convolution, five per output
element of a norm. A Fourier transform of n real numbers counts 1.25 · n · log₂ n multiply-adds, a quarter of
the usual estimate of 5 · n · log₂ n operations on complex numbers. Attention counts the products that it
computes, so the cost of InLine is linear. InLine is counted with explicit queries and keys, as in papers; its
fast path saves some of these products for long sequences. Other element-wise operations, such as the RMS norm
of queries and keys in MHLA, and mmcv operators such as RoIAlign are not counted.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from mmengine.config import Config
from mmengine.registry import init_default_scope
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from inline.engine.config import image_size, use_student
from inline.engine.launch import build_untrained_model
from inline.models.mixers import flop_counting

NORM_COST = 5
_DEFAULT_SHAPES = {'mmdet': (800, 1280), 'mmseg': (512, 512)}


@dataclass(frozen=True)
class ModuleCost:
    """Cost of a module, or of the whole model under the name 'total'."""

    name: str
    parameters: int
    multiply_adds: int


def count_flops(model: nn.Module, run: Callable[[], Any]) -> list[ModuleCost]:
    """Return the cost of each child module of `model` during `run()`, and of the whole model at the end."""
    counter = FlopCounterMode(display=False, custom_mapping=_FORMULAS)
    was_training = model.training
    model.eval()
    with torch.no_grad(), flop_counting(model), counter:
        run()
    model.train(was_training)
    counts = counter.get_flop_counts()
    root = type(model).__name__
    costs = [
        _make_cost(name, module, _flops_below(f'{root}.{name}', counts))
        for name, module in model.named_children()
    ]
    costs = [cost for cost in costs if cost.parameters or cost.multiply_adds]
    return [*costs, _make_cost('total', model, counts['Global'].values())]


def count_config_flops(cfg: Config, shape: tuple[int, int]) -> list[ModuleCost]:
    """Return the cost of a config's model for one image of (height, width)."""
    model, run = build_runnable(cfg, shape)
    return count_flops(model, lambda: run(torch.zeros(1, 3, *shape)))


def default_shape(cfg: Config) -> tuple[int, int]:
    """Return the height and width at which papers report costs: for a classifier, its image size."""
    return _DEFAULT_SHAPES.get(cfg.default_scope) or image_size(cfg)


def build_runnable(cfg: Config, shape: tuple[int, int]) -> tuple[nn.Module, Callable[[Tensor], Any]]:
    """Build a config's model with random weights.

    Returns:
        The model, and a function that runs it on images (B, 3, H, W) of `shape` and returns raw outputs.
    """
    init_default_scope(cfg.default_scope)
    use_student(cfg)
    model = build_untrained_model(cfg)
    if cfg.default_scope != 'mmdet':
        return model, lambda image: model(image, mode='tensor')
    from mmdet.structures import DetDataSample

    shapes = dict.fromkeys(('img_shape', 'ori_shape', 'pad_shape', 'batch_input_shape'), shape)
    sample = DetDataSample(metainfo={**shapes, 'scale_factor': (1.0, 1.0)})
    return model, lambda image: model(image, [sample] * len(image), mode='tensor')


def _flops_below(name: str, counts: dict[str, dict[Any, int]]) -> Iterator[int]:
    """Yield the FLOPs of a module, or of its children if it is never called itself, like some heads."""
    inside = {key for key in counts if f'{key}.'.startswith(f'{name}.')}
    for key in inside:
        parents = key.split('.')
        if not any('.'.join(parents[:depth]) in inside for depth in range(1, len(parents))):
            yield from counts[key].values()


def _make_cost(name: str, module: nn.Module, flops: Iterable[int]) -> ModuleCost:
    # torch counts multiplications and additions separately.
    return ModuleCost(name, sum(p.numel() for p in module.parameters()), sum(flops) // 2)


def _norm_flops(shape: Sequence[int], *_: Any, **__: Any) -> int:
    return 2 * NORM_COST * math.prod(shape)


def _attention_flops(q: Sequence[int], k: Sequence[int], v: Sequence[int], *_: Any, **__: Any) -> int:
    """Return the FLOPs of fused attention with shapes q (B, heads, M, d), k (…, N, d), v (…, N, e)."""
    return 2 * math.prod(q[:-1]) * k[-2] * (q[-1] + v[-1])


def _real_fft_flops(shape: Sequence[int], dims: Sequence[int]) -> int:
    """Return the FLOPs of the Fourier transforms of real numbers of ``shape`` over some of its axes."""
    points = math.prod(shape[dim] for dim in dims)
    return round(2.5 * math.prod(shape) * math.log2(points))


def _forward_fft_flops(real: Sequence[int], dims: Sequence[int], *_: Any, **__: Any) -> int:
    return _real_fft_flops(real, dims)


def _inverse_fft_flops(
    _spectrum: Sequence[int], dims: Sequence[int], *_: Any, out_shape: Sequence[int], **__: Any
) -> int:
    return _real_fft_flops(out_shape, dims)


# Operators that torch's counter does not know or does not count.
_FORMULAS = {
    torch.ops.aten.native_layer_norm: _norm_flops,
    torch.ops.aten.native_group_norm: _norm_flops,
    torch.ops.aten.native_batch_norm: _norm_flops,
    torch.ops.aten.cudnn_batch_norm: _norm_flops,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
    torch.ops.aten._fft_r2c: _forward_fft_flops,
    torch.ops.aten._fft_c2r: _inverse_fft_flops,
}
