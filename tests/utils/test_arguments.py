"""Checks of the names and types of arguments against a signature."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import pytest

from inline.utils.arguments import (
    check_arguments,
    check_choice,
    check_positive,
    check_type,
    checked,
    format_value,
    parameters_of,
    parse_size,
)
from inline.utils.errors import UserError


@pytest.mark.parametrize(
    ('annotation', 'good', 'bad', 'words'),
    [
        (bool, [True, False], [0, 1, 'False', None, []], 'True or False'),
        (int, [0, -3], [True, 2.0, '7', None, [1]], 'an integer'),
        (float, [0, 0.5, 1e9], [True, '0.5', None, (1,), 1j], 'a number'),
        (str, ['', 'a'], [b'a', 1, None], 'a string'),
        (int | None, [None, 4], [False, 4.0], 'an integer or None'),
        (
            bool | dict[str, Any] | None,
            [None, True, {'a': 1}],
            [1, 'x', []],
            'True or False, a dict or None',
        ),
        (
            Sequence[int],
            [(), [1], (2, 3)],
            [1, '12', [True], [1, 2.0], {1}, {1: 1}],
            'a list of integers',
        ),
        (tuple[float, ...], [(1, 2.5), [3]], [3, ('1',)], 'a list of numbers'),
        (tuple[int, int], [(1, 2), [1, 2]], [(1,), (1, 2, 3), 1], 'a list of integers'),
        (Mapping[str, int], [{}, {'a': 1}], [{'a': True}, [1], 'a'], 'a dict'),
        (list[dict[str, Any]], [[], [{'a': 1}]], [{}, [1]], 'a list of dicts'),
        (Literal['a', 1], ['a', 1], [True, 'b', 1.0], "one of 'a', 1"),
        (Callable[[int], int], [len, 3], [], ''),
        (Any, [None, 3, 'x'], [], ''),
    ],
    ids=str,
)
def test_types_are_checked_strictly(annotation: Any, good: list, bad: list, words: str) -> None:
    for value in good:
        check_type('size', value, annotation)
    for value in bad:
        with pytest.raises(UserError) as error:
            check_type('size', value, annotation, 'Model')
        assert str(error.value) == f'size {format_value(value)} of Model: must be {words}'


class Base:
    @checked
    def __init__(self, width: int, *, bias: bool = True) -> None:
        self.width, self.bias = width, bias


class Unchecked:
    def __init__(self, other: int = 0) -> None:
        self.other = other


class Child(Unchecked, Base):
    @checked
    def __init__(self, width: int, depth: int = 1, **shared: Any) -> None:
        Base.__init__(self, width, **shared)
        self.depth = depth


def test_arguments_passed_on_to_base_classes_are_accepted() -> None:
    assert parameters_of(Child) == {'width': int, 'depth': int, 'bias': bool}
    assert parameters_of(Unchecked) == {'other': int}
    child = Child(3, depth=2, bias=False)
    assert (child.width, child.depth, child.bias) == (3, 2, False)


@pytest.mark.parametrize(
    ('args', 'options', 'message'),
    [
        (
            (3,),
            {'bais': True},
            "unknown argument 'bais' of Child: it takes width, depth, bias (did you mean 'bias'?)",
        ),
        ((3,), {'other': 1}, "unknown argument 'other' of Child: it takes width, depth, bias"),
        (('3',), {}, "width '3' of Child: must be an integer"),
        ((3, 1.0), {}, 'depth 1.0 of Child: must be an integer'),
        ((3,), {'bias': 'False'}, "bias 'False' of Child: must be True or False"),
    ],
)
def test_invalid_arguments_raise(args: tuple, options: dict, message: str) -> None:
    with pytest.raises(UserError) as error:
        Child(*args, **options)
    assert str(error.value) == message


def test_names_that_are_not_strings_raise() -> None:
    with pytest.raises(UserError, match='unknown argument 3 of Model: it takes a, b'):
        check_arguments({3: 4}, {'a': int, 'b': int}, 'Model')
    with pytest.raises(UserError, match=r"arch \['tiny'\]: choose one of tiny, small, or a dict"):
        check_choice('arch', ['tiny'], ['tiny', 'small'], ', or a dict')


def test_values_are_formatted_on_one_short_line() -> None:
    assert format_value('a\nb') == r"'a\nb'"
    assert len(format_value('x' * 10_000)) < 100
    assert '\n' not in format_value(Multiline())


class Multiline:
    def __repr__(self) -> str:
        return 'two\nlines'


def test_unchecked_subclass_may_have_other_arguments() -> None:
    """The arguments that it passes on are checked against the constructor that receives them."""

    class Parent:
        @checked
        def __init__(self, width: int) -> None:
            self.width = width

    class Child(Parent):
        def __init__(self, name: str) -> None:
            super().__init__(width=len(name))

    assert Child('four').width == 4

    class Wrong(Parent):
        def __init__(self) -> None:
            super().__init__(wdth=1)  # type: ignore[call-arg]

    with pytest.raises(UserError, match=r"unknown argument 'wdth' of Parent: it takes width"):
        Wrong()


@pytest.mark.parametrize('value', [0, -2])
def test_numbers_below_one_are_rejected(value: int) -> None:
    check_positive('--steps', 1)
    check_positive('--steps', None)
    with pytest.raises(UserError, match=f'^--steps {value}: must be at least 1$'):
        check_positive('--steps', value)


def test_sizes_are_one_side_or_height_and_width() -> None:
    assert parse_size('--size', '224') == (224, 224)
    assert parse_size('--size', '480x640', 32) == (480, 640)


@pytest.mark.parametrize('text', ['abc', '10', '64x64x64', '64x8', '-64', ''])
def test_invalid_sizes_are_rejected(text: str) -> None:
    with pytest.raises(
        UserError, match=f"^--size '{text}': must be one side or HEIGHTxWIDTH, each at least 32$"
    ):
        parse_size('--size', text, 32)
