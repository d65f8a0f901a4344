"""Random mutations of small configs of every family with every mixer."""

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from inline.models.mixers import MIXERS
from inline.utils.arguments import parameters_of

Path = tuple[str | int, ...]

PYRAMID = {
    'embed_dims': [8, 16, 16, 24],
    'depths': [1, 2, 1, 1],
    'num_heads': [2, 4, 2, 6],
    'mlp_ratios': [2, 2, 1.5, 1],
}
# Each option is written out, so that each can be mutated.
FAMILIES: dict[str, dict[str, Any]] = {
    'InLineDeiT': {
        'arch': {
            'embed_dims': 16,
            'depth': 2,
            'num_heads': 2,
            'img_size': 32,
            'patch_size': 8,
            'mlp_ratio': 2,
        },
        'out_indices': [0, -1],
        'out_type': 'featmap',
    },
    'InLinePVT': {
        'arch': PYRAMID,
        'img_size': 32,
        'out_indices': [0, 2, 3],
        'absolute_position': True,
        'out_norm': False,
    },
    'InLineSwin': {
        'arch': {**PYRAMID, 'inline_depths': [1, 1, 0, 0]},
        'img_size': [32, 48],
        'out_indices': [1, 3],
        'out_norm': True,
    },
    'InLineCSwin': {
        'arch': {**PYRAMID, 'inline_depths': [1, 2, 0, 0]},
        'img_size': 64,
        'out_indices': [3],
        'out_norm': True,
    },
}
SHARED = {
    'in_channels': 3,
    'drop_path_rate': 0.1,
    'with_cp': False,
    'frozen_stages': -1,
    'autocast': None,
    'init_cfg': None,
}
GLOBAL_MIXERS: tuple[dict[str, Any], ...] = (
    {'type': 'InLine', 'kernel': 'relu', 'injective': True, 'residual': True, 'mean_before_norm': False},
    {'type': 'InLine', 'qkv_bias': False, 'lepe': True, 'window_size': None},
    {'type': 'Softmax', 'sr_ratio': 1, 'relative_position': False, 'window_size': None, 'split_size': None},
    {'type': 'Linear', 'kernel': 'affine_relu', 'lepe': False},
    {'type': 'CosFormer', 'qkv_bias': True},
    {'type': 'Efficient', 'shift': False},
    {'type': 'FLatten', 'power': 3, 'conv_size': 5},
    {'type': 'MLLA', 'lepe': True, 'wrap': True},
    {'type': 'Nystrom', 'num_landmarks': 4, 'iterations': 3, 'conv_size': None, 'inverse_init': 'image'},
    {'type': 'TransNormer', 'variant': 'T2', 'lrpe': True},
    {'type': 'DiagAttention', 'block_size': 8},
    {'type': 'MLLAGated', 'qkv_bias': False},
    {'type': 'Agent', 'num_agents': 4, 'bias_size': 3, 'sr_ratio': 1},
    {'type': 'PolaFormer', 'position_size': 3, 'conv_size': 3, 'gate': True},
    {'type': 'RALA', 'conv_size': 3, 'gate': False},
    {'type': 'MALA', 'conv_size': None},
    {'type': 'MHLA', 'grid': 2, 'transform': 'cos'},
    {'type': 'Circulant', 'gate': True},
)
WINDOW_MIXERS: tuple[dict[str, Any], ...] = (
    {'type': 'InLine', 'window_size': 3, 'shift': True, 'wrap': False},
    {'type': 'Softmax', 'window_size': 2, 'relative_position': True, 'sr_ratio': 1, 'shift': True},
    {'type': 'Linear', 'split_size': 1},
    {'type': 'FLatten', 'window_size': 2},
    {'type': 'Nystrom', 'split_size': 2, 'num_landmarks': 2, 'conv_size': 3, 'conv_axes': 'map'},
    {'type': 'Agent', 'window_size': 3, 'num_agents': 4},
    {'type': 'MHLA', 'split_size': 2, 'grid': 2},
)
# Numbers that must be at least 1, and for which a million is a typo.
SIZES = {
    *('embed_dims', 'depth', 'depths', 'num_heads', 'img_size', 'patch_size', 'in_channels', 'mlp_ratio'),
    *('mlp_ratios', 'window_size', 'split_size', 'sr_ratio', 'conv_size', 'power', 'iterations'),
}
PER_STAGE = {'embed_dims', 'depths', 'num_heads', 'mlp_ratios', 'inline_depths', 'mixers'}
MAY_BE_NONE = {
    'img_size',
    'mixers',
    'inline_depths',
    'window_size',
    'split_size',
    'conv_size',
    'autocast',
    'absolute_position',
    'out_norm',
}
VALUES: tuple[Any, ...] = (
    *(None, True, False, 'False', 'tiny', '7', '', b'7', 1j),
    *(0, 1, 2, 3, 5, 7, -1, -2, 10**6, 10**9, 10**30),
    *(2.0, 0.5, -0.5, 1.5, 1e9, math.nan, math.inf, -math.inf),
    *([], [1], [0, 0], [2, 1], [1, 2, 3, 4], ['a'], [[]], [None], (1, 2), {1}),
    *({}, {'type': 'InLine'}, {'type': None}, {'type': ['InLine']}, {3: 4}, {'a': {}}),
)
NAMES = ('drop_path', 'window', 'Type', 'dim', 'x', '', 'kernels', 'pretrained', 'self', 3, None, 'attn_drop')


@dataclass(frozen=True)
class Mutant:
    """A config after some mutations; an error message must quote one of the words in ``quotable``."""

    config: dict[str, Any]
    quotable: frozenset[str]
    # Whether the config is certainly wrong.
    is_wrong: bool


@st.composite
def base_configs(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a valid config."""
    family = draw(st.sampled_from(sorted(FAMILIES)))
    config = {'type': f'inline.{family}', **copy.deepcopy(FAMILIES[family]), **copy.deepcopy(SHARED)}
    is_deit = family == 'InLineDeiT'
    mixer = st.sampled_from(GLOBAL_MIXERS if is_deit else GLOBAL_MIXERS + WINDOW_MIXERS).map(copy.deepcopy)
    if is_deit:
        shapes = st.one_of(st.none(), mixer, st.lists(mixer, min_size=2, max_size=2))
    else:
        stages = st.tuples(
            *(mixer | st.lists(mixer, min_size=n, max_size=n) for n in PYRAMID['depths'])  # type: ignore[arg-type]
        )
        shapes = st.one_of(st.none(), mixer, stages.map(list))
    mixers = draw(shapes)
    for entry in _mixers_in(mixers):
        if family == 'InLineSwin' and entry['type'] == 'Softmax':
            # The softmax of Swin has windows.
            entry.update(window_size=2, sr_ratio=1, split_size=None)
        if family == 'InLineCSwin' and entry['type'] == 'Softmax':
            entry.update(sr_ratio=1, **({'split_size': None} if entry['window_size'] else {}))
    config['mixers'] = mixers
    return config


@st.composite
def mutants(draw: st.DrawFn) -> Mutant:
    """Draw a backbone config with one or two mutations."""
    config = draw(base_configs())
    quotable: set[str] = set()
    wrong = False
    count = draw(st.sampled_from((1, 1, 1, 2)))
    for _ in range(count):
        path = draw(st.sampled_from(sorted(paths(config), key=str)))
        touched, wrong = draw(st.sampled_from((_drop, _add, _misspell, _replace, _replace, _reorder)))(
            draw, config, path
        )
        quotable |= touched
    return Mutant(config, frozenset(quotable), is_wrong=wrong and count == 1)


@st.composite
def run_config_mutants(draw: st.DrawFn, run_config: dict[str, Any]) -> Mutant:
    """Draw a complete config with a mutated backbone, or with a mutation anywhere else."""
    config = copy.deepcopy(run_config)
    if draw(st.booleans()):
        mutant = draw(mutants())
        config['model']['backbone'] = mutant.config
        return Mutant(config, mutant.quotable, mutant.is_wrong)
    path = draw(st.sampled_from(sorted(paths(config), key=str)))
    parent, key = get(config, path[:-1]), path[-1]
    value = copy.deepcopy(draw(st.sampled_from(VALUES)))
    how = draw(st.sampled_from(('replace', 'replace', 'drop', 'add')))
    if how == 'drop':
        parent.pop(key)
    elif how == 'add' and isinstance(parent, dict):
        key = draw(st.sampled_from([name for name in NAMES if name not in parent]))
        parent[key] = value
    else:
        parent[key] = value
    return Mutant(config, frozenset(_quotable((*path, str(key)), value)), is_wrong=False)


def paths(node: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the paths of all values of a config, except the type of the backbone itself."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, child in items:
        if (*path, key) != ('type',):
            yield (*path, key)
            yield from paths(child, (*path, key))


def known_names(config: dict[str, Any], parent: Path) -> set[str]:
    """Return the keys that are valid in the dict at a path."""
    if parent == ():
        from inline.openmmlab import backbones as openmmlab

        return {'type', *parameters_of(getattr(openmmlab, config['type'].removeprefix('inline.')))}
    if parent == ('arch',):
        return set(config['arch']) | {'inline_depths'}
    kind = get(config, parent).get('type')
    return {'type', *parameters_of(MIXERS[kind])} - {'dim', 'num_heads'} if isinstance(kind, str) else set()


def get(config: Any, path: Path) -> Any:
    for key in path:
        config = config[key]
    return config


def _drop(draw: st.DrawFn, config: dict[str, Any], path: Path) -> tuple[set[str], bool]:  # noqa: ARG001
    parent, key = get(config, path[:-1]), path[-1]
    old = parent.pop(key)
    wrong = path[-1] in ('embed_dims', 'depths', 'depth') or key == 'type'
    return _quotable(path, old), wrong


def _add(draw: st.DrawFn, config: dict[str, Any], path: Path) -> tuple[set[str], bool]:
    """Add a key to the dict that contains the path, or an item to the list."""
    parent = get(config, path[:-1])
    value = copy.deepcopy(draw(st.sampled_from(VALUES)))
    if isinstance(parent, list):
        parent.append(value)
        return _quotable(path, value), _is_per_stage(path)
    name = draw(st.sampled_from(NAMES))
    if name in known_names(config, path[:-1]):
        return _replace(draw, config, path)
    parent[name] = value
    return {repr(name)}, True


def _misspell(draw: st.DrawFn, config: dict[str, Any], path: Path) -> tuple[set[str], bool]:
    parent, key = get(config, path[:-1]), path[-1]
    if not isinstance(key, str) or not key:
        return _replace(draw, config, path)
    i = draw(st.integers(0, len(key) - 1))
    name = draw(st.sampled_from((key[:i] + key[i + 1 :], key[:i] + key[i] + key[i:], key.upper(), key + ' ')))
    if name in known_names(config, path[:-1]):
        return _replace(draw, config, path)
    parent[name] = parent.pop(key)
    return {repr(name), key}, True


def _replace(draw: st.DrawFn, config: dict[str, Any], path: Path) -> tuple[set[str], bool]:
    parent, old = get(config, path[:-1]), get(config, path)
    value = copy.deepcopy(
        draw(st.sampled_from((*VALUES, GLOBAL_MIXERS[0], WINDOW_MIXERS[1], [*GLOBAL_MIXERS[:2]])))
    )
    parent[path[-1]] = value
    return _quotable(path, value), _is_certainly_wrong(_name(path), old, value)


def _reorder(draw: st.DrawFn, config: dict[str, Any], path: Path) -> tuple[set[str], bool]:
    """Shuffle a list, remove an item, or repeat one."""
    items = get(config, path)
    if not isinstance(items, list) or not items:
        return _replace(draw, config, path)
    how = draw(st.sampled_from(('shuffle', 'shorten', 'lengthen')))
    if how == 'shuffle':
        items[:] = draw(st.permutations(items))
    elif how == 'shorten':
        items.pop(draw(st.integers(0, len(items) - 1)))
    else:
        items.append(copy.deepcopy(draw(st.sampled_from(items))))
    return _quotable(path, items), how != 'shuffle' and _is_per_stage((*path, 0))


def _is_certainly_wrong(name: str, old: Any, value: Any) -> bool:
    """Return whether `value` is certainly wrong for an argument whose value was `old`."""
    if value is None:
        return name not in MAY_BE_NONE and name not in ('init_cfg', 'mixers') and not isinstance(old, dict)
    if name == 'arch' and value == 'tiny':
        return False
    if isinstance(old, bool):
        return not isinstance(value, bool)
    if isinstance(value, bool | str | bytes | complex | set):
        return not isinstance(old, str) or not isinstance(value, str) or name != 'autocast'
    if isinstance(old, int | float):
        if not isinstance(value, int | float):
            return not (name == 'img_size' and isinstance(value, list | tuple))
        is_integer = isinstance(old, int) and not name.startswith(('mlp_ratio', 'drop_path'))
        return (is_integer and isinstance(value, float)) or (name in SIZES and not 0 < value < 1e5)
    return isinstance(old, str)


def _is_per_stage(path: Path) -> bool:
    """Return whether the list that contains the path has one item per stage or block."""
    return path[0] == 'mixers' or (len(path) > 1 and path[-2] in PER_STAGE)


def _name(path: Path) -> str:
    return next((str(key) for key in reversed(path) if isinstance(key, str)), '')


def _quotable(path: Path, value: Any) -> set[str]:
    found = {key for key in path if isinstance(key, str)}
    if isinstance(value, dict):
        return found.union(*(_quotable((str(key),), item) for key, item in value.items()))
    if isinstance(value, list | tuple):
        return found.union(*(_quotable((), item) for item in value))
    return {*found, str(value)} - {''}


def _mixers_in(mixers: Any) -> Iterator[dict[str, Any]]:
    if isinstance(mixers, dict):
        yield mixers
    for entry in mixers if isinstance(mixers, list) else ():
        yield from _mixers_in(entry)
