"""Arguments held against the signature that takes them: unknown names and wrong types, told in one line.

Configs are data that people write by hand, and Python takes much of it in another sense than it was meant
in: a string where True or False belongs is true. So types are those of the annotations, to the letter:
True is not a number, 2.0 not a whole one, and a string no list.
"""

import inspect
import reprlib
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache, wraps
from types import NoneType, UnionType
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from inline.errors import UserError

T = TypeVar('T')
P = ParamSpec('P')

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80
# One of it, and many.
_WORDS = {
    int: ('a whole number', 'whole numbers'),
    float: ('a number', 'numbers'),
    bool: ('True or False', 'True or False'),
    str: ('a string', 'strings'),
    NoneType: ('None', 'None'),
}
_checking: set[Callable[..., None]] = set()


def checked(init: Callable[Concatenate[T, P], None]) -> Callable[Concatenate[T, P], None]:
    """Decorate a constructor: its arguments are checked, those that it hands on with ``**`` too."""
    names = list(inspect.signature(init).parameters)[1:]

    @wraps(init)
    def checking(self: T, /, *args: P.args, **kwargs: P.kwargs) -> None:
        kind = _outermost(type(self), checking)  # type: ignore[arg-type]  # classes have a hash
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        check_arguments(given, parameters_of(kind), kind.__name__)  # type: ignore[arg-type]  # classes have a hash
        init(self, *args, **kwargs)

    _checking.add(checking)
    return checking


@cache
def _outermost(kind: type[Any], checking: Callable[..., None]) -> type[Any]:
    """The class whose parameters a call of `checking` is held against.

    It is the class that is being made, unless its own constructor is not checked and calls on with other
    arguments: then it is the one that `checking` is the constructor of.
    """
    own = next(base for base in kind.__mro__ if '__init__' in vars(base))
    if vars(own)['__init__'] in _checking:
        return kind
    return next(base for base in kind.__mro__ if vars(base).get('__init__') is checking)


@cache
def parameters_of(kind: type[Any]) -> dict[str, Any]:
    """Names and types of all that a class takes, its own parameters before those that it hands on."""
    inits = [vars(base)['__init__'] for base in kind.__mro__ if '__init__' in vars(base)]
    if inits[0] in _checking:
        # A checked constructor may pass over one of another library on its way to the next of ours.
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
    """Refuse names that are not known, and values that are not of the type known for their name."""
    check_names(given, known, 'argument', owner)
    for name, value in given.items():
        check_type(name, value, known[name], owner)


def check_names(
    given: Mapping[Any, Any], known: Mapping[str, Any] | Sequence[str], what: str, owner: str
) -> None:
    for name in given:
        if name not in known:
            raise UserError(
                f'unknown {what} {told(name)} of {owner}: it takes {", ".join(known)}{hint(name, known)}'
            )


def check_type(name: str, value: Any, kind: Any, owner: str = '') -> None:
    """Refuse a value that is not what an annotation says."""
    if not _fits(value, kind):
        raise UserError(f'{name} {told(value)}{owner and f" of {owner}"}: must be {_describe(kind)}')


def check_choice(
    what: str, value: Any, choices: Mapping[str, Any] | Sequence[str], otherwise: str = ''
) -> None:
    """Refuse what is not one of the choices; ``otherwise`` says what else is allowed."""
    if not isinstance(value, str) or value not in choices:
        listed = ', '.join(choices)
        raise UserError(f'{what} {told(value)}: choose one of {listed}{otherwise}{hint(value, choices)}')


def check_range(name: str, value: float, low: float, high: float, otherwise: str = '') -> None:
    """Refuse a number outside of low to high, both included; ``otherwise`` says what else is allowed."""
    if not low <= value <= high:
        raise UserError(f'{name} {told(value)}: must be from {low} to {high}{otherwise}')


def hint(name: Any, known: Mapping[str, Any] | Sequence[str]) -> str:
    """`` (did you mean 'depths'?)`` if some known name is near, else nothing."""
    near = get_close_matches(str(name), list(known), n=1, cutoff=0.7)
    return f' (did you mean {near[0]!r}?)' if near else ''


def told(value: Any) -> str:
    """A value as it is quoted in a message: on one line, and not too long."""
    return ' '.join(_SHORT.repr(value).split())


def _hints(init: Callable[..., None]) -> dict[str, Any]:
    try:
        return get_type_hints(init)
    except NameError:
        # Some annotations are for the type checker only, and name what is not imported here.
        return {}


def _fits(value: Any, kind: Any) -> bool:
    origin, args = get_origin(kind), get_args(kind)
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
        # Keys are left to whoever knows which there are: the message can name the one that is wrong then.
        return isinstance(value, Mapping) and all(_fits(item, args[1]) for item in value.values())
    if isinstance(value, bool):
        return kind is bool or (kind not in (int, float) and _is_instance(value, kind))
    return isinstance(value, int | float) if kind is float else _is_instance(value, kind)


def _is_instance(value: Any, kind: Any) -> bool:
    """Of kinds that cannot be told from a value, such as those of functions, all is taken."""
    if kind is None:
        return value is None
    return not isinstance(kind, type) or kind is Any or isinstance(value, kind)


def _describe(kind: Any, many: bool = False) -> str:
    origin, args = get_origin(kind), get_args(kind)
    if kind in _WORDS:
        return _WORDS[kind][many]
    if origin in (Union, UnionType):
        parts = [_describe(arg, many) for arg in args]
        return f'{", ".join(parts[:-1])} or {parts[-1]}'
    if origin is Literal:
        return f'one of {", ".join(map(repr, args))}'
    if origin in (list, tuple, Sequence):
        return f'{"lists" if many else "a list"} of {_describe(args[0], many=True)}'
    if origin in (dict, Mapping):
        return 'dicts' if many else 'a dict'
    return getattr(kind, '__name__', str(kind))
