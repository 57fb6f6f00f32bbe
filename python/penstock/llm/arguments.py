"""Checks the arguments of public calls against their annotations, so that a wrong one is named in
the error.
"""

from __future__ import annotations

import inspect
import operator
import os
import typing
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cache, wraps
from numbers import Real
from types import NoneType, UnionType
from typing import Any, ParamSpec, TypeVar

from penstock.core import InvalidValueError, PenstockError
from penstock.core.errors import did_you_mean

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)
Fault = tuple[str, object, str]
"""Name, value and expectation of the part of an argument that has the wrong type."""
_NAMES = {
    NoneType: ("None", "None"),
    bool: ("True or False", "booleans"),
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    str: ("a text", "texts"),
    os.PathLike: ("a path", "paths"),
}
"""Description of one value of a type, and of several."""


class ArgumentError(PenstockError, TypeError):
    """A call without a required argument, or with one that it does not have."""


def checked(
    call: Callable[P, R], replaced: Mapping[str, str] | None = None, *, types: bool = True
) -> Callable[P, R]:
    """`call`, with checks of the names of its arguments and, with `types`, of their types.
    `replaced`: for keywords of other programs, what to use instead; without effect if the value is
    None or False. Raises ArgumentError and InvalidValueError.
    """
    signature, replaced = inspect.signature(call), replaced or {}
    open_ended = any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values())
    name = call.__qualname__.removesuffix(".__init__")

    def bound(*args: P.args, **kwargs: P.kwargs) -> inspect.BoundArguments:
        try:
            return signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ArgumentError(f"{name}: {error}") from None

    @wraps(call)
    def checking(*args: P.args, **kwargs: P.kwargs) -> R:
        given: dict[str, object] = kwargs
        for keyword in given.keys() - signature.parameters.keys() if not open_ended else ():
            if keyword not in replaced:
                hint = did_you_mean(keyword, [*signature.parameters][1:])
                raise ArgumentError(f"{name} has no argument {keyword}{hint}")
            value = given.pop(keyword)
            if value is not None and value is not False:
                raise ArgumentError(f"{name} has no argument {keyword}: {replaced[keyword]}")
        if types:
            check_types(bound(*args, **kwargs).arguments, _hints(call))
            return call(*args, **kwargs)
        try:
            return call(*args, **kwargs)
        except TypeError:
            bound(*args, **kwargs)
            raise

    return checking


def checked_class(replaced: Mapping[str, str] | None = None) -> Callable[[C], C]:
    """Decorator of a dataclass that checks the names of its arguments. Types are checked by
    `check_fields`, because fields may be assigned later.
    """

    def decorate(decorated: C) -> C:
        original: Any = decorated
        original.__init__ = checked(original.__init__, replaced, types=False)
        return decorated

    return decorate


def check_fields(instance: Any) -> None:
    """Check the types of a dataclass's fields. Raises InvalidValueError, which names the first
    wrong one.
    """
    values = {
        field.name: value
        for field in fields(instance)
        if (value := getattr(instance, field.name)) is not field.default
    }
    owner: Any = type(instance)
    check_types(values, _hints(owner))


def check_types(values: Mapping[str, object], hints: Mapping[str, Any]) -> None:
    """Check values that have an annotation of the same name. A value whose annotation allows only
    None is left to its own check, which knows the reason.
    """
    for name, value in values.items():
        hint = hints.get(name, Any)
        if hint is not NoneType and (fault := _fault(hint, name, value)):
            raise InvalidValueError(*fault)


@cache
def _hints(annotated: Hashable) -> dict[str, Any]:
    hints = typing.get_type_hints(annotated)
    if not isinstance(annotated, type) and callable(annotated):
        for each in inspect.signature(annotated).parameters.values():
            if each.kind is each.VAR_KEYWORD:
                del hints[each.name]
    return hints


def _fault(hint: Any, name: str, value: object) -> Fault | None:
    """The most deeply nested part of `value` that does not match `hint`; None if all match."""
    options = _options(hint)
    matching = [option for option in options if _matches(option, value)]
    if not matching:
        return name, value, _words(options)
    faults = [_inner_fault(option, name, value) for option in matching]
    return max((each for each in faults if each), key=_depth) if all(faults) else None


def _depth(fault: Fault) -> int:
    return fault[0].count("[")


@cache
def _options(hint: Any) -> tuple[Any, ...]:
    if typing.get_origin(hint) in (typing.Union, UnionType):
        return tuple(each for part in typing.get_args(hint) for each in _options(part))
    return (hint,)


def _matches(option: Any, value: object) -> bool:
    """Whether `value` has the type `option`, whatever it contains."""
    kind = typing.get_origin(option) or option
    if kind is Any:
        return True
    if kind is int:
        return is_integer(value)
    if kind is float:
        return isinstance(value, Real) and not isinstance(value, bool)
    if kind is Sequence:
        return isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping)
    if typing.is_typeddict(kind):
        return isinstance(value, Mapping)
    return callable(value) if kind is Callable else isinstance(value, kind)


def is_integer(value: Any) -> bool:
    """Whether a value is an int, or an integer of another library such as numpy or torch. A bool
    is not.
    """
    if isinstance(value, bool):
        return False
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


def _inner_fault(option: Any, name: str, value: Any) -> Fault | None:
    kind, parts = typing.get_origin(option), typing.get_args(option)
    if kind is Sequence:
        # Long lists of token ids are the usual case, and have this short cut.
        if {*map(type, value)} <= {parts[0]}:
            return None
        return _first(_fault(parts[0], f"{name}[{at}]", item) for at, item in enumerate(value))
    if kind is Mapping:
        keys = (_fault(parts[0], f"a key of {name}", key) for key in value)
        items = (_fault(parts[1], f"{name}[{key!r}]", item) for key, item in value.items())
        return _first(keys) or _first(items)
    return None


def _first(faults: Iterable[Fault | None]) -> Fault | None:
    return next((each for each in faults if each), None)


def _words(options: Iterable[Any]) -> str:
    # Different annotations can have the same description, such as Mapping and a TypedDict.
    *most, last = dict.fromkeys(_name(option)[0] for option in options)
    return f"{', '.join(most)} or {last}" if most else last


def _name(option: Any) -> tuple[str, str]:
    kind = typing.get_origin(option) or option
    if kind is Sequence:
        items = dict.fromkeys(_name(item)[1] for item in _options(typing.get_args(option)[0]))
        return f"a list of {' or '.join(items)}", f"lists of {' or '.join(items)}"
    if kind is Mapping or typing.is_typeddict(kind):
        return "a mapping", "mappings"
    if kind is Callable:
        return "a function", "functions"
    return _NAMES.get(kind) or (kind.__name__, kind.__name__)
