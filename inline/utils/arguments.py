"""Checks of the names and types of arguments against a signature, with one-line error messages.

Configs are written by hand, and Python accepts many wrong values silently: the string 'False' is true. So
types are checked strictly against the annotations: True and 2.0 are not integers, and a string is not a list.
"""

import inspect
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache, wraps
from types import NoneType, UnionType
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from inline.utils.errors import UserError

T = TypeVar('T')
P = ParamSpec('P')

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80
# Singular and plural, for messages.
_WORDS = {
    int: ('an integer', 'integers'),
    float: ('a number', 'numbers'),
    bool: ('True or False', 'True or False'),
    str: ('a string', 'strings'),
    NoneType: ('None', 'None'),
}
_checking: set[Callable[..., None]] = set()


def checked(init: Callable[Concatenate[T, P], None]) -> Callable[Concatenate[T, P], None]:
    """Decorate a constructor to check its arguments, including those passed on with ``**``."""
    names = list(inspect.signature(init).parameters)[1:]

    @wraps(init)
    def checking(self: T, /, *args: P.args, **kwargs: P.kwargs) -> None:
        cls = _outermost(type(self), checking)  # type: ignore[arg-type]  # classes have a hash
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        check_arguments(given, parameters_of(cls), cls.__name__)  # type: ignore[arg-type]  # classes have a hash
        init(self, *args, **kwargs)

    _checking.add(checking)
    return checking


@cache
def _outermost(cls: type[Any], checking: Callable[..., None]) -> type[Any]:
    """Return the class whose parameters the arguments of the constructor `checking` must match.

    This is the class of the instance if its constructor is also checked. Otherwise that constructor may have
    different parameters, and this is the class that defines `checking`.
    """
    definer = next(base for base in cls.__mro__ if '__init__' in vars(base))
    if vars(definer)['__init__'] in _checking:
        return cls
    return next(base for base in cls.__mro__ if vars(base).get('__init__') is checking)


@cache
def parameters_of(cls: type[Any]) -> dict[str, Any]:
    """Return names and types of a constructor's parameters, including those passed on to base classes."""
    inits = [vars(base)['__init__'] for base in cls.__mro__ if '__init__' in vars(base)]
    if inits[0] in _checking:
        # A checked constructor may skip that of another library in the method resolution order.
        inits = [init for init in inits if init in _checking]
    found: dict[str, Any] = {}
    for init in inits:
        parameters = list(inspect.signature(init).parameters.values())[1:]
        hints = _hints(init)
        for parameter in parameters:
            if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                found.setdefault(parameter.name, hints.get(parameter.name, Any))
        if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters):
            break
    return found


def check_arguments(given: Mapping[Any, Any], known: Mapping[str, Any], owner: str) -> None:
    """Raise a :class:`UserError` for an unknown name or a value of the wrong type."""
    check_names(given, known, 'argument', owner)
    for name, value in given.items():
        check_type(name, value, known[name], owner)


def check_names(
    given: Mapping[Any, Any], known: Mapping[str, Any] | Sequence[str], label: str, owner: str
) -> None:
    """Raise a :class:`UserError` for a name that is not in `known`."""
    for name in given:
        if name not in known:
            raise UserError(
                f'unknown {label} {format_value(name)} of {owner}: '
                f'it takes {", ".join(known)}{hint(name, known)}'
            )


def check_type(name: str, value: Any, annotation: Any, owner: str = '') -> None:
    """Raise a :class:`UserError` for a value that does not match the type `annotation`."""
    if not _fits(value, annotation):
        raise UserError(
            f'{name} {format_value(value)}{owner and f" of {owner}"}: must be {_describe(annotation)}'
        )


def check_choice(
    label: str, value: Any, choices: Mapping[str, Any] | Sequence[str], alternatives: str = ''
) -> None:
    """Raise a :class:`UserError` unless `value` is a choice; `alternatives` is appended to the message."""
    if not isinstance(value, str) or value not in choices:
        listed = ', '.join(choices)
        raise UserError(
            f'{label} {format_value(value)}: choose one of {listed}{alternatives}{hint(value, choices)}'
        )


def check_range(name: str, value: float, low: float, high: float, alternatives: str = '') -> None:
    """Raise a :class:`UserError` unless low <= value <= high; `alternatives` is appended to the message."""
    if not low <= value <= high:
        raise UserError(f'{name} {format_value(value)}: must be from {low} to {high}{alternatives}')


def check_positive(name: str, value: int | None) -> None:
    """Raise a :class:`UserError` unless `value` is an integer >= 1, or None: the option was not given."""
    if value is None:
        return
    check_type(name, value, int)
    if value < 1:
        raise UserError(f'{name} {value}: must be at least 1')


def parse_size(flag: str, text: str, minimum: int = 1) -> tuple[int, int]:
    """Return (height, width) from the value of a flag, such as '224' or '480x640'."""
    match = re.fullmatch(r'(\d+)(?:[x×](\d+))?', text)
    size = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if min(size) < minimum:
        raise UserError(f'{flag} {text!r}: must be one side or HEIGHTxWIDTH, each at least {minimum}')
    return size


def hint(name: Any, known: Mapping[str, Any] | Sequence[str]) -> str:
    """Return ``" (did you mean 'depths'?)"`` if a known name is similar, else an empty string."""
    near = get_close_matches(str(name), list(known), n=1, cutoff=0.7)
    return f' (did you mean {near[0]!r}?)' if near else ''


def format_value(value: Any) -> str:
    """Format a value for a message: on one line and not too long."""
    return ' '.join(_SHORT.repr(value).split())


def _hints(init: Callable[..., None]) -> dict[str, Any]:
    try:
        return get_type_hints(init)
    except NameError:
        # An annotation uses a name that is imported for type checking only.
        return {}


def _fits(value: Any, annotation: Any) -> bool:
    origin, args = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return any(_fits(value, arg) for arg in args)
    if origin is Literal:
        return any(value == arg and type(value) is type(arg) for arg in args)
    if origin is tuple and args[-1] is not Ellipsis:
        fixed = isinstance(value, list | tuple) and len(value) == len(args)
        return fixed and all(_fits(item, arg) for item, arg in zip(value, args, strict=True))
    if origin in (list, tuple, Sequence):
        return isinstance(value, list | tuple) and all(_fits(item, args[0]) for item in value)
    if origin in (dict, Mapping):
        # Keys are checked by the caller, which can name the wrong one.
        return isinstance(value, Mapping) and all(_fits(item, args[1]) for item in value.values())
    if isinstance(value, bool):
        return annotation is bool or (annotation not in (int, float) and _is_instance(value, annotation))
    return isinstance(value, int | float) if annotation is float else _is_instance(value, annotation)


def _is_instance(value: Any, annotation: Any) -> bool:
    """Check a class. Types that cannot be checked at run time, such as callables, accept any value."""
    if annotation is None:
        return value is None
    return not isinstance(annotation, type) or annotation is Any or isinstance(value, annotation)


def _describe(annotation: Any, many: bool = False) -> str:
    origin, args = get_origin(annotation), get_args(annotation)
    if annotation in _WORDS:
        return _WORDS[annotation][many]
    if origin in (Union, UnionType):
        names = [_describe(arg, many) for arg in args]
        return f'{", ".join(names[:-1])} or {names[-1]}'
    if origin is Literal:
        return f'one of {", ".join(map(repr, args))}'
    if origin in (list, tuple, Sequence):
        return f'{"lists" if many else "a list"} of {_describe(args[0], many=True)}'
    if origin in (dict, Mapping):
        return 'dicts' if many else 'a dict'
    return getattr(annotation, '__name__', str(annotation))
