"""Loading a state dict into a module, with a report of what matched."""

import logging
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from inline.checkpoints.layouts import conversion_hint
from inline.models.backbones.common import Backbone
from inline.models.layers import PositionEmbedding, RelativePositionBias
from inline.utils.errors import UserError, printable

StateDict = Mapping[str, Tensor]

# A block counts as matching if at least this share of its values matches.
_SAME_BLOCK = 0.5
_BLOCK = re.compile(r'(?:.*\.)?blocks\.\d+(?=\.)')
# A tensor without its stage and block, up to two modules: mixer.qkv of stages.0.blocks.1.mixer.qkv.weight.
_LAYER = re.compile(r'(?:backbone\.)?(?:stages\.\d+\.)?(?:blocks\.\d+\.)?(\w+(?:\.[a-z]\w*(?=\.))?).*')
_SHOWN = 3
_MAX_NAME = 200
_logger = logging.getLogger('inline')


@dataclass(frozen=True)
class LoadReport:
    """How a state dict matches a module, as names of tensors.

    Args:
        matched: In both, with the same shape or a position table that can be resized.
        missing: In the module only.
        unexpected: In the state dict only.
        mismatched: In both, with different shapes.
        unused: In the state dict only, but of stages or blocks that the module deliberately does not build.
    """

    matched: tuple[str, ...]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    mismatched: tuple[str, ...]
    unused: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether every tensor of the module has a match."""
        return not (self.missing or self.mismatched)

    @property
    def exact(self) -> bool:
        """Whether the report is complete and the state dict holds nothing unexpected."""
        return self.complete and not self.unexpected

    def describe(self) -> str:
        """Return the counts and the first names in one line."""
        total = len(self.matched) + len(self.missing) + len(self.mismatched)
        clauses = [f'{len(self.matched)} of {total} tensors match']
        for names, what in (
            (self.missing, 'missing from the file'),
            (self.mismatched, 'with a different shape'),
            (self.unexpected, 'not in the model'),
            (self.unused, 'of stages that are not built'),
        ):
            if names:
                clauses.append(f'{len(names)} {what}: {shorten(names)}')
        return '; '.join(clauses)

    def describe_layers(self) -> str:
        """Return in one line which layers were loaded, with the number of tensors, and which were not."""
        groups = {
            'kept': self.matched,
            'initialised': (*self.missing, *self.mismatched),
            'left out': self.unexpected,
        }
        clauses = []
        for what, names in groups.items():
            layers = Counter(_LAYER.sub(r'\1', name) for name in names)
            listed = ', '.join(f'{printable(layer[:_MAX_NAME])} ({count})' for layer, count in layers.items())
            clauses += [f'{what}: {listed}'] if listed else []
        return '; '.join(clauses)


def compare_state_dict(model: nn.Module, state_dict: StateDict) -> LoadReport:
    """Report which tensors of a module have a match in `state_dict`, without loading anything."""
    own = model.state_dict()
    resizable = {
        f'{name}.weight'
        for name, module in model.named_modules()
        if isinstance(module, PositionEmbedding | RelativePositionBias)
    }
    unbuilt = tuple(_unbuilt_prefixes(model))

    def matches(name: str) -> bool:
        tensor, expected = state_dict[name], own[name]
        compared = slice(0, 2) if name in resizable and tensor.dim() == expected.dim() else slice(None)
        return tensor.shape[compared] == expected.shape[compared]

    extra = [name for name in state_dict if name not in own]
    return LoadReport(
        matched=tuple(name for name in own if name in state_dict and matches(name)),
        missing=tuple(name for name in own if name not in state_dict),
        unexpected=tuple(name for name in extra if not name.startswith(unbuilt)),
        mismatched=tuple(name for name in own if name in state_dict and not matches(name)),
        unused=tuple(name for name in extra if name.startswith(unbuilt)),
    )


def load_partial_state_dict(model: nn.Module, state_dict: StateDict, source: str) -> LoadReport:
    """Load the tensors that match and report the rest.

    Args:
        model: Its other tensors keep their values. Position tables are resized.
        state_dict: Weights under the names of `model`.
        source: Where they come from, for messages.

    Raises:
        UserError: If nothing matches or some blocks differ (a different architecture), or if weights are
            not finite. The model is then unchanged.
    """
    report = compare_state_dict(model, state_dict)
    own = model.state_dict()
    different = [
        *_different_blocks(own, report.matched, other=state_dict),
        *_different_blocks(state_dict, (*report.matched, *report.unused), other=own),
    ]
    if different or not report.matched:
        blocks = f'{shorten(dict.fromkeys(different))} differ; ' if different else ''
        raise UserError(
            f'checkpoint {source!r} has a different architecture than {type(model).__name__}: '
            f'{blocks}{report.describe()}{_conversion_hint(model, state_dict)}'
        )
    _check_finite(model, state_dict, report.matched, source)
    # Unexpected names stay in: modules of the toolboxes rename those of their earlier versions.
    model.load_state_dict(subset(state_dict, lambda name: name not in report.mismatched), strict=False)
    return report


def load_complete_state_dict(model: nn.Module, state_dict: StateDict, source: str) -> LoadReport:
    """Load a state dict that must have a match for every tensor of the module; warn about other tensors."""
    check_complete(compare_state_dict(model, state_dict), source, _conversion_hint(model, state_dict))
    report = load_partial_state_dict(model, state_dict, source)
    if report.unexpected:
        _logger.warning('checkpoint %r: %s', source, report.describe())
    return report


def find_nonfinite(state_dict: Mapping[str, Any]) -> str | None:
    """Return the name of the first tensor that contains NaN or infinity, None if all are finite."""
    for name, tensor in state_dict.items():
        # One-byte types do not support it.
        numbers = tensor.float() if tensor.dtype.itemsize == 1 else tensor
        if tensor.is_floating_point() and not numbers.isfinite().all():
            return name
    return None


def check_complete(report: LoadReport, source: str, hint: str = '') -> None:
    """Raise a :class:`UserError` if some tensors of the model would keep their initial values."""
    if not report.complete:
        raise UserError(f'checkpoint {source!r} does not match the model: {report.describe()}{hint}')


def subset(state_dict: StateDict, keep: Callable[[str], bool], prefix: str = '') -> StateDict:
    """Filter by name and strip `prefix`, keeping torch's `_metadata`, which holds versions of modules."""
    kept = OrderedDict(
        (str(name).removeprefix(prefix), value) for name, value in state_dict.items() if keep(name)
    )
    metadata = getattr(state_dict, '_metadata', None)
    if isinstance(metadata, Mapping):
        kept._metadata = {  # type: ignore[attr-defined]
            module[len(prefix) :]: {'version': value['version']}
            for module, value in metadata.items()
            if isinstance(module, str) and (module == prefix[:-1] or module.startswith(prefix))
            # Modules compare the version as a number.
            if isinstance(value, Mapping) and isinstance(value.get('version'), int)
        }
    return kept


def select_submodule(state_dict: StateDict, prefix: str) -> StateDict:
    """Return the tensors whose names start with `prefix`, without it; all of them if there are none."""
    selected = subset(state_dict, lambda name: name.startswith(prefix), prefix)
    return selected or state_dict


def strip_prefix(state_dict: StateDict, prefix: str) -> StateDict:
    """Return all tensors, without `prefix` at the start of their names."""
    has_prefix = any(name.startswith(prefix) for name in state_dict)
    return subset(state_dict, lambda _: True, prefix) if has_prefix else state_dict


def shorten(names: Collection[str]) -> str:
    """Join the first names; count the others."""
    shown = ', '.join(printable(name[:_MAX_NAME]) for name in list(names)[:_SHOWN])
    return shown if len(names) <= _SHOWN else f'{shown} and {len(names) - _SHOWN} more'


def _conversion_hint(model: nn.Module, state_dict: StateDict) -> str:
    """Return how to load weights of another project into a model of ours; '' for other models."""
    is_ours = any(isinstance(module, Backbone) for module in model.modules())
    return conversion_hint(state_dict) if is_ours else ''


def _check_finite(model: nn.Module, state_dict: StateDict, names: Collection[str], source: str) -> None:
    """Raise a :class:`UserError` for a parameter that is not finite, or a buffer with NaN.

    Every output of such a model would be NaN. Buffers may hold infinities, such as a mask.
    """
    buffers = {name for name, _ in model.named_buffers()}
    parameters = {name: state_dict[name] for name in names if name not in buffers}
    with_nan = (name for name in names if name in buffers and state_dict[name].isnan().any())
    found = find_nonfinite(parameters) or next(with_nan, None)
    if found is not None:
        raise UserError(
            f'checkpoint {source!r}: tensor {found!r} contains NaN or infinity: '
            'the training run has diverged, use an earlier checkpoint'
        )


def _unbuilt_prefixes(model: nn.Module) -> Iterator[str]:
    """Yield the prefixes of the weights of stages that a backbone with few `out_indices` does not build."""
    for name, module in model.named_modules():
        prefixes = getattr(module, 'unused_state_dict_prefixes', None)
        if prefixes is not None:
            yield from (f'{name}.{prefix}' if name else prefix for prefix in prefixes())


def _different_blocks(
    tensors: Mapping[str, Any], matched: Collection[str], other: Collection[str]
) -> list[str]:
    """Return the names of the blocks in which too few values match.

    Tensors of a mixer that the other side does not have are not counted: attention mechanisms differ in them,
    such as in the spatial reduction of PVT, which is larger than the projections.
    """
    names, total, found = set(matched), Counter[str](), Counter[str]()
    for name, tensor in tensors.items():
        block = _BLOCK.match(name)
        if block and (name in other or not name.startswith(f'{block[0]}.mixer.')):
            total[block[0]] += tensor.numel()
            found[block[0]] += tensor.numel() if name in names else 0
    return [block for block in total if found[block] < _SAME_BLOCK * total[block]]
