"""Arms over several data sets: which ones all have, by what name, and how they rank."""

from __future__ import annotations

from pathlib import Path

from vcmm.bench.across import across
from vcmm.bench.arms import settings
from vcmm.bench.records import load

from .folders import write
from .report.studies import arm


def test_only_arms_of_all_data_sets_are_ranked(tmp_path: Path) -> None:
    for name in ("digits", "watch"):
        data = {"data": {"name": name}}
        arm(tmp_path, 0.7, **data)
        arm(tmp_path, 0.72, fusion={"name": "concat"}, **data)
        arm(tmp_path, 0.8, "vcmm", turn=1, **data)
        arm(tmp_path, 0.9, "vcmm", control={"strength": 2.0}, **data)
        arm(tmp_path, 0.9, method="unimodal:gyroscope", **data)
    arm(tmp_path, 0.9, method="ogm", data={"name": "watch"})
    found = across(settings(load(tmp_path)))
    assert found is not None
    assert found.data == ("digits", "watch")
    assert sorted(found.scores) == ["joint", "joint + vcmm", "joint by concat"]
    assert found.reference == "joint"
    assert [len(each) for each in found.scores["joint"]] == [3, 3]
    assert found.ranking.arms == ("joint + vcmm", "joint by concat", "joint")
    assert [one.controller for one in found.arms["joint + vcmm"]] == ["vcmm", "vcmm"]


def test_options_that_follow_the_length_of_a_training_make_no_other_arm(tmp_path: Path) -> None:
    for name, ends in (("digits", 5), ("watch", 10)):
        write(tmp_path, data={"name": name})
        write(tmp_path, "ogm", options={"ends": ends}, data={"name": name})
    found = across(settings(load(tmp_path)))
    assert found is not None
    assert sorted(found.scores) == ["joint", "ogm"]


def test_of_several_settings_of_a_data_set_the_one_with_the_most_arms_counts(
    tmp_path: Path,
) -> None:
    for name in ("digits", "watch"):
        for method in ("joint", "ogm", "pmr"):
            write(tmp_path, method, data={"name": name})
    for method in ("joint", "ogm"):
        write(tmp_path, method, data={"name": "watch"}, epochs=3)
    found = across(settings(load(tmp_path)))
    assert found is not None
    assert sorted(found.scores) == ["joint", "ogm", "pmr"]


def test_one_data_set_or_one_arm_is_nothing_to_rank(tmp_path: Path) -> None:
    assert across([]) is None
    write(tmp_path, data={"name": "digits"})
    write(tmp_path, "ogm", data={"name": "digits"})
    assert across(settings(load(tmp_path))) is None
    write(tmp_path, "pmr", data={"name": "watch"})
    write(tmp_path, data={"name": "watch"})
    assert across(settings(load(tmp_path))) is None
