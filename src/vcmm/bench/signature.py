"""Hyperparameters are the keyword-only arguments of a class or function, and nothing else.

What is listed, completed with defaults, read from a command line and shown in a help text is taken
from the signature, so that a name, a type or a default is written once.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

Value = Any  # a bool, number, string or None, or a tuple or a mapping of them


@dataclass(frozen=True, slots=True)
class Parameter:
    """One hyperparameter."""

    name: str
    annotation: Any
    default: Value
    required: bool


def parameters(entry: Callable[..., Any]) -> dict[str, Parameter]:
    """The keyword-only arguments of a function, or of a class."""
    function = cast(Callable[..., Any], entry.__init__ if inspect.isclass(entry) else entry)
    hints = get_type_hints(function)
    return {
        name: Parameter(name, hints[name], argument.default, argument.default is argument.empty)
        for name, argument in inspect.signature(function).parameters.items()
        if argument.kind is argument.KEYWORD_ONLY
    }


def completed(what: str, entry: Callable[..., Any], options: Mapping[str, Value]) -> dict[str, Any]:
    """All hyperparameters of an entry, given some; the error for a wrong one names the right ones.

    Values of JSON are accepted too, where a tuple is a list.
    """
    known = parameters(entry)
    for name in sorted(options.keys() - known.keys()):
        near = get_close_matches(name, known, 1)
        has = f"it has {', '.join(known)}" if known else "it has none"
        raise ValueError(
            f"{what} has no option {name!r}; {f'did you mean {near[0]!r}?' if near else has}"
        )
    values: dict[str, Any] = {}
    for name, parameter in known.items():
        if name in options:
            values[name] = fitted(f"{what}: option {name!r}", parameter.annotation, options[name])
        elif parameter.required:
            raise ValueError(f"{what} needs option {name!r} ({spelled(parameter.annotation)})")
        else:
            values[name] = fitted(what, parameter.annotation, parameter.default)
    return values


def fitted(what: str, annotation: Any, value: Value) -> Value:
    """The value as the annotation has it: an int where a float is meant becomes one."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in inner:
            return None
        choices = [one for one in inner if one is not type(None)]
        for choice in choices:
            try:
                return fitted(what, choice, value)
            except TypeError:
                continue
    elif origin is Literal:
        if any(value == one and type(value) is type(one) for one in inner):
            return value
    elif origin is tuple and isinstance(value, Sequence) and not isinstance(value, str):
        return _fitted_tuple(what, annotation, cast(Sequence[Value], value))
    elif origin is not None and issubclass(origin, Mapping) and isinstance(value, Mapping):
        pairs = cast(Mapping[str, Value], value)
        return {str(key): fitted(what, inner[1], pairs[key]) for key in sorted(pairs)}
    elif annotation is float and isinstance(value, int | float) and not isinstance(value, bool):
        if abs(value) <= sys.float_info.max:  # JSON has neither infinity nor nan
            return float(value)
    elif annotation in (int, str, bool) and type(value) is annotation:
        return value
    raise TypeError(f"{what} is {value!r}; it must be {spelled(annotation)}")


def _fitted_tuple(what: str, annotation: Any, value: Sequence[Value]) -> tuple[Value, ...]:
    inner = get_args(annotation)
    if inner[-1] is Ellipsis:
        return tuple(fitted(what, inner[0], one) for one in value)
    if len(inner) != len(value):
        raise TypeError(f"{what} is {list(value)!r}; it must be {spelled(annotation)}")
    return tuple(fitted(what, kind, one) for kind, one in zip(inner, value, strict=True))


def require_positive(what: str, **options: int) -> None:
    """An error if an option that counts something is below 1."""
    for name, value in options.items():
        if value < 1:
            raise ValueError(f"{what}: {name} is {value}; it must be at least 1")


def read(what: str, annotation: Any, text: str) -> Value:
    """A value from a command line: 0.3, true, none, .7,.99 or audio=.9,video=.8."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        if type(None) in inner and text.lower() == "none":
            return None
        for choice in (one for one in inner if one is not type(None)):
            try:
                return read(what, choice, text)
            except TypeError:
                continue
    elif origin is Literal:
        spellings = {str(one): one for one in inner}
        if text in spellings:
            return spellings[text]
    elif annotation is str:
        return text
    elif origin is tuple:
        parts = [part for part in text.strip("()").split(",") if part.strip()]
        kinds = [inner[0]] * len(parts) if inner[-1] is Ellipsis else list(inner)
        if len(parts) == len(kinds):
            return tuple(read(what, k, part.strip()) for k, part in zip(kinds, parts, strict=True))
    elif origin is not None and issubclass(origin, Mapping):
        pairs = [part.partition("=") for part in text.split(",") if part.strip()]
        values = {key.strip(): value for key, middle, value in sorted(pairs) if middle}
        if len(values) == len(pairs):  # every part is a pair, and no name comes twice
            return {key: read(what, inner[1], value.strip()) for key, value in values.items()}
    elif annotation is bool and text.lower() in _TRUTH:
        return _TRUTH[text.lower()]
    elif annotation in (int, float):
        try:
            return fitted(what, annotation, annotation(text))
        except ValueError:
            pass
    raise TypeError(f"{what} is {text!r}; it must be {spelled(annotation)}")


_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def written(value: Value) -> str:
    """A default as one would type it."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, tuple | list):
        return ",".join(written(one) for one in cast(Sequence[Value], value))
    if isinstance(value, Mapping):
        pairs = cast(Mapping[str, Value], value)
        return ",".join(f"{key}={written(one)}" for key, one in pairs.items())
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def spelled(annotation: Any) -> str:
    """A type as a person would say it."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return " or ".join(spelled(one) for one in inner)
    if origin is Literal:
        return " | ".join(map(str, inner))
    if origin is tuple and inner[-1] is Ellipsis:
        return f"{spelled(inner[0])},{spelled(inner[0])},..."
    if origin is tuple:
        return ",".join(spelled(one) for one in inner)
    if origin is not None and issubclass(origin, Mapping):
        return f"modality={spelled(inner[1])} pairs with commas between"
    names: dict[Any, str] = {
        float: "a number",
        int: "a whole number",
        bool: "true or false",
        str: "a name",
        type(None): "none",
    }
    return names.get(annotation, str(annotation))
