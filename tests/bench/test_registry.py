from __future__ import annotations

import inspect
from typing import Any

import pytest

from vcmm.bench.registry import registry
from vcmm.bench.signature import completed, fitted, parameters, spelled
from vcmm.bench.spec import AXES

ENTRIES = [(axis, name) for axis in AXES for name in registry(axis)]


@pytest.mark.parametrize("axis", AXES)
def test_names_are_sorted_and_can_be_typed(axis: str) -> None:
    names = list(registry(axis))
    assert names == sorted(names)
    assert all(name.isidentifier() and name == name.lower() for name in names)


def test_what_the_issue_asks_for_is_there() -> None:
    wanted = {
        "data": {"watch", "synthetic"},
        "encoder": {"auto", "conv1d", "conv2d", "mlp"},
        "method": {"joint", "unimodal", "ensemble", "multi_loss"},
        "controller": {"none", "vcmm", "fixed", "frozen"},
        "optimizer": {"adam", "adamw", "sgd", "adamax", "nadam", "radam"},
        "schedule": {"constant", "step", "cosine", "one_cycle"},
    }
    for axis, names in wanted.items():
        assert names <= registry(axis).keys()


@pytest.mark.parametrize(("axis", "name"), ENTRIES)
def test_an_entry_explains_itself(axis: str, name: str) -> None:
    entry: Any = registry(axis)[name]
    assert entry.__doc__  # its own: getdoc would find that of a base class
    assert inspect.getdoc(entry).splitlines()[0].endswith((".", ":"))


@pytest.mark.parametrize(("axis", "name"), ENTRIES)
def test_options_are_typed_in_words_and_their_defaults_are_of_their_type(
    axis: str, name: str
) -> None:
    entry = registry(axis)[name]
    for option in parameters(entry).values():
        assert option.name != "name"  # which is that of the choice in its JSON
        # A type that `spelled` does not know comes out as Python writes it.
        words = spelled(option.annotation)
        assert not any(sign in words for sign in ("[", "<", "typing."))
        if not option.required:
            assert fitted("default", option.annotation, option.default) == option.default


@pytest.mark.parametrize(("axis", "name"), ENTRIES)
def test_nothing_takes_options_that_it_does_not_name(axis: str, name: str) -> None:
    entry: Any = registry(axis)[name]
    function = entry.__init__ if inspect.isclass(entry) else entry
    kinds = {argument.kind for argument in inspect.signature(function).parameters.values()}
    assert inspect.Parameter.VAR_KEYWORD not in kinds
    with pytest.raises(ValueError, match="has no option 'nonsense'"):
        completed(name, entry, {"nonsense": 1})
