"""Searches and sweeps: what was tried stands aside, what was chosen stands in one table."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from vcmm.bench import controllers
from vcmm.bench.arms import Arm, Setting, settings
from vcmm.bench.records import load
from vcmm.bench.roles import PUBLISHED, RECORDER, changed, published

from .folders import write

PUBLISHED_VCMM: dict[str, Any] = {**PUBLISHED}


def adam(lr: float) -> dict[str, Any]:
    return {"name": "adam", "lr": lr}


def only(root: Path) -> Setting:
    (setting,) = settings(load(root))
    return setting


def rates(arms: tuple[Arm, ...]) -> dict[str, set[float]]:
    found: dict[str, set[float]] = {}
    for arm in arms:
        name = f"{arm.method} {arm.controller}"
        found.setdefault(name, set()).add(arm.spec["optimizer"]["lr"])
    return found


def searched(root: Path) -> None:
    """Two arms, three learning rates each, of which one is trained on with more seeds."""
    tried = {"joint": (0.001, 0.004, 0.002), "ogm": (0.001, 0.0007, 0.009)}
    chosen = {"joint": 0.004, "ogm": 0.001}
    for method, each in tried.items():
        for lr in each:
            write(root, method, optimizer=adam(lr), test=0.7 + lr)
        for seed in (1, 2):
            write(root, method, optimizer=adam(chosen[method]), seed=seed)


def test_what_a_search_chose_is_one_setting(tmp_path: Path) -> None:
    searched(tmp_path)
    setting = only(tmp_path)
    assert setting.title == "watch"
    assert [(arm.label, list(arm.runs)) for arm in setting.arms] == [
        ("joint", [0, 1, 2]),
        ("ogm", [0, 1, 2]),
    ]
    assert rates(setting.arms) == {"joint none": {0.004}, "ogm none": {0.001}}
    assert rates(setting.aside) == {"joint none": {0.001, 0.002}, "ogm none": {0.0007, 0.009}}
    assert setting.near == ()
    assert len(setting.everything) == 10
    assert [arm.label for arm in setting.aside if arm.method == "joint"] == [
        "joint, lr=0.001 batch=64",
        "joint, lr=0.002 batch=64",
    ]


def test_of_two_learning_rates_with_all_seeds_the_better_on_valid_counts(tmp_path: Path) -> None:
    searched(tmp_path)
    for seed in (1, 2):
        write(tmp_path, optimizer=adam(0.002), seed=seed, test=0.9)
    setting = only(tmp_path)
    assert rates(setting.arms)["joint none"] == {0.002}
    assert rates(setting.near) == {"joint none": {0.004}}


def test_momenta_that_were_tried_with_one_seed_stand_aside(tmp_path: Path) -> None:
    for seed in (0, 1):
        write(tmp_path, seed=seed)
        write(tmp_path, "joint", "fixed", control={"betas": {"a": 0.9, "b": 0.7}}, seed=seed)
    for b in (0.8, 0.99):
        write(tmp_path, "joint", "fixed", control={"betas": {"a": 0.9, "b": b}})
    setting = only(tmp_path)
    assert [arm.controller for arm in setting.arms] == ["none", "fixed"]
    assert sorted(arm.spec["controller"]["betas"]["b"] for arm in setting.aside) == [0.8, 0.99]


def test_a_grid_of_one_seed_stands_aside_of_arms_with_more(tmp_path: Path) -> None:
    for seed in (0, 1):
        write(tmp_path, seed=seed)
    for b in (0.8, 0.99):
        write(tmp_path, "joint", "fixed", control={"betas": {"a": 0.9, "b": b}})
    setting = only(tmp_path)
    assert [arm.label for arm in setting.arms] == ["joint"]
    assert len(setting.aside) == 2


def test_momenta_with_the_same_seeds_are_all_arms(tmp_path: Path) -> None:
    write(tmp_path)
    for b in (0.7, 0.8, 0.99):
        write(tmp_path, "joint", "fixed", control={"betas": {"a": 0.9, "b": b}})
    setting = only(tmp_path)
    assert [arm.label for arm in setting.arms] == [
        "joint",
        "joint + fixed (betas=a:0.9 b:0.7)",
        "joint + fixed (betas=a:0.9 b:0.8)",
        "joint + fixed (betas=a:0.9 b:0.99)",
    ]


def test_a_recording_stands_aside_of_the_same_training(tmp_path: Path) -> None:
    write(tmp_path)
    recorded = {**PUBLISHED_VCMM, RECORDER: 5}
    write(tmp_path, "joint", "vcmm", control=recorded)
    assert [arm.controller for arm in only(tmp_path).arms] == ["none", "vcmm"]
    write(tmp_path, "joint", "vcmm", control={**PUBLISHED_VCMM, RECORDER: 0})
    setting = only(tmp_path)
    assert [arm.spec["controller"].get(RECORDER) for arm in setting.arms] == [None, 0]
    assert [arm.spec["controller"][RECORDER] for arm in setting.aside] == [5]


@pytest.mark.parametrize(
    "step",
    [
        {"optimizer": adam(0.01)},
        {"batch_size": 16},
        {"batch_size": 128, "epochs": 12},
    ],
)
def test_a_step_of_a_sweep_stands_near(tmp_path: Path, step: dict[str, Any]) -> None:
    for other in ({}, step):
        for seed in (0, 1):
            write(tmp_path, seed=seed, **other)
            write(tmp_path, "joint", "vcmm", control=PUBLISHED_VCMM, seed=seed, **other)
    write(tmp_path, "ogm")
    setting = only(tmp_path)
    assert [arm.label for arm in setting.arms] == ["joint", "joint + vcmm", "ogm"]
    assert [(arm.method, arm.controller) for arm in setting.near] == [
        ("joint", "none"),
        ("joint", "vcmm"),
    ]


@pytest.mark.parametrize(
    "other",
    [
        {"epochs": 12},
        {"optimizer": {"name": "sgd", "lr": 0.001}},
        {"optimizer": adam(0.01), "batch_size": 16},
    ],
)
def test_what_is_no_step_of_a_sweep_is_a_setting(tmp_path: Path, other: dict[str, Any]) -> None:
    write(tmp_path)
    write(tmp_path, "ogm")
    write(tmp_path, **other)
    assert [len(setting.arms) for setting in settings(load(tmp_path))].count(1) == 1


def test_settings_of_as_many_arms_are_not_steps_of_one_another(tmp_path: Path) -> None:
    for lr in (0.001, 0.01):
        write(tmp_path, optimizer=adam(lr))
        write(tmp_path, "ogm", optimizer=adam(lr))
    assert [len(setting.arms) for setting in settings(load(tmp_path))] == [2, 2]


def test_a_sweep_and_a_search_of_the_same_runs(tmp_path: Path) -> None:
    searched(tmp_path)
    for seed in range(3):
        write(tmp_path, batch_size=16, optimizer=adam(0.004), seed=seed)
    write(tmp_path, batch_size=16, optimizer=adam(0.002))
    setting = only(tmp_path)
    assert [arm.spec["batch_size"] for arm in setting.near] == [16]
    assert len(setting.aside) == 5


def test_what_is_published_is_the_default() -> None:
    defaults = {
        name: list(one.default) if isinstance(one.default, tuple) else one.default
        for name, one in inspect.signature(controllers.vcmm).parameters.items()
        if one.kind is one.KEYWORD_ONLY and name != RECORDER
    }
    assert defaults == PUBLISHED


def test_what_was_changed_is_told_from_what_was_published(tmp_path: Path) -> None:
    write(tmp_path, "joint", "vcmm", control={**PUBLISHED_VCMM, "strength": 0.5, RECORDER: 3})
    (run,) = load(tmp_path)
    assert changed(run.spec) == {"strength": 0.5}
    assert not published(run.spec)
