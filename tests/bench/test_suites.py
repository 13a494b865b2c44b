"""Suites: which specs a question needs, and what they share."""

from __future__ import annotations

import inspect

import pytest

from vcmm.bench.methods import METHODS
from vcmm.bench.signature import parameters
from vcmm.bench.spec import Choice, Spec
from vcmm.bench.suites import SUITES
from vcmm.bench.suites.budget import SCALES, budget
from vcmm.bench.suites.compare import compare
from vcmm.bench.suites.grid import arm, references, seeded
from vcmm.bench.suites.windows import windows

THREE = {"data": Choice("synthetic", modalities=3, samples=64)}


def arms(specs: list[Spec]) -> list[tuple[str, str]]:
    return [(s.method.name, s.controller.name) for s in specs]


@pytest.mark.parametrize("name", SUITES)
def test_a_suite_compares_like_with_like(name: str) -> None:
    base = {**THREE, "optimizer": Choice("sgd", lr=0.5), "encoder": Choice("mlp", width=4)}
    specs = SUITES[name](base, seeds=2, epochs=3, batch_size=32)
    assert len(specs) == len(set(specs))
    assert {s.seed for s in specs} == {0, 1}
    for axis in ("data", "encoder", "optimizer", "schedule", "epochs", "batch_size"):
        assert len({getattr(spec, axis) for spec in specs}) == 1
    assert specs[0].optimizer.options["lr"] == 0.5
    # Every modality alone is the reference, and every arm has every seed.
    alone = [s.method.options["modality"] for s in specs if s.method.name == "unimodal"]
    assert alone == ["m1", "m2", "m3"] * 2
    first, second = ([s for s in specs if s.seed == seed] for seed in (0, 1))
    assert arms(first) == arms(second)
    assert ("joint", "none") in arms(first)


@pytest.mark.parametrize("name", SUITES)
def test_a_suite_says_what_it_is_and_what_it_takes(name: str) -> None:
    assert (inspect.getdoc(SUITES[name]) or "").endswith(".")
    assert {"seeds", "epochs"} <= parameters(SUITES[name]).keys()


def test_the_demo_is_what_it_promises() -> None:
    specs = SUITES["demo"]({})
    assert {s.data.name for s in specs} == {"watch"}
    assert len({s.seed for s in specs}) == 3
    assert set(arms(specs)) == {
        ("unimodal", "none"),
        ("joint", "none"),
        ("multi_loss", "none"),
        ("joint", "vcmm"),
        ("multi_loss", "vcmm"),
    }


def test_compare_trains_what_is_named_and_joint_in_any_case() -> None:
    specs = SUITES["compare"](THREE, methods=("multi_loss+frozen", "joint"), seeds=1)
    assert arms(specs)[3:] == [("joint", "none"), ("multi_loss", "frozen")]


def test_compare_trains_joint_by_every_fusion_that_a_method_brings() -> None:
    specs = SUITES["compare"](THREE, methods=("ogm", "pmr+vcmm", "mla", "multi_loss"), seeds=1)
    assert [(s.method.name, s.fusion.name) for s in specs[3:]] == [
        ("joint", "mean"),
        ("joint", "concat"),
        ("joint", "shared"),
        ("ogm", "concat"),
        ("pmr", "concat"),
        ("mla", "shared"),
        ("multi_loss", "mean"),
    ]
    one = SUITES["compare"]({**THREE, "fusion": Choice("sum")}, methods=("ogm",), seeds=1)
    assert arms(one)[3:] == [("joint", "none"), ("ogm", "none")]


def test_an_arm_is_a_method_and_a_controller() -> None:
    assert arms([arm({}, "joint"), arm({}, "multi_loss+vcmm")]) == [
        ("joint", "none"),
        ("multi_loss", "vcmm"),
    ]


@pytest.mark.parametrize("name", ["", "+vcmm", "joint+"])
def test_half_an_arm_is_none(name: str) -> None:
    with pytest.raises(ValueError, match="names no arm"):
        arm({}, name)


def test_an_unknown_method_and_controller_are_named() -> None:
    with pytest.raises(ValueError, match="did you mean 'joint'"):
        arm({}, "jont")
    with pytest.raises(ValueError, match="did you mean 'vcmm'"):
        arm({}, "joint+vcm")


def test_references_are_of_the_modalities_in_use() -> None:
    found = references({**THREE, "modalities": ("m1", "m3")})
    assert [s.method.options["modality"] for s in found] == ["m1", "m3"]


def test_no_seed_is_no_suite() -> None:
    with pytest.raises(ValueError, match="seeds is 0"):
        seeded([Spec()], 0)


@pytest.mark.parametrize("name", SCALES)
@pytest.mark.parametrize("samples", [10, 1000, 50_000, 1_000_000])
def test_a_budget_is_about_as_many_steps_within_its_bounds(name: str, samples: int) -> None:
    scale, found = SCALES[name], budget(name, samples, 64)
    assert scale.least <= found.epochs <= scale.most
    assert found.seeds == scale.seeds
    steps = found.epochs * -(-samples // 64)
    if found.epochs < scale.most:
        assert steps >= scale.steps
    if found.epochs > scale.least:
        assert steps - -(-samples // 64) < scale.steps


def test_more_data_never_means_more_epochs() -> None:
    epochs = [budget("full", samples, 64).epochs for samples in range(64, 200_000, 997)]
    assert epochs == sorted(epochs, reverse=True)


def test_an_unknown_budget_is_named() -> None:
    with pytest.raises(ValueError, match="'huge'; choose from small, full"):
        budget("huge", 100, 64)


def test_windows_keep_their_share_of_the_training() -> None:
    assert windows("aug", 200) == {"every": 20}
    assert windows("g2d", 300)["ends"] == 150
    assert windows("ogm", 100) == {"ends": 50}
    assert windows("joint", 10) == {}
    for method in METHODS:
        assert all(value >= 1 for value in windows(method, 1).values())
        assert windows(method, 7).keys() <= parameters(METHODS[method]).keys()


def test_a_comparison_cuts_them_and_a_run_does_not() -> None:
    (made,) = [one for one in compare({}, methods=("aug",), seeds=1, epochs=10) if is_aug(one)]
    assert made.method.options["every"] == 1
    assert arm({}, "aug").method.options["every"] == 20


def is_aug(spec: Spec) -> bool:
    return spec.method.name == "aug"
