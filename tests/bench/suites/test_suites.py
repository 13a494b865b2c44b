"""Suites: which specs a question needs, and what they share."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from vcmm.bench.methods import METHODS
from vcmm.bench.signature import parameters
from vcmm.bench.spec import Choice, Spec
from vcmm.bench.suites import PAPER, SUITES
from vcmm.bench.suites.ablation import BETAS
from vcmm.bench.suites.budget import SCALES, budget, within
from vcmm.bench.suites.compare import compare
from vcmm.bench.suites.grid import arm, references, seeded
from vcmm.bench.suites.sensitivity import VARIED
from vcmm.bench.suites.windows import windows

from .answers import SHORT, THREE, TWO, Bench, betas_of

LISTS = ("compare", "demo", "table1")  # those that have every modality alone


def arms(specs: list[Spec]) -> list[tuple[str, str]]:
    return [(s.method.name, s.controller.name) for s in specs]


@pytest.mark.parametrize("name", LISTS)
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


DOCS = Path(__file__).parents[3] / "docs" / "suites.md"


def test_the_page_names_every_suite_of_the_paper_and_every_value_that_is_tried() -> None:
    page = DOCS.read_text()
    named = re.findall(r"^\| `(\w+)` \|", page, re.M)
    assert named[: len(PAPER)] == ["table1", "ablation", "cost", "sensitivity", "dynamics", "all"]
    assert sorted(named[: len(PAPER)]) == sorted(PAPER)
    rows = {row[0]: row[1] for row in re.findall(r"^\| `(\w+)` \| (.*) \|$", page, re.M)}
    for option, values in VARIED.items():
        written = [
            float(x) for x in re.findall(r"[\d.]+(?:e-\d)?", rows[option].partition(", where")[0])
        ]
        flat = [x for value in values for x in (value if isinstance(value, tuple) else (value,))]
        assert written == flat
    assert "among .70, .80, .90, .95 and .99" in page
    assert BETAS == (0.7, 0.8, 0.9, 0.95, 0.99)


@pytest.mark.parametrize("name", PAPER)
def test_a_suite_of_the_paper_takes_a_budget_and_explicit_numbers_win(name: str) -> None:
    assert {"budget", "seeds", "epochs", "batch_size"} <= parameters(SUITES[name]).keys()
    base = {**TWO, "optimizer": Choice("sgd", lr=0.5)}
    given = Bench().drive(SUITES[name](base, seeds=2, epochs=3, batch_size=16))
    by_budget = Bench().drive(SUITES[name](base, budget="full"))
    plain = [
        {s for s in specs if (s.method.name, s.controller.name) == ("joint", "none")}
        for specs in (given, by_budget)
    ]
    joint = [[s for s in found if s.optimizer.options["lr"] == 0.5] for found in plain]
    assert {s.epochs for s in given} == {3}
    assert {s.batch_size for s in joint[0]} >= {16}
    assert {s.seed for s in given} == {0, 1}
    assert {s.epochs for s in by_budget} == {100}  # so few samples, so many epochs
    assert {s.seed for s in by_budget} == {0, 1, 2, 3, 4}
    assert {s.data for s in given} == {Choice("synthetic", **given[0].data.options)}
    assert len(given) == len(set(given))


def test_a_budget_looks_at_the_data_only_if_it_must() -> None:
    base, seeds = within({"data": "nowhere.npz"}, "small", None, 7, 32)
    assert (base["epochs"], base["batch_size"], seeds) == (7, 32, 3)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        within({"data": "nowhere.npz"}, "small", None, None, 32)
    assert within(THREE, "full", 2, None, 64)[0]["epochs"] == 100


def test_table1_has_every_method() -> None:
    named = set(arms(SUITES["table1"](TWO, seeds=1, epochs=3)))
    assert {method for method, _ in named} == METHODS.keys()
    assert {method for method, controller in named if controller != "none"} == {"joint"}


def test_cost_asks_for_nothing_that_table1_has_not() -> None:
    table, cost = (SUITES[name](TWO, seeds=2, epochs=3) for name in ("table1", "cost"))
    assert set(cost) < set(table)
    assert {s.method.name for s in set(table) - set(cost)} == {"unimodal"}


# The ablation


def rewarded(spec: Spec) -> float:
    """As if long memory for m1 and short memory for m2 were best, and .95 of all equal ones."""
    found = betas_of([spec])
    if not found:
        return 0.5
    *_, last = found[0]
    return (
        0.9 if found[0][0] > 0.97 and last < 0.75 else 0.8 * (found[0] == (0.95,) * len(found[0]))
    )


def test_the_ablation_of_two_modalities_tries_every_combination() -> None:
    bench = Bench(rewarded)
    specs = bench.drive(SUITES["ablation"]({**TWO, **SHORT}, seeds=3, **SHORT))
    first, second = bench.stages
    grid = betas_of(first)
    assert len(grid) == len(set(grid)) == 25
    assert {s.seed for s in first if s.controller.name == "fixed"} == {0}
    assert sorted(set(betas_of(second))) == [(0.95, 0.95), (0.99, 0.7)]
    assert {s.seed for s in second} == {1, 2}  # seed 0 was the search
    options = [s.controller for s in specs if s.seed == 1 and s.controller.name == "vcmm"]
    full = Spec(controller=Choice("vcmm")).controller.options
    changed = [{k: v for k, v in one.options.items() if v != full[k]} for one in options]
    assert changed == [
        {"subtract_noise": False},
        {"center": False},
        {"exact": False},
        {},
        {"strength": 0.0},
        {"floor_after_smoothing": True},
    ]
    assert {("joint", "none"), ("joint", "frozen")} < set(arms(specs))


def test_the_ablation_of_three_modalities_goes_one_by_one() -> None:
    bench = Bench(rewarded)
    specs = bench.drive(SUITES["ablation"](THREE, seeds=2, **SHORT))
    searched = betas_of(spec for stage in bench.stages[:-1] for spec in stage)
    assert len(searched) == len(set(searched)) <= 25 + 4  # .9 for all is where it starts
    assert (0.95, 0.95, 0.95) in betas_of(bench.stages[-1])
    last = {s.controller.name for s in bench.stages[-1]}
    assert last == {"fixed"}
    assert len({spec for spec in specs if spec.seed == 1}) == 10


def test_an_ablation_whose_search_failed_has_its_other_rows() -> None:
    bench = Bench(failing=lambda spec: spec.controller.name == "fixed")
    specs = bench.drive(SUITES["ablation"](TWO, seeds=2, **SHORT))
    assert sum(s.seed == 1 for s in specs) == 8


# The others


def test_sensitivity_changes_one_thing_at_a_time() -> None:
    specs = SUITES["sensitivity"](TWO, seeds=1, **SHORT)
    assert isinstance(specs, list)
    main = next(s for s in specs if s.controller == Spec(controller=Choice("vcmm")).controller)
    for spec in specs:
        mine, theirs = spec.to_json(), main.to_json()
        flat = [(k, *pair) for k in mine for pair in parts(mine[k], theirs[k])]
        apart = [name for name, *_ in flat]
        if spec.controller.name == "vcmm":
            assert len(apart) <= 1
    by_vcmm, alone = (
        {(s.batch_size, s.optimizer.options["lr"]) for s in specs if s.controller.name == name}
        for name in ("vcmm", "none")
    )
    assert by_vcmm == alone
    assert len(alone) == 8


def parts(mine: object, theirs: object) -> list[tuple[object, object]]:
    """Where two values differ: per option, if they are choices."""
    if isinstance(mine, dict) and isinstance(theirs, dict):
        return [(mine[k], theirs.get(k)) for k in mine if mine[k] != theirs.get(k)]
    return [] if mine == theirs else [(mine, theirs)]


@pytest.mark.parametrize("momentum", [0.7, 0.8, 0.9, 0.95, 0.98, 0.99])
def test_sensitivity_leaves_out_a_range_that_does_not_contain_the_base(momentum: float) -> None:
    base = {**TWO, "optimizer": Choice("sgd", momentum=momentum)}
    specs = SUITES["sensitivity"](base, seeds=1, **SHORT)  # a Spec refuses what VCMM refuses
    ranges = {s.controller.options.get("gain_range") for s in specs} - {None}
    for low, high in ranges:
        assert low <= 1 - momentum + 1e-6
        assert high >= 1 - momentum - 1e-6
    assert len(ranges) >= 2


def test_dynamics_records_the_encoder_once_and_tries_the_momenta_of_a_pair() -> None:
    specs = SUITES["dynamics"](THREE, seeds=2, pair=("m3", "m1"), encoder_every=7, **SHORT)
    assert isinstance(specs, list)
    recorded = [s for s in specs if s.controller.options.get("encoder_every")]
    assert [(s.seed, s.controller.options["encoder_every"]) for s in recorded] == [(0, 7)]
    grid = [s for s in specs if s.controller.name == "fixed"]
    assert len(grid) == 25
    assert {tuple(s.controller.options["betas"]) for s in grid} == {("m1", "m3")}
    assert {s.seed for s in grid} == {0}
    with pytest.raises(ValueError, match=r"pair names modality 'm9'; the data has m1, m2, m3"):
        SUITES["dynamics"](THREE, pair=("m1", "m9"), **SHORT)


def test_the_grid_of_two_modalities_is_the_search_of_the_ablation() -> None:
    bench = Bench()
    bench.drive(SUITES["ablation"](TWO, seeds=1, **SHORT))
    dynamics = SUITES["dynamics"](TWO, seeds=1, **SHORT)
    fixed = [
        {s for s in specs if s.controller.name == "fixed"} for specs in (bench.stages[0], dynamics)
    ]
    assert fixed[0] == fixed[1]


def test_all_is_all_of_them_and_nothing_twice() -> None:
    bench = Bench(rewarded)
    whole = bench.drive(SUITES["all"](TWO, seeds=2, **SHORT))
    assert len(whole) == len(set(whole))
    each = [
        Bench(rewarded).drive(SUITES[name](TWO, seeds=2, **SHORT))
        for name in PAPER
        if name != "all"
    ]
    assert set(whole) == {spec for specs in each for spec in specs}


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
