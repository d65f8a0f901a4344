"""What all families share: the ``arch`` argument, argument checks, weight initialisation, unused weights."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, NamedTuple, TypeVar, get_type_hints

import torch.fx
from torch import Tensor, nn

from inline.models.layers import ClassToken, PositionEmbedding, RelativePositionBias
from inline.ops.symint import statically_true
from inline.utils.arguments import check_choice, check_names, check_type, format_value
from inline.utils.errors import TooSmallError, UserError

MIN_SIZE = 32
# Sanity limits: larger values are almost certainly typos and would run out of memory.
MAX_IMAGE = 2**14
MAX_DEPTH = 1000
MAX_MLP_RATIO = 64

A = TypeVar('A')


class Backbone(nn.Module):
    """Base class: accepts the weights of a full model if only its first stages or blocks are built."""

    def __init__(self) -> None:
        super().__init__()
        self.register_load_state_dict_pre_hook(_drop_unused_weights)

    def unused_state_dict_prefixes(self) -> tuple[str, ...]:
        """Return prefixes of state dict keys that a full model has and this one does not build.

        ``load_state_dict`` ignores such keys.
        """
        return ()

    def forward_intermediates(
        self, x: Tensor, indices: Collection[int], norm: bool = False, stop_early: bool = False
    ) -> tuple[Tensor, list['Intermediate']]:
        """Return the final features as :meth:`forward_features` does, and those of stages (DeiT: blocks).

        Args:
            x: Images (B, C, H, W).
            indices: Stages or blocks, from 0.
            norm: Whether to apply output norms to them.
            stop_early: Do not compute what follows the last of `indices`; the final features are then its.
        """
        raise NotImplementedError

    def forward_features(self, x: Tensor) -> Tensor:
        """Return the normalised features of the last stage or block: a map, or tokens for a DeiT."""
        return self.forward_intermediates(x, ())[0]


class Intermediate(NamedTuple):
    """Features of a stage or block: a map (B, C, h, w), and tokens before it (B, P, C), if there are any."""

    feature_map: Tensor
    prefix: Tensor | None = None


def _drop_unused_weights(module: nn.Module, state_dict: dict[str, Tensor], prefix: str, *_: Any) -> None:
    assert isinstance(module, Backbone)
    unused = tuple(prefix + name for name in module.unused_state_dict_prefixes())
    for key in [key for key in state_dict if key.startswith(unused)]:
        del state_dict[key]


def resolve_arch(arch: str | Mapping[str, Any], table: Mapping[str, A], arch_type: type[A]) -> A:
    """Return the family's arch dataclass, from a name in ``table`` or from a dict of its fields."""
    if isinstance(arch, str):
        check_choice('unknown arch', arch, table, ', or give a dict')
        return table[arch]
    known = fields(arch_type)  # type: ignore[arg-type]  # A is a dataclass
    names = [field.name for field in known]
    missing = [field.name for field in known if field.default is MISSING and field.name not in arch]
    check_names(arch, names, 'key', 'arch')
    if missing:
        raise UserError(
            f'arch {format_value(dict(arch))} lacks {", ".join(missing)}: it takes {", ".join(names)}'
        )
    hints = get_type_hints(arch_type)
    for name, value in arch.items():
        check_type(name, value, hints[name], 'arch')
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in arch.items()}
    return arch_type(**values)


def resolve_img_size(img_size: int | Sequence[int]) -> tuple[int, int]:
    """Return ``img_size`` as (H, W)."""
    size = (img_size, img_size) if isinstance(img_size, int) else tuple(img_size)
    if len(size) != 2 or min(size) < MIN_SIZE or max(size) > MAX_IMAGE:
        raise UserError(
            f'img_size {img_size}: must be one size or (height, width), each from {MIN_SIZE} to {MAX_IMAGE}'
        )
    return size[0], size[1]


def check_image_size(x: Tensor, stride: int) -> None:
    """Raise if images (B, C, H, W) are smaller than :data:`MIN_SIZE`; stride is that of the last map."""
    if isinstance(x, torch.fx.Proxy):
        # torch.fx.symbolic_trace knows no sizes, and a branch on them would end it.
        return
    height, width = x.shape[-2:]
    if torch.compiler.is_compiling() and not torch.compiler.is_exporting():
        # Guards: torch.compile then knows that every map has several rows and columns, and traces again for
        # images whose last map may have a single one.
        smallest = [side for side in (height, width) if side <= stride or side < MIN_SIZE]
        too_small = any(side < MIN_SIZE for side in smallest)
    else:
        too_small = statically_true(height < MIN_SIZE) or statically_true(width < MIN_SIZE)
    if too_small:
        raise TooSmallError(f'image of {height}×{width} pixels: each side must be at least {MIN_SIZE}')


def resolve_out_indices(out_indices: Sequence[int], count: int, what: str) -> tuple[int, ...]:
    """Return the indices with negative ones counted from the end; `what` is stages or blocks."""
    resolved = [i % count for i in out_indices if -count <= i < count]
    if not out_indices or len(resolved) < len(out_indices) or resolved != sorted(set(resolved)):
        raise UserError(
            f'out_indices {tuple(out_indices)}: must be increasing {what} out of {-count}..{count - 1}'
        )
    return tuple(resolved)


def check_mlp_ratio(ratio: float, dim: int) -> None:
    """Raise if the hidden layer of an MLP would have no channel or too many."""
    if not 1 / dim <= ratio <= MAX_MLP_RATIO:
        raise UserError(
            f'mlp_ratio {ratio}: must be at most {MAX_MLP_RATIO}, and leave at least one of {dim} channels'
        )


def init_weights(module: nn.Module) -> None:
    """Initialise linear layers and position tables with a truncated normal; others keep torch's default."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, ClassToken | PositionEmbedding | RelativePositionBias):
        for parameter in module.parameters():
            nn.init.trunc_normal_(parameter, std=0.02)
