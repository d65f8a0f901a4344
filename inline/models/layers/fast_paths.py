"""Helpers for fast paths: when to bypass a module's ``forward``, and a cache for size-dependent tensors.

A fast path that reads ``module.weight`` directly, or that overwrites a module's output, is only correct if
nobody has changed or observes that module. LoRA, quantisation, parametrisation, weight norm, pruning and
hooks all do.
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

F = TypeVar('F', bound=Callable[..., Tensor])

# At most this many tensors of at most this many elements are cached.
MAX_CACHED = 16
MAX_CACHED_NUMEL = 2**22
_cache: dict[Hashable, Tensor] = {}
_PLAIN_TYPES = (nn.Parameter, Tensor, type(None))
_ignores_global_hooks = ContextVar('ignores_global_hooks', default=False)


def has_hooks(module: nn.Module) -> bool:
    """Return whether a hook runs when ``module`` is called, registered on it or globally."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or (_has_any_global_hook() and not _ignores_global_hooks.get())
    )


@contextmanager
def ignore_global_hooks() -> Iterator[None]:
    """Treat global module hooks as observers that do not disable fast paths, within the context."""
    token = _ignores_global_hooks.set(True)
    try:
        yield
    finally:
        _ignores_global_hooks.reset(token)


def is_plain(module: nn.Module, cls: type[nn.Module]) -> bool:
    """Return whether calling ``module`` is the same as computing ``cls.forward`` from its parameters.

    False for classes that override ``forward`` (LoRA, quantised layers), for an instance-level ``forward``,
    for parametrised modules, for weights that are tensor subclasses, and for modules with hooks.
    """
    # Compares forward instead of the class, because torch.export traces a subclass of it.
    if type(module).forward is not cls.forward or 'forward' in module.__dict__:
        return False
    if 'parametrizations' in module._modules or has_hooks(module):
        return False
    for parameter in module._parameters.values():
        if type(parameter) not in _PLAIN_TYPES:
            # Tracers have tensor types of their own.
            return torch.compiler.is_compiling()
    return True


def returns_new_tensor(function: F) -> F:
    """Mark a method whose result shares no memory with anything else, so that its caller may overwrite it.

    An override or an instance-level replacement of the method does not inherit the mark.
    """
    function.returns_new_tensor = True  # type: ignore[attr-defined]
    return function


def is_marked_new(function: Callable[..., Any]) -> bool:
    """Return whether ``function`` was decorated with :func:`returns_new_tensor`."""
    return getattr(function, 'returns_new_tensor', False)


def cache_by_size(key: Hashable, make: Callable[[], Tensor]) -> Tensor:
    """Return ``make()``, cached under ``key``: for tensors that depend only on sizes and a device.

    The cache is shared by all modules, so it is not part of state dicts, copies or pickles. It is bypassed
    under tracing (torch.compile, torch.export) and dispatch modes, whose tensors must not leak.
    """
    if torch.compiler.is_compiling() or is_in_torch_dispatch_mode():
        return make()
    cached = _cache.get(key)
    if cached is None:
        # A tensor created in inference mode could not be used in training later.
        with torch.inference_mode(False):
            cached = make()
        if cached.numel() <= MAX_CACHED_NUMEL:
            while len(_cache) >= MAX_CACHED:
                _cache.pop(next(iter(_cache)), None)
            _cache[key] = cached
    return cached
