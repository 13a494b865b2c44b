"""Suites that ask in stages: what they are told, and that nothing is trained twice."""

from __future__ import annotations

import pytest

from vcmm.bench.spec import Choice, Spec
from vcmm.bench.suites.stages import Stages, driven, staged

from .answers import Bench

ONE, TWO, THREE = (Spec(seed=seed) for seed in range(3))


def test_a_list_is_one_stage() -> None:
    bench = Bench()
    assert bench.drive([ONE, TWO, ONE]) == [ONE, TWO]
    assert bench.stages == [[ONE, TWO]]


def test_a_suite_is_told_all_that_is_done_and_asks_for_nothing_twice() -> None:
    told: list[set[Spec]] = []

    def suite() -> Stages:
        told.append(set((yield [ONE, TWO])))
        told.append(set((yield [TWO, THREE])))
        told.append(set((yield [ONE])))

    bench = Bench(failing=lambda spec: spec == TWO)
    assert bench.drive(suite()) == [ONE, TWO, THREE]
    assert bench.stages == [[ONE, TWO], [THREE]]
    assert told == [{ONE}, {ONE, THREE}, {ONE, THREE}]


def test_nothing_asked_is_nothing_trained() -> None:
    bench = Bench()
    assert bench.drive([]) == []
    assert bench.drive(stage for stage in ()) == []
    assert bench.stages == []


def test_a_suite_inside_of_a_suite_is_told_the_same() -> None:
    def inner() -> Stages:
        assert set((yield [TWO])) == {ONE, TWO}

    def outer() -> Stages:
        yield [ONE]
        yield from inner()
        yield from staged([THREE])

    assert Bench().drive(outer()) == [ONE, TWO, THREE]


def test_a_mistake_of_the_suite_comes_out() -> None:
    def suite() -> Stages:
        yield [ONE]
        yield [Spec(method=Choice("jont"))]

    with pytest.raises(ValueError, match="did you mean 'joint'"):
        driven(suite(), Bench().train)
