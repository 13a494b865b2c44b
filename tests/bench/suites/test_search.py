"""Searches: equal trials for everyone, on valid, with one seed, and the best one for all seeds."""

from __future__ import annotations

import math

import pytest

from vcmm.bench.spec import Choice, Spec
from vcmm.bench.suites.ablation import BETAS
from vcmm.bench.suites.grid import arm, seeded
from vcmm.bench.suites.search import (
    MOST,
    RANGE,
    base_momentum,
    best,
    descent,
    rates,
    searched,
    with_rate,
)
from vcmm.bench.suites.stages import Stages

from .answers import SHORT, THREE, TWO, Bench, betas_of, run_of

ARMS = [arm({**TWO, **SHORT}, name) for name in ("joint", "joint+vcmm", "multi_loss")]


def rate(spec: Spec) -> float:
    return spec.optimizer.options["lr"]


# Learning rates


def test_every_arm_gets_the_same_number_of_trials_and_then_all_seeds() -> None:
    bench = Bench(lambda spec: rate(spec) / (1 + rate(spec)))  # the larger the better
    bench.drive(searched(seeded(ARMS, 3), 4))
    trials, final = bench.stages
    assert {spec.seed for spec in trials} == {0}
    for one in ARMS:
        mine = [spec for spec in trials if with_rate(spec, rate(one)) == one]
        assert len(mine) == len(set(mine)) == 4
        assert rate(mine[0]) == rate(one)
        largest = max(map(rate, mine))
        rest = [spec for spec in final if spec.method == one.method]
        rest = [spec for spec in rest if spec.controller == one.controller]
        assert {spec.seed for spec in rest} == {1, 2}  # seed 0 is the trial that won
        assert {rate(spec) for spec in rest} == {largest}


def test_draws_lie_within_the_range_and_follow_from_the_name_of_the_arm() -> None:
    drawn = [rates(one, 200) for one in ARMS]
    for one, found in zip(ARMS, drawn, strict=True):
        assert found[0] == rate(one)
        assert all(rate(one) / RANGE <= lr <= rate(one) * RANGE for lr in found)
        logs = [math.log10(lr / rate(one)) for lr in found[1:]]
        assert abs(sum(logs) / len(logs)) < 0.15  # six standard errors of a uniform draw: .25
        assert found == rates(one, 200)
        assert found[:7] == rates(one, 7)  # a longer search begins with the shorter one
    assert len({tuple(found) for found in drawn}) == len(ARMS)


def test_the_draws_do_not_change_with_the_version_of_anything() -> None:
    assert rates(Spec(), 3) == [1e-3, 1.22e-4, 7.28e-4]


def test_only_valid_counts_and_the_first_of_equals() -> None:
    specs = [with_rate(ARMS[0], lr) for lr in (1e-3, 2e-3, 3e-3)]
    done = {
        spec: run_of(spec, valid, test)
        for spec, valid, test in zip(specs, (0.6, 0.7, 0.7), (0.9, 0.1, 0.8), strict=True)
    }
    assert best(specs, done) == specs[1]
    assert best(specs[::-1], done) == specs[2]
    assert best([], done) is None


def test_a_trial_that_failed_is_passed_over_and_an_arm_without_any_keeps_its_own() -> None:
    def failing(spec: Spec) -> bool:
        return spec.method.name == "multi_loss" or rate(spec) > 2e-3

    bench = Bench(rate, failing)
    bench.drive(searched(seeded(ARMS, 2), 6))
    final = bench.stages[-1]
    assert all(rate(spec) <= 2e-3 for spec in final)
    own = [spec for spec in final if spec.method.name == "multi_loss"]
    assert {rate(spec) for spec in own} == {1e-3}


def test_a_suite_in_stages_is_told_of_its_own_specs() -> None:
    seen: list[dict[Spec, float]] = []

    def suite() -> Stages:
        done = yield seeded(ARMS[:1], 2)
        seen.append({spec: run.spec["optimizer"]["lr"] for spec, run in done.items()})
        yield seeded(ARMS[1:2], 2)

    bench = Bench(rate)
    bench.drive(searched(suite(), 3))
    assert len(bench.stages) == 4
    largest = max(rates(ARMS[0], 3))
    assert seen == [dict.fromkeys(seeded(ARMS[:1], 2), largest)]


def test_one_trial_is_the_default_and_none_is_refused() -> None:
    bench = Bench()
    assert set(bench.drive(searched(seeded(ARMS, 2), 1))) == set(seeded(ARMS, 2))
    with pytest.raises(ValueError, match="search is 0"):
        bench.drive(searched(ARMS, 0))


# Momenta


def found_by_descent(best_at: tuple[float, ...]) -> tuple[Bench, Spec]:
    """The search on a bowl, whose best point is known."""
    joint = arm({**THREE, **SHORT}, "joint")
    names = [f"m{i + 1}" for i in range(len(best_at))]

    def score(spec: Spec) -> float:
        betas = spec.controller.options["betas"]
        return -sum((betas[m] - b) ** 2 for m, b in zip(names, best_at, strict=True))

    bench, found = Bench(score), list[Spec | None]()

    def suite() -> Stages:
        found.append((yield from descent(joint, names, BETAS)))

    bench.drive(suite())
    assert found[0] is not None
    return bench, found[0]


@pytest.mark.parametrize("best_at", [(0.7, 0.95, 0.99), (0.9, 0.9, 0.9), (0.8, 0.9, 0.7, 0.95)])
def test_the_descent_finds_the_best_of_a_bowl(best_at: tuple[float, ...]) -> None:
    bench, found = found_by_descent(best_at)
    assert betas_of([found]) == [best_at]
    tried = [spec for stage in bench.stages for spec in stage]
    assert len(tried) == len(set(tried)) <= MOST
    assert {spec.seed for spec in tried} == {0}
    first = betas_of(bench.stages[0])
    assert {row[1:] for row in first} == {(0.9,) * (len(best_at) - 1)}
    assert [row[0] for row in first] == list(BETAS)


def test_the_descent_ends_when_its_trials_are_spent() -> None:
    bench, _ = found_by_descent((0.7,) * 8)
    assert sum(map(len, bench.stages)) == MOST


def test_a_descent_of_which_all_failed_finds_nothing() -> None:
    def suite() -> Stages:
        joint = arm({**THREE, **SHORT}, "joint")
        assert (yield from descent(joint, ["m1", "m2", "m3"], BETAS)) is None

    bench = Bench(failing=lambda _: True)
    bench.drive(suite())
    assert sum(map(len, bench.stages)) == len(BETAS)


def test_the_base_momentum_is_the_optimizers() -> None:
    assert base_momentum(Spec(optimizer=Choice("sgd", momentum=0.8))) == 0.8
    assert base_momentum(Spec(optimizer=Choice("adam", betas=(0.7, 0.99)))) == 0.7
