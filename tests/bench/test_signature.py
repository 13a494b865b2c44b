"""Values from code, from JSON and from a command line come out the same, or are refused by name."""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vcmm.bench.data import own
from vcmm.bench.registry import registry
from vcmm.bench.signature import completed, fitted, parameters, read, spelled
from vcmm.bench.spec import AXES

# Every type of an option that there is, and some that there might be.
USED = {
    str(option.annotation): option.annotation
    for entry in (*(entry for axis in AXES for entry in registry(axis).values()), own.load)
    for option in parameters(entry).values()
}
MORE: dict[str, Any] = {
    str(kind): kind
    for kind in (
        int | None,
        bool | None,
        tuple[int, ...],
        tuple[str, float] | None,
        Literal[1, 2],
        Literal["x", "y"] | None,
        Mapping[str, int],
    )
}
TYPES = list({**USED, **MORE}.values())
TYPED = st.sampled_from(TYPES)
NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9_-]{0,5}", fullmatch=True).filter(
    lambda name: name.lower() != "none"
)


def values(annotation: Any) -> st.SearchStrategy[Any]:
    """Values of a type."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return st.one_of(*(values(one) for one in inner))
    if origin is Literal:
        return st.sampled_from(inner)
    if origin is tuple and inner[-1] is Ellipsis:
        return st.lists(values(inner[0]), max_size=4).map(tuple)
    if origin is tuple:
        return st.tuples(*(values(one) for one in inner))
    if origin is not None and issubclass(origin, Mapping):
        return st.dictionaries(NAMES, values(inner[1]), max_size=3)
    simple: dict[Any, st.SearchStrategy[Any]] = {
        int: st.integers(),
        float: st.floats(allow_nan=False, allow_infinity=False),
        bool: st.booleans(),
        str: NAMES,
        type(None): st.none(),
    }
    return simple[annotation]


def typed_text(value: Any) -> str:
    """A value as one would type it."""
    if isinstance(value, tuple):
        return ",".join(map(typed_text, value)) + ("," if len(value) == 1 else "")
    if isinstance(value, Mapping):
        return ",".join(f"{name}={typed_text(one)}" for name, one in value.items())
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def same(a: Any, b: Any) -> bool:
    """Equal, and of the same types all the way down: 1 == 1.0 == True is not enough."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return type(a) is type(b) and a == b


def test_the_types_of_the_registries_were_found() -> None:
    assert len(USED) >= 8
    assert {str(float), str(bool), str(int)} <= USED.keys()


@given(st.data(), TYPED)
def test_what_is_typed_is_what_is_given_in_code(data: st.DataObject, kind: Any) -> None:
    value = data.draw(values(kind))
    there = read("option", kind, typed_text(value))
    assert same(there, fitted("option", kind, value))
    assert same(fitted("option", kind, there), there)


@given(st.data(), TYPED)
def test_json_gives_the_value_back(data: st.DataObject, kind: Any) -> None:
    value = fitted("option", kind, data.draw(values(kind)))
    assert same(fitted("option", kind, json.loads(json.dumps(value))), value)


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_a_wrong_value_is_told_by_name_value_and_type(kind: Any) -> None:
    wrong = object()
    with pytest.raises(TypeError, match="lr is <object object") as caught:
        fitted("lr", kind, wrong)
    assert str(caught.value).endswith(f"it must be {spelled(kind)}")
    if "a name" not in spelled(kind):  # any text is one
        with pytest.raises(TypeError, match=r"lr is '.*'; it must be"):
            read("lr", kind, "??")


@pytest.mark.parametrize("value", [True, False])
def test_a_bool_is_no_number_and_a_number_is_no_bool(value: bool) -> None:
    numbers: tuple[Any, ...] = (
        int,
        float,
        int | None,
        tuple[float, float],
        tuple[int, ...],
        Mapping[str, float],
        Literal[0, 1],
        float | tuple[float, ...],
    )
    for kind in numbers:
        for given_value in (value, (value, value), [value], {"a": value}):
            with pytest.raises(TypeError):
                fitted("x", kind, given_value)
    with pytest.raises(TypeError):
        fitted("x", bool, int(value))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (float, "0.1"),
        (float, float("nan")),
        (float, float("-inf")),
        (float, 10**400),
        (int, 1.0),
        (int, "1"),
        (str, 1),
        (str, None),
        (bool, "true"),
        (tuple[float, float], (1.0,)),
        (tuple[float, float], (1.0, 2.0, 3.0)),
        (tuple[float, float], "12"),
        (tuple[str, ...], "ab"),  # which is a sequence of strings, to Python
        (tuple[float, ...], 1.0),
        (Literal["a", "b"], "c"),
        (Mapping[str, float], [("a", 1.0)]),
        (Mapping[str, float], {"a": None}),
    ],
)
def test_what_almost_fits_does_not(kind: Any, value: Any) -> None:
    with pytest.raises(TypeError, match="option is "):
        fitted("option", kind, value)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (float, "nan"),
        (float, "inf"),
        (float, ""),
        (float, "1,2"),
        (int, "1.5"),
        (int, "1e3"),
        (bool, "2"),
        (bool, ""),
        (tuple[float, float], "0.7"),
        (tuple[float, float], "0.7,0.8,0.9"),
        (tuple[float, float], "0.7,inf"),
        (Mapping[str, float], "audio"),
        (Mapping[str, float], "audio=.9,video"),
        (Mapping[str, float], "audio=.9,audio=.8"),
        (Mapping[str, float], "audio=loud"),
        (Literal["a", "b"], "A"),
        (int | None, "nothing"),
    ],
)
def test_what_cannot_be_read_is_refused(kind: Any, text: str) -> None:
    with pytest.raises(TypeError, match="option is "):
        read("option", kind, text)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (float, "1e-3", 0.001),
        (float, "3", 3.0),
        (bool, "Yes", True),
        (bool, "0", False),
        (int | None, "None", None),
        (int | None, "7", 7),
        (tuple[float, float], ".7, .99", (0.7, 0.99)),
        (tuple[float, float], "(.7,.99)", (0.7, 0.99)),
        (float | tuple[float, ...], ".7", 0.7),
        (float | tuple[float, ...], ".7,1", (0.7, 1.0)),
        (Mapping[str, float], " video = .8 , audio=.9", {"audio": 0.9, "video": 0.8}),
        (Literal[1, 2], "2", 2),
    ],
)
def test_the_spellings_that_people_use(kind: Any, text: str, value: Any) -> None:
    assert same(read("option", kind, text), value)


def test_types_in_words() -> None:
    assert spelled(float) == "a number"
    assert spelled(int | None) == "a whole number or none"
    assert spelled(Literal["a", "b"]) == "a | b"
    assert spelled(tuple[float, float]) == "a number,a number"
    assert spelled(tuple[int, ...]) == "a whole number,a whole number,..."
    assert spelled(Mapping[str, float]) == "modality=a number pairs with commas between"


class Entry:
    """An entry with what may be there beside options."""

    def __init__(self, model: object, lr: float = 1.0, *, gain: float = 2, name: str) -> None: ...


def plain(model: object) -> None:
    """Has no options."""


def test_options_are_the_keyword_only_arguments_and_nothing_else() -> None:
    found = parameters(Entry)
    assert list(found) == ["gain", "name"]
    assert found["gain"].annotation is float
    assert found["name"].required
    assert not found["gain"].required
    assert parameters(plain) == {}


def test_completion_fills_in_defaults_of_the_type_that_is_annotated() -> None:
    assert same(completed("entry", Entry, {"name": "x"}), {"gain": 2.0, "name": "x"})
    options = {"gain": 1, "name": "x"}
    assert same(completed("entry", Entry, options), {"gain": 1.0, "name": "x"})
    assert same(options, {"gain": 1, "name": "x"})  # what was given is left alone
    with pytest.raises(ValueError, match=r"entry needs option 'name' \(a name\)"):
        completed("entry", Entry, {})
    with pytest.raises(ValueError, match="entry has no option 'gian'; did you mean 'gain'"):
        completed("entry", Entry, {"name": "x", "gian": 1})
    with pytest.raises(ValueError, match="entry has no option 'zzz'; it has gain, name"):
        completed("entry", Entry, {"name": "x", "zzz": 1})
    with pytest.raises(ValueError, match="plain has no option 'zzz'; it has none"):
        completed("plain", plain, {"zzz": 1})


def test_of_several_wrong_options_the_same_one_is_always_told() -> None:
    with pytest.raises(ValueError, match="no option 'aaa'"):
        completed("plain", plain, {"ccc": 1, "aaa": 1, "bbb": 1})
